"""Workloads that run out of memory, hang, raise or lose their loss: the study takes it in."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from search_spaces import CATALOGUE
from storage import StoredAttempt
from tests.support.steering import StudyFolder, quick_measurement, study_folder

pytestmark = pytest.mark.timeout(1800)

MEMORY = {"workers": 2, "memory_per_worker": "1GiB"}
UNSPEAKABLE = """
import tiny


def build(text, **arguments):
    workload = tiny.build(**arguments)

    def loss(model, batch):
        if len(batch[0]) > 4:
            raise ValueError("no such file: " + text.encode().decode("unicode_escape"))
        return workload.loss(model, batch)

    return type(workload)(workload.model, workload.dataset, loss, workload.optimizer)
"""


def run(tiny: StudyFolder, arguments: dict[str, Any], **changes: Any) -> CompletedProcess[str]:
    """A study over the tiny workload with this trouble, to its end; it ends without a traceback."""
    tiny.write(workload={"name": "tiny:build", "args": arguments}, **changes)
    found = tiny.run("start", "study.yaml", "--foreground", timeout=400)
    assert "Traceback" not in found.stdout + found.stderr
    return found


def searched(tiny: StudyFolder, state: str) -> list[StoredAttempt]:
    return [a for a in tiny.attempts("search") if a.result.state == state]


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(8)
def test_out_of_memory_is_recorded_and_nothing_larger_is_launched(tiny: StudyFolder) -> None:
    found = run(
        tiny,
        {"trouble": "oom", "above": 4, "at": 1},
        resources=MEMORY,
        search_space={"micro_batch": [1, 2, 4, 8, 16, 32], "log_interval": [1, 10]},
        budget={
            "trials": 7,
            "min_improvement": 0,
        },  # six configurations fit, so one at least does not
    )
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=7)
    burnt = searched(tiny, "OOM")
    assert burnt
    told = {trial.number for trial in tiny.trials() if trial.user_attrs["end"] == "OOM"}
    assert told == {attempt.trial for attempt in burnt}
    for oom in burnt:
        assert oom.knobs["micro_batch"] > 4
        assert oom.result.throughput is None
        later = [a for a in tiny.attempts() if a.id > oom.id]
        assert [a for a in later if needs_as_much(a.knobs, oom.knobs)] == []
    assert {a.knobs["micro_batch"] for a in tiny.attempts("confirm")} <= {1, 2, 4}


def needs_as_much(knobs: dict[str, Any], other: dict[str, Any]) -> bool:
    alike = [name for name, knob in CATALOGUE.items() if knob.memory and name != "micro_batch"]
    same = all(knobs[name] == other[name] for name in alike)
    return same and knobs["micro_batch"] >= other["micro_batch"]


@pytest.mark.slow
@pytest.mark.fault(17)
def test_a_study_that_is_always_out_of_memory_says_so(tiny: StudyFolder) -> None:
    found = run(tiny, {"trouble": "oom", "at": 1}, resources=MEMORY, budget={"trials": 8})
    assert found.returncode == 1
    assert "ran out of memory" in " ".join(found.stdout.split()), "wherever its lines end"
    assert {a.result.state for a in tiny.attempts()} == {"OOM"}
    assert not (tiny.folder / "best.yaml").exists()
    tiny.assert_complete()


@pytest.mark.slow
@pytest.mark.fault(17)
def test_a_study_whose_every_trial_raises_ends_after_two_and_shows_the_error(
    tiny: StudyFolder,
) -> None:
    found = run(tiny, {"trouble": "raise", "at": 1}, budget={"trials": 8})
    assert found.returncode == 1
    assert "ValueError: planted error (tiny.py:17, in _raise)" in found.stdout
    assert f"autotune logs {tiny.name} --trial 0" in found.stdout
    assert found.stdout.splitlines()[-1] == f"Mend it, then: autotune resume {tiny.name}."
    assert [a.result.state for a in tiny.attempts()] == ["ERROR"] * 2
    assert tiny.study().state == "FAILED"
    assert "ValueError: planted error" in tiny.run("logs", tiny.name, "--trial", "0").stdout


@pytest.mark.slow
@pytest.mark.fault(16)
def test_a_nan_loss_never_completes(tiny: StudyFolder) -> None:
    # From the first step on: a later one is not reached where a slow beginning ends the trial.
    found = run(tiny, {"trouble": "nan", "above": 4, "at": 1}, budget={"trials": 7})
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=7)
    large = [a for a in tiny.recorded() if a.knobs["micro_batch"] > 4]
    assert large
    assert {a.result.state for a in large} == {"ERROR"}
    assert {a.purpose for a in large} == {"search"}
    assert all("nan" in a.result.cause for a in large)


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(7)
@pytest.mark.parametrize("trouble", ["hang", "stop"])
def test_a_hang_is_recorded_with_its_rank_and_the_study_goes_on(
    tiny: StudyFolder, trouble: str
) -> None:
    found = run(
        tiny,
        {"trouble": trouble, "above": 4, "at": 2},  # the first step has a timeout of its own
        search_space={"micro_batch": [1, 2, 4, 8]},
        measurement=quick_measurement(step_timeout=4),
    )
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=4)
    hung = searched(tiny, "HANG")
    assert [a.knobs["micro_batch"] for a in hung] == [8]
    assert hung[0].result.cause.startswith("rank 1:")
    assert ("process is stopped" in hung[0].result.cause) == (trouble == "stop")
    tiny.wait_nothing_runs()


def assert_error_is_recorded(tiny: StudyFolder, text: str) -> None:
    (tiny.folder / "unspeakable.py").write_text(UNSPEAKABLE)
    tiny.write(
        workload={"name": "unspeakable:build", "args": {"text": text}},
        resources={"workers": 1},
        search_space={"micro_batch": [2, 8]},
        budget={"trials": 2},
    )
    found = tiny.spawn("start", "study.yaml", "--foreground")
    tiny.wait_state("DONE", "FAILED", timeout=400)
    assert found.wait() == 0, found.output()
    tiny.assert_complete(trials=2)
    assert [a.result.state for a in tiny.recorded("search")] == ["COMPLETE", "ERROR"]
    assert "no such file" in tiny.recorded("search")[1].result.cause


@pytest.mark.slow
def test_an_error_with_a_nul_is_recorded(tmp_path: Path, postgres_url: str) -> None:
    """PostgreSQL keeps no NUL in a text."""
    with study_folder(tmp_path, postgres_url) as tiny:
        assert_error_is_recorded(tiny, "\\x00")


@pytest.mark.slow
def test_an_error_with_half_a_surrogate_is_recorded(tiny: StudyFolder) -> None:
    """As Python shows a byte in a file name that is not UTF-8; no UTF-8 text holds it."""
    assert_error_is_recorded(tiny, "\\udcff")


FAILS_LATER = """
import os
from pathlib import Path

