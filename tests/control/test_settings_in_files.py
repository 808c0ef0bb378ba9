"""A study whose knobs are fields of a file that the script reads, from start to the user's own job."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.export.best import load
from autotune.export.tuned_job import script_job
from launchers.replay.behaviours import running_at
from storage import StudyState
from tests.control.replayed import Replayed
from tests.support.steering import ask

STUDY: dict[str, Any] = {
    "workload": {"script": "train.py", "args": ["--config", "a.json"], "samples": 8},
    "search_space": {},
    "baseline": {"stage": 1},
    "knobs": {"stage": {"values": [1, 2, 3], "flag": "--config::zero.stage", "numerics": False}},
    "budget": {"trials": 3, "min_improvement": 0},
}


def test_the_winner_is_in_the_copy_that_the_job_is_given(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(played.folder)
    Path("a.json").write_text('{"zero": {"stage": 1}}')
    played.on(running_at(lambda knobs: 100.0 * knobs["stage"])).run(**STUDY)
    job = script_job(load(Path("best.yaml")), ["torchrun", "train.py", "--config", "a.json"], {})
    assert json.loads(Path(job.command[3]).read_text()) == {"zero": {"stage": 3}}
    assert Path("a.json").read_text() == '{"zero": {"stage": 1}}'


def test_a_file_that_has_changed_since_is_said(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(played.folder)
    Path("a.json").write_text('{"zero": {"stage": 1}, "layers": 2}')
    played.on(running_at(lambda knobs: 100.0 * knobs["stage"])).run(**STUDY)
    Path("b.json").write_text('{"zero": {"stage": 1}, "layers": 24}')
    for file, differs in (("a.json", False), ("b.json", True)):
        job = script_job(load(Path("best.yaml")), ["torchrun", "train.py", "--config", file], {})
        told = "b.json is not as it was when it was tuned" in job.differences
        assert told == differs


BECOMES_A_JOB = """
import os, sys
from autotune.export.best import load
from autotune.export.tuned_job import script_job
job = script_job(load("best.yaml"), ["torchrun", "train.py", "--config", sys.argv[1]], {})
os.execv("/bin/cat", ["/bin/cat", job.command[3], "-"])
"""


@pytest.mark.long
def test_copies_go_once_no_job_has_them(played: Replayed) -> None:
    def job(file: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", BECOMES_A_JOB, file]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=played.folder, stdin=pipe, stdout=pipe, text=True)

    for name, size in (("a.json", 1), ("b.json", 2)):
        (played.folder / name).write_text(json.dumps({"zero": {"stage": 1}, "size": size}))
    played.on(running_at(lambda knobs: 100.0 * knobs["stage"])).run(**STUDY)
    ended, lives = job("a.json"), job("b.json")
    assert '"stage": 3' in ended.communicate()[0]
    assert lives.stdout is not None
    assert '"stage": 3' in lives.stdout.read(len('{"zero": {"stage": 3}, "size": 2}'))
    copies = {file.name: file for file in played.folder.glob(".autotune/run/*/*.json")}
    assert copies.keys() == {"a.json", "b.json"}
    told = ask("clean", "--storage", played.url, cwd=played.folder, check=True)
    assert str(copies["a.json"].parent) in told.stdout
    assert not copies["a.json"].parent.exists()
    assert copies["b.json"].exists()
    lives.communicate()
    told = ask("clean", "--storage", played.url, cwd=played.folder, check=True)
    assert told.stdout == f"{copies['b.json'].parent}\n"
    assert job("b.json").communicate()[0], "it is written again"


def test_a_file_that_is_gone_ends_the_study_with_what_is_missing(played: Replayed) -> None:
    file = played.folder / "a.json"
    file.write_text('{"zero": {"stage": 1}}')
    played.on(running_at(lambda knobs: 100.0 * knobs["stage"])).submit(**STUDY)
    file.unlink()
    played.serve()
    study = played.study()
    assert study.state == StudyState.FAILED
    assert "a.json: cannot be read: No such file" in str(study.error)


@pytest.mark.parametrize(
    "now", ["workload: {script: train.py, args: [--config, a.json]}", "budget: none", "nonsense: 1"]
)
def test_a_study_file_tells_which_study_is_meant_whatever_else_it_says(
    played: Replayed, now: str
) -> None:
    """The study is stored: it can be stopped without the files that it was begun with."""
    (played.folder / "a.json").write_text('{"zero": {"stage": 1}}')
    played.submit(**STUDY)
    (played.folder / "a.json").unlink()
    study = played.folder / "study.yaml"
    study.write_text(f"storage: {played.url}\nname: {played.name}\n{now}\n")
    for command in ("status", "stop", "delete"):
        asked = ask(command, "study.yaml", cwd=played.folder)
        assert asked.returncode == 0, asked.stderr
        assert played.name in asked.stdout
    study.write_text(f"storage: {played.url}\nname: a b\n{now}\n")
    asked = ask("status", "study.yaml", cwd=played.folder)
    assert asked.returncode == 2
    assert asked.stderr.startswith("error: study.yaml:2: name: must be 1 to 100 letters")
    study.write_text(f"storage: {played.url}\n{now}\n")
    asked = ask("status", "study.yaml", cwd=played.folder)
    assert asked.returncode == 2
    assert "name" in asked.stderr
