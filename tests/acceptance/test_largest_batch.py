"""`micro_batch: max` in a study: real runs that really run out of memory."""

from pathlib import Path

import pytest

from storage import Purpose
from tests.support.steering import StudyFolder, quick_measurement, study_folder

LIMITED = {"workers": 2, "memory_per_worker": "2GiB"}


def asking_for_max(tiny: StudyFolder, fits: int, **changes: object) -> None:
    """A study whose second rank takes all its memory for a batch of more samples than fit."""
    # From the third forward pass on, as optimizers take their memory late.
    args = {"trouble": "oom", "at": 3, "above": fits}
    tiny.write(
        **{
            "workload": {"name": "tiny:build", "args": args},
            "search_space": {"micro_batch": "max", "log_interval": [1, 10]},
            "baseline": {"micro_batch": 8, "log_interval": 1},
            "resources": LIMITED,
            "budget": {"trials": 3},
            "measurement": quick_measurement(rounds=2, ablation_rounds=0),
            **changes,
        }
    )


@pytest.mark.errand
def test_the_largest_that_fits_is_found_once_and_searched(tmp_path: Path) -> None:
    with study_folder(tmp_path) as tiny:
        asking_for_max(tiny, fits=40)
        found = tiny.run("start", "study.yaml", "--foreground", timeout=400)
        assert found.returncode == 0, found.stdout + found.stderr
        assert "micro_batch: 40 fits, 44 does not (OOM); max is taken to be 32." in found.stdout
        probes = tiny.attempts(Purpose.FIT)
        tried = [(a.knobs["micro_batch"], a.result.state) for a in probes]
        assert [size for size, _ in tried] == [8, 16, 32, 64, 48, 40, 44]
        assert {size for size, state in tried if state == "OOM"} == {64, 48, 44}
        assert {size for size, state in tried if state == "COMPLETE"} == {8, 16, 32, 40}
        assert {t.params["micro_batch"] for t in tiny.trials()} == {8, 32}

        asking_for_max(tiny, fits=40, budget={"trials": 4})
        again = tiny.run("start", "study.yaml", "--foreground", timeout=400)
        assert again.returncode == 0, again.stdout + again.stderr
        assert tiny.attempts(Purpose.FIT) == probes
        assert again.stdout.count("max is taken") == 1


@pytest.mark.errand
@pytest.mark.parametrize(
    ("fits", "changes", "complaint"),
    [
        pytest.param(0, {}, "not even 1 fits in memory", marks=pytest.mark.errand),
        (40, {"resources": {"workers": 2}}, "set resources.memory_per_worker"),
        pytest.param(
            40,
            {"baseline": {"stream_prefetch": True}},
            "the baseline cannot run here",
            marks=pytest.mark.errand,
        ),
    ],
    ids=["nothing fits", "no limit", "infeasible baseline"],
)
def test_where_there_is_no_largest_the_study_says_why(
    tmp_path: Path, fits: int, changes: dict[str, object], complaint: str
) -> None:
    with study_folder(tmp_path) as tiny:
        asking_for_max(tiny, fits=fits, **changes)
        found = tiny.run("start", "study.yaml", "--foreground", timeout=400)
        assert found.returncode != 0
        assert complaint in found.stdout + found.stderr
        assert fits == 0 or not tiny.attempts(Purpose.FIT)
