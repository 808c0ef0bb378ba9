"""What a rank prints, and where one finds it."""

import re
from pathlib import Path

import pytest

from autotune.worker.protocol import BlockPlan, Outcome
from tests.contract.launchers.sites import HASTY, Site, end_at, sites
from tests.support.trials import ENDLESS

pytestmark = pytest.mark.timeout(600)


@pytest.mark.long
@sites("local", "ray", "slurm")
@pytest.mark.parametrize("deed", ["", "exit", "hang"])
def test_the_log_of_a_rank_holds_what_it_printed(site: Site, deed: str) -> None:
    if deed == "hang" and site.kind == "ray":
        pytest.skip("the same agent writes it")
    request = site.request(
        "odd:talking",
        args={"deed": deed},
        blocks=BlockPlan(0.01, 2, ENDLESS),
        timeouts=HASTY,
    )
    site.slot.run_solo(request, end_at(20))
    for rank in range(site.world_size):
        content = Path(request.log_dir, f"rank-{rank}.log").read_text()
        assert "a complaint" in content
        assert f"hello from rank {rank}" in content


@sites("local")
def test_a_log_does_not_grow_for_ever(site: Site) -> None:
    request = site.request(
        "odd:talking", args={"deed": "print much"}, blocks=BlockPlan(0.01, 2, ENDLESS)
    )
    report = site.slot.run_solo(request, end_at(20))
    assert report.outcome is None, report.cause
    for rank in range(site.world_size):
        log = Path(request.log_dir, f"rank-{rank}.log")
        assert log.stat().st_size < 2 * 2**20
        content = log.read_text()
        assert content.startswith(
            "[autotune: the log was longer than 67108864 bytes; here is its end]"
        )
        assert 1000 * "much\n" in content
        assert "and the last" in content


@sites("local")
def test_the_tail_of_a_failed_rank_is_in_the_report(site: Site) -> None:
    report = site.run(args={"trouble": "raise"})
    assert "ValueError: planted error" in report.log_tail
    assert "tiny.py" in report.log_tail


@sites("local")
def test_the_log_of_a_hang_holds_the_stack_of_the_rank_that_hangs(site: Site) -> None:
    report = site.run(args={"trouble": "hang", "rank": 0, "at": 3}, timeouts=HASTY)
    assert report.outcome is Outcome.HANG
    assert report.cause.startswith("rank 0: ")
    assert re.search(r'tiny\.py", line \d+ in loss', report.log_tail), report.log_tail