import tiny


def build():
    workload = tiny.build()
    counted = []

    def loss(model, batch):
        if len(batch[0]) == 8 and not counted:
            runs = Path("runs")
            counted.append(int(runs.read_text()) if runs.exists() else 0)
            runs.write_text(str(counted[0] + 1))
        if counted and counted[0] >= 2:
            raise ValueError("not again")
        return workload.loss(model, batch)

    return type(workload)(workload.model, workload.dataset, loss, workload.optimizer)
"""


@pytest.mark.slow
def test_a_finalist_that_fails_in_its_second_round_is_dropped(
    tmp_path: Path, postgres_url: str
) -> None:
    """Its ratio rests on one round: an interval without end, which is no JSON."""
    with study_folder(tmp_path, postgres_url) as tiny:
        (tiny.folder / "fails.py").write_text(FAILS_LATER)
        tiny.write(
            workload="fails:build",
            resources={"workers": 1},
            search_space={"micro_batch": [2, 8]},
            budget={"trials": 2},
            measurement=quick_measurement(rounds=3),
        )
        found = tiny.spawn("start", "study.yaml", "--foreground", "--json")
        tiny.wait_state("DONE", "FAILED", timeout=400)
        assert found.wait() == 0, found.output()
        tiny.assert_complete(trials=2)
        verdict = tiny.study().verdict
        assert verdict is not None
        assert verdict["trial"] == 0
        assert [f["dropped_after_round"] for f in verdict["finalists"]] == [None, 2]
        status = tiny.run("status", tiny.name, "--json", "--storage", tiny.url).stdout
        json.loads(status, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        again = tiny.run("report", tiny.name, "--recompute", "--json", "--storage", tiny.url)
        assert again.returncode == 0, again.stderr
