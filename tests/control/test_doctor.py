"""`autotune doctor`, over a replaying launcher and on folders of several kinds."""

import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec
from autotune.runs.one_off import OneOffRuns
from autotune.runs.study_setup import StudySetup
from autotune.standalone import doctor
from autotune.standalone.doctor import _knobs, shared_memory, watch_of_devices
from autotune.worker.protocol import Outcome
from launchers.replay import Launch, ReplayLauncher
from launchers.replay.launcher import ENVIRONMENT
from tests.control.replayed import PLAIN
from tests.support.behaviours import where
from tests.support.steering import ask

FLAGS = {
    "micro_batch": "--batch",
    "accumulation_steps": "--accumulate",
    "num_workers": "--workers",
}
ARGS = ["--batch", "4", "--accumulate", "2", "--workers", "0"]


def other_batch(launch: Launch) -> bool:
    return launch.knobs["micro_batch"] * launch.knobs["accumulation_steps"] != 8


@pytest.mark.parametrize("space", [{"num_workers": [0, 2]}, {"micro_batch": [4, 8]}])
def test_knob_whose_survey_stays_on_another_node_is_told_as_not_seen(
    tmp_path: Path, space: dict[str, Any]
) -> None:
    workload = {"script": "train.py", "args": ARGS, "flags": FLAGS}
    spec = StudySpec(
        name="a", workload=workload, search_space=space, objective={"global_batch_size": "fixed"}
    )
    strict = where(PLAIN, other_batch, outcome=Outcome.ERROR)  # as DeepSpeed is
    one_off = OneOffRuns(StudySetup(spec, ReplayLauncher(strict)), tmp_path, tmp_path)
    [found] = _knobs(one_off, settles=False)
    assert found.level == "ok", found.text
    assert found.text.endswith("whether the script heeds it is not seen")


def test_nothing_is_left_where_there_is_no_storage_yet(tmp_path: Path) -> None:
    told = ask("doctor", cwd=tmp_path)
    assert "autotune.db is not there yet, and can be made" in told.stdout
    assert list(tmp_path.iterdir()) == []


def test_missing_package_for_the_watch_of_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it is not installed
    found = watch_of_devices()
    assert found.level == "warn"
    assert found.text.endswith("not watched: pip install nvidia-ml-py")


@pytest.mark.parametrize("devices", [[], [{"name": "a GPU"}]])
def test_watch_of_gpus_is_checked_for_a_study_on_devices(
    devices: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    launcher = ReplayLauncher(PLAIN, environment={**ENVIRONMENT, "devices": devices})
    monkeypatch.setattr(doctor, "_one_rank", lambda _: launcher)
    told = [one.level for one in doctor._launched(None) if one.name == "watch of GPUs"]
    assert told == ["warn"] * len(devices)


def test_machine_without_shared_memory_is_told_so(tmp_path: Path) -> None:
    found = shared_memory(tmp_path / "shm")
    assert found.level == "warn"
    assert found.text.startswith(f"there is no room in {tmp_path}/shm; NCCL and loader workers")
