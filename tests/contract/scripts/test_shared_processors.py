"""Ranks of a script on a machine with fewer processors than ranks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.runs.study_setup import launcher_of
from autotune.standalone.launch_command import taken_apart
from autotune.standalone.survey import Allowed, _spec
from tests.contract.scripts.bench import RANKS, SCRIPTS, Bench, assert_well


@pytest.fixture
def one_processor() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.long
@pytest.mark.usefixtures("one_processor")
def test_ranks_beyond_the_processors_run_as_under_their_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPTS)
    launched = taken_apart(["torchrun", "--nproc-per-node", str(RANKS), "plain_ddp.py"])
    with launcher_of(_spec(launched, Allowed()), tmp_path / "agents") as launcher:
        assert launcher.ranks == RANKS
        assert len(launcher.notices()) == 1
        assert not launcher.notices(), "it is said once"
        bench = Bench(launcher.slots[0], tmp_path)
        report = bench.run("plain_ddp.py", "--epochs", "100000")
    assert_well(report)
    assert {len(block.rank_seconds) for block in report.blocks} == {RANKS}
