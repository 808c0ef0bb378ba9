"""A study that compares DDP with one process for all ranks: DataParallel."""

import json
from pathlib import Path

import pytest

from autotune.analysis.verdict import Verdict
from storage import Purpose
from tests.support.steering import quick_measurement, study_folder


@pytest.mark.errand
def test_ddp_and_one_process_compete_over_the_same_samples(tmp_path: Path) -> None:
    with study_folder(tmp_path) as tiny:
        tiny.write(
            search_space={"parallelism": ["ddp", "data_parallel"], "log_interval": [10, 50]},
            baseline={"micro_batch": 8, "log_interval": 10, "parallelism": "data_parallel"},
            budget={"trials": 4},
            measurement=quick_measurement(rounds=3, ablation_rounds=0),
        )
        found = tiny.run("start", "study.yaml", "--foreground", timeout=400)
        assert found.returncode == 0, found.stdout + found.stderr
        searched = tiny.attempts(Purpose.SEARCH)
        assert {a.knobs["parallelism"] for a in searched} == {"ddp", "data_parallel"}
        for attempt in searched:
            processes = 1 if attempt.knobs["parallelism"] == "data_parallel" else 2
            for block in tiny.repository.attempts.blocks(attempt.id):
                assert len(block.rank_seconds) == processes
                assert block.samples == 2 * 8 * block.steps
        told = tiny.run("report", tiny.name, "--recompute", "--json")
        assert told.returncode == 0, told.stdout + told.stderr
        again = json.loads(told.stdout)
        assert again["running"]["blocks"] > 0
        assert Verdict.from_dict(again["verdict"]) == Verdict.from_dict(tiny.study().verdict)
