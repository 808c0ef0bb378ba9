"""A study whose knobs are fields of a file that the script reads, from start to the user's own job."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.export.best import load
from autotune.export.job import tuned
from launchers.behaviours import running_at
from storage import StudyState
from tests.control.replayed import Replayed

STUDY: dict[str, Any] = {
    "workload": {"script": "train.py", "args": ["--config", "a.json"], "samples": 8},
    "search_space": {},
    "baseline": {"stage": 1},
    "knobs": {"stage": {"values": [1, 2, 3], "flag": "--config::zero.stage", "numerics": False}},
    "budget": {"trials": 3, "least_gain": 0},
}


def test_the_winner_is_in_the_copy_that_the_job_is_given(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(played.folder)
    Path("a.json").write_text('{"zero": {"stage": 1}}')
    played.on(running_at(lambda knobs: 100.0 * knobs["stage"])).run(**STUDY)
    job = tuned(load(Path("best.yaml")), ["torchrun", "train.py", "--config", "a.json"], {})
    assert json.loads(Path(job.command[3]).read_text()) == {"zero": {"stage": 3}}
    assert Path("a.json").read_text() == '{"zero": {"stage": 1}}'


def test_a_file_that_is_gone_ends_the_study_with_what_is_missing(played: Replayed) -> None:
    file = played.folder / "a.json"
    file.write_text('{"zero": {"stage": 1}}')
    played.on(running_at(lambda knobs: 100.0 * knobs["stage"])).submit(**STUDY)
    file.unlink()
    played.serve()
    study = played.study()
    assert study.state == StudyState.FAILED
    assert "a.json: cannot be read: No such file" in str(study.error)
