"""Finalists run once on the longest samples of their data; what outgrows the memory is no choice."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from autotune.analysis.verdict import Verdict
from autotune.export.writing import document
from autotune.views.figures import figures_of
from autotune.views.markdown_report import report
from autotune.views.recompute import recomputed_verdict
from autotune.worker.protocol import Outcome
from launchers.replay import ENVIRONMENT, Launch
from tests.control.replayed import PLAIN, Replayed
from tests.support.behaviours import where

GIB = 2**30
GPU = {"name": "played", "memory_bytes": 16 * GIB, "capability": [9, 0]}
ON_GPU: Mapping[str, Any] = {**ENVIRONMENT, "devices": [GPU, GPU]}
SPACE = {"micro_batch": [1, 2, 4, 8]}
TOLD = where(PLAIN, lambda _: True, tells_longest=True, peak_bytes=10 * GIB)
KNOWN = where(TOLD, lambda launch: launch.request.longest, peak_bytes=13 * GIB)


def too_long(launch: Launch) -> bool:
    return launch.request.longest and launch.knobs["micro_batch"] == 8


def test_the_verdict_says_what_the_longest_samples_take(played: Replayed) -> None:
    verdict = played.on(KNOWN, environment=ON_GPU).run(search_space=SPACE)
    runs = played.recorded("longest")
    assert len(runs) == 2
    assert verdict["knobs"] in [run.knobs for run in runs]
    known = {"peak": 10 * GIB, "longest": 13 * GIB, "limit": 16 * GIB, "untold": ""}
    assert verdict["memory"] == known
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict
    text = report(played.repository, played.name, Verdict.from_dict(verdict))
    assert "- peak memory with the longest samples: 13,312 MiB" in text
    assert "- memory left free by them: 18.8%" in text
    written = document(
        verdict=again, text="", unit="samples/s", world_size=2, environment={}, created="now"
    )
    wanted = {"peak": 10 * GIB, "longest_samples": 13 * GIB, "limit": 16 * GIB}
    assert written["provenance"]["memory_bytes"] == wanted


@pytest.mark.long
def test_what_outgrows_the_memory_is_no_choice(played: Replayed) -> None:
    """The fastest fits with what it sees in its first minutes; the next one has its place."""
    outgrown = where(KNOWN, too_long, outcome=Outcome.OOM, cause="rank 1: no memory")
    verdict = played.on(outgrown, environment=ON_GPU).run(search_space=SPACE)
    assert played.states("longest") == ["OOM", "COMPLETE", "COMPLETE"]
    assert verdict["knobs"]["micro_batch"] == 4
    assert verdict["outgrown"]["count"] == 1
    assert verdict["outgrown"]["knobs"]["micro_batch"] == 8
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict
    trust = figures_of(played.repository, played.study()).trust
    assert "rival" not in {point.code for point in trust}, "it cannot be as good"


def test_where_nobody_knows_them_nothing_runs_and_the_report_says_so(played: Replayed) -> None:
    mute = where(KNOWN, lambda _: True, tells_longest=False)
    verdict = played.on(mute, environment=ON_GPU).run(search_space=SPACE)
    assert played.attempts("longest") == []
    assert (verdict["memory"]["peak"], verdict["memory"]["longest"]) == (10 * GIB, None)
    text = report(played.repository, played.name, Verdict.from_dict(verdict))
    assert "not run: the workload does not say which they are" in text


@pytest.mark.long
def test_a_finalist_that_does_not_know_them_keeps_no_other_from_its_run(played: Replayed) -> None:
    mute = where(KNOWN, lambda launch: launch.knobs["micro_batch"] == 8, tells_longest=False)
    played.on(mute, environment=ON_GPU).run(search_space=SPACE)
    assert [run.knobs["micro_batch"] for run in played.recorded("longest")] == [4]
