"""The winner less one change: what does not go with that goes back, too."""

from typing import Any

import pytest

from autotune.analysis.contributions import contributions, variants
from search_spaces import Facts, defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

NCCL = Facts("cuda", 2, capability=(9, 0), backend="nccl")


def changed(knobs: dict[str, Any], winner: dict[str, Any]) -> set[str]:
    return {name for name in winner if knobs[name] != winner[name]}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"micro_batch": 8}, {"micro_batch": 32}, [{"micro_batch"}]),
        (
            {"micro_batch": 4, "accumulation_steps": 8},
            {"micro_batch": 32, "precision": "bf16"},
            [{"micro_batch", "accumulation_steps"}, {"precision"}],
        ),
        (
            {"micro_batch": 4, "accumulation_steps": 4},
            {"micro_batch": 32},
            [{"micro_batch"}, {"accumulation_steps"}],
        ),
        (
            {"parallelism": "data_parallel"},
            {"compile": "default", "gradient_as_bucket_view": True},
            [
                {"gradient_as_bucket_view"},
                {"parallelism", "compile", "gradient_as_bucket_view"},
                {"compile"},
            ],
        ),
        (
            {},
            {"precision": "bf16", "attention": "flash"},
            [{"precision", "attention"}, {"attention"}],
        ),
        (
            {"gradient_compression": "powersgd", "powersgd_rank": 4},
            {"parallelism": "fsdp"},
            [
                {"gradient_compression", "parallelism"},
                {"powersgd_rank", "gradient_compression", "parallelism"},
                {"parallelism"},
            ],
        ),
    ],
    ids=["alone", "another split", "another batch", "data parallel", "attention", "chain"],
)
def test_every_change_can_be_taken_back(
    before: dict[str, Any], after: dict[str, Any], expected: list[set[str]]
) -> None:
    baseline, winner = {**defaults(), **before}, {**defaults(), **after}
    first, *less = variants(winner, baseline, NCCL)
    assert first == winner
    assert sorted(map(sorted, (changed(knobs, winner) for knobs in less))) == sorted(
        map(sorted, expected)
    )
    runs = [
        StoredAttempt(
            number,
            1,
            Purpose.ABLATION,
            1,
            1,
            knobs,
            0.0,
            1.0,
            AttemptResult(AttemptState.COMPLETE, throughput=r),
        )
        for number, (knobs, r) in enumerate(
            zip([winner, *less], [120.0, *[100.0] * 9], strict=False)
        )
    ]
    recorded = Attempts(runs, baseline)
    for one in contributions(recorded, winner, baseline):
        assert one.gain.value == pytest.approx(1.2)
        assert {one.knob, *one.tied} in expected
    assert len(contributions(recorded, winner, baseline)) == len(expected)
