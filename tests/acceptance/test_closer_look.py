"""What a study says beside its verdict: the bottleneck, the first trials, the step, each knob's part."""

import gzip
import json
from collections.abc import Iterator

import pytest

from autotune.analysis.contributions import contributions
from storage import Attempts, Purpose
from tests.support.steering import StudyFolder, quick_measurement, study_folder

SPACE = {"micro_batch": [2, 4, 8, 16], "accumulation_steps": [1, 4], "log_interval": [1, 10]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyFolder]:
    """A study whose winner differs from the baseline: every forward pass sleeps."""
    with study_folder(tmp_path_factory.mktemp("closer")) as tiny:
        _start(tiny)
        yield tiny


def _start(tiny: StudyFolder) -> None:
    tiny.write(
        workload={"name": "tiny:build", "args": {"sleep": 0.004}},
        search_space=SPACE,
        baseline={"micro_batch": 2, "log_interval": 1},
        budget={"trials": 5},
        measurement=quick_measurement(rounds=5, ablation_rounds=2),
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.errand
def test_baseline_and_winner_are_looked_at_closely(finished: StudyFolder) -> None:
    verdict = finished.study().verdict
    assert verdict is not None and verdict["kind"] == "better", verdict
    winner, baseline = verdict["knobs"], finished.attempts(Purpose.SEARCH)[0].knobs

    profiles = finished.attempts(Purpose.PROFILE)
    assert [a.trial for a in profiles] == [0, verdict["trial"]]
    assert finished.attempts()[0] == profiles[0]  # before anything is searched
    first, second = finished.trials()[1:3]
    assert first.user_attrs["suggested_by"].startswith("it answers what holds the baseline back")
    assert "micro_batch" in first.user_attrs["suggested_by"]
    assert first.params["micro_batch"] == 8  # four times the baseline's
    assert second.number == 2

    found = contributions(Attempts(finished.attempts(), baseline), winner, baseline)
    changed = {name for name in winner if winner[name] != baseline[name]}
    assert {one.knob for one in found} == changed
    assert min(one.rounds for one in found) >= 2
    largest = next(one for one in found if one.knob == "micro_batch")
    assert largest.gain.value > 1.3
    assert largest.gain.low < largest.gain.value < largest.gain.high

    text = finished.run("report", finished.name).stdout
    for heading in (
        "### What holds the baseline back",
        "### What each change brings",
        "### Where a step's time goes",
    ):
        assert heading in text
    traces = [line.split("`")[1] for line in text.splitlines() if "trace-0.json.gz`" in line]
    assert len(traces) == 2
    for trace in traces:
        with gzip.open(trace, "rt") as opened:
            assert json.load(opened)["traceEvents"]


@pytest.mark.errand
def test_what_won_is_tried_first_in_the_next_study(finished: StudyFolder) -> None:
    won = finished.study().verdict
    assert won is not None
    again = StudyFolder(finished.folder, finished.url, name="again")
    again.write(
        workload={"name": "tiny:build", "args": {"sleep": 0.004}},
        search_space=SPACE,
        baseline={"micro_batch": 2, "log_interval": 1},
        budget={"trials": 2},
    )
    found = again.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    second = again.attempts(Purpose.SEARCH)[1]
    assert second.knobs == won["knobs"]
    assert f"study {finished.name} recommended it" in again.run("logs", "again").stdout


@pytest.mark.errand
def test_the_search_ends_when_another_trial_is_not_worth_it(tiny: StudyFolder) -> None:
    tiny.write(
        sampler="model",
        search_space={"micro_batch": [1, 2, 4, 8], "log_interval": [1, 5, 10]},
        budget={"trials": 12, "min_improvement": 0.9},
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    assert 6 <= len(tiny.attempts(Purpose.SEARCH)) < 12  # no sooner, and not never
    assert "The search ends: another trial is expected to bring" in found.stdout
    assert "(budget.min_improvement 90.00%, noise between runs" in found.stdout
    assert "The model takes" in tiny.run("logs", tiny.name).stdout
