"""A real study that is stopped at ten random moments: each time it has something in hand."""

import json
import random
import time

import pytest

import autotune
from autotune.analysis.verdict import Verdict
from tests.control.test_current_verdict import assert_agrees
from tests.support.steering import StudyFolder, quick_measurement
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

SPACE = {"micro_batch": [1, 2, 4, 8], "log_interval": [1, 10]}


def test_report_and_export_answer_each_time(tiny: StudyFolder) -> None:
    moments = random.Random(5)
    tiny.write(
        resources={"workers": 1},
        search_space=SPACE,
        workload={"name": "tiny:build", "args": {"sleep": 0.02}},
        budget={"trials": 8, "min_improvement": 0},
        measurement=quick_measurement(rounds=5, finalists=2),
    )
    answered = 0
    for _ in range(10):
        recorded = len(tiny.recorded())
        tiny.run("start", "study.yaml", "--detach")
        wanted = recorded + moments.randint(0, 2)
        wait_for(
            lambda: tiny.study().state == "DONE" or len(tiny.recorded()) >= wanted,  # noqa: B023
            "more is recorded, or there is no more",
        )
        time.sleep(moments.uniform(0, 1))
        tiny.ask("stop", tiny.name)
        tiny.wait_state("STOPPED", "DONE")
        answered += look(tiny)
    assert answered > 5
    assert tiny.run("start", "study.yaml").returncode == 0
    tiny.assert_complete(trials=8)
    assert not autotune.load(tiny.folder / "best.yaml").provisional


def look(tiny: StudyFolder) -> bool:
    """Whether there was an answer; it agrees with the records."""
    told = tiny.ask("report", tiny.name, "--json")
    verdict = Verdict.from_dict(json.loads(told.stdout)["verdict"])
    assert verdict.provisional == (tiny.study().state != "DONE")
    if verdict.provisional:
        assert_agrees(verdict, tiny)
    given = tiny.ask("export", tiny.name)
    assert given.returncode == (2 if verdict.trial is None else 0), given.stderr
    if verdict.trial is None:
        return False
    text = (tiny.folder / "best.yaml").read_text()
    assert f"provisional: {str(verdict.provisional).lower()}" in text
    assert f"trial: {verdict.trial}\n" in text
    return True
