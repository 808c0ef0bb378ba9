"""Which trials follow the baseline, and why."""

import pytest

from autotune.analysis.findings import Finding, findings
from autotune.search.space import Space
from autotune.study.suggestions import Place, experts, remembered
from autotune.worker.rank.trace import PARTS
from search_spaces import Facts, defaults
from storage import Recommended

CPU = Facts("cpu", 2)
GPT = {"name": "gpt", "args": {"layers": 2}}
HERE = Place(GPT, 2, ("EPYC",))


def space(**values):
    return Space(values, defaults(), CPU)


def profile(**shares):
    """Both ranks alike, the rest of the step computing."""
    parts = {name: [shares.get(name, 0.0)] * 2 for name in PARTS}
    parts["compute"] = [1 - sum(shares.values())] * 2
    return {"parts": parts, "peaks": [1, 1], "batch_moves": {}}


def test_the_answer_to_the_bottleneck_comes_first():
    values = {"loader_workers": [0, 1, 2], "precision": ["fp32", "bf16"], "log_interval": [10, 50]}
    found = findings(profile(loader=0.7), defaults(), CPU)
    assert found[0].name == "loader"
    first, second = experts(space(**values), defaults(), found)
    assert first.params == {"loader_workers": 2, "precision": "fp32", "log_interval": 10}
    assert "70%" in first.reason and "loader_workers" in first.reason
    assert second.params == {"loader_workers": 2, "precision": "bf16", "log_interval": 50}
    assert "half the bytes" in second.reason


def test_what_answers_copies_is_what_acts_on_copies():
    on_a_device = Facts("cuda", 2, (8, 0))
    first = findings(profile(copies=0.7), defaults(), on_a_device)[0]
    assert (first.name, first.knobs) == (
        "copies",
        ("pin_memory", "stream_prefetch", "numa_binding"),
    )


def test_the_micro_batch_grows_by_no_more_than_four_times():
    values = {"micro_batch": [8, 16, 32, 64, 128]}
    (only,) = experts(space(**values), defaults(), [])
    assert only.params == {"micro_batch": 32}


def test_what_is_not_feasible_is_not_suggested():
    values = {"static_graph": [False, True], "persistent_workers": [False, True]}
    assert experts(space(**values), defaults(), []) == []


def test_a_finding_whose_knobs_do_not_vary_suggests_nothing():
    found = [Finding("loader", 0.9, "steps wait", ("loader_workers",))]
    suggestions = experts(space(precision=["fp32", "bf16"]), defaults(), found)
    assert [s.params for s in suggestions] == [{"precision": "bf16"}]


def recommended(place: Place = HERE, **knobs):
    environment = {"cpu": place.devices[0], "devices": []}
    body = {
        "knobs": {**defaults(), **knobs},
        "world_size": place.world_size,
        "provenance": {"environment": environment},
    }
    return Recommended("before", {"workload": place.workload}, body)


def test_what_won_before_in_the_same_place_is_tried():
    values = {"micro_batch": [8, 16, 32], "precision": ["fp32", "bf16"]}
    earlier = [recommended(micro_batch=30, precision="bf16")]
    found = remembered(space(**values), defaults(), earlier, HERE)
    assert found is not None
    assert found.params == {"micro_batch": 32, "precision": "bf16"}
    assert "before" in found.reason


@pytest.mark.parametrize(
    "elsewhere",
    [
        Place({"name": "mlp", "args": {}}, 2, ("EPYC",)),
        Place(GPT, 4, ("EPYC",)),
        Place(GPT, 2, ("Xeon",)),
    ],
)
def test_what_won_elsewhere_is_not(elsewhere):
    values = {"micro_batch": [8, 16, 32]}
    assert (
        remembered(space(**values), defaults(), [recommended(elsewhere, micro_batch=32)], HERE)
        is None
    )
    assert remembered(space(**values), defaults(), [recommended()], HERE) is None
