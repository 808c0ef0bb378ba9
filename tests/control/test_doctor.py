"""`autotune doctor`."""

from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec
from autotune.runs.one_off import OneOffRuns
from autotune.runs.plan import Plan
from autotune.standalone.doctor import _knobs
from autotune.worker.protocol import Outcome
from launchers.replay import Launch, ReplayLauncher
from launchers.replay.behaviours import where
from tests.control.replayed import PLAIN

FLAGS = {
    "micro_batch": "--batch",
    "accumulation_steps": "--accumulate",
    "loader_workers": "--workers",
}
ARGS = ["--batch", "4", "--accumulate", "2", "--workers", "0"]


def other_batch(launch: Launch) -> bool:
    return launch.knobs["micro_batch"] * launch.knobs["accumulation_steps"] != 8


@pytest.mark.parametrize("space", [{"loader_workers": [0, 2]}, {"micro_batch": [4, 8]}])
def test_knob_whose_survey_stays_on_another_node_is_told_as_not_seen(
    tmp_path: Path, space: dict[str, Any]
) -> None:
    workload = {"script": "train.py", "args": ARGS, "flags": FLAGS}
    spec = StudySpec(
        name="a", workload=workload, search_space=space, objective={"global_batch": "keep"}
    )
    strict = where(PLAIN, other_batch, outcome=Outcome.ERROR)  # as DeepSpeed is
    one_off = OneOffRuns(Plan(spec, ReplayLauncher(strict)), tmp_path, tmp_path)
    [found] = _knobs(one_off, settles=False)
    assert found.level == "ok", found.text
    assert found.text.endswith("whether the script heeds it is not seen")
