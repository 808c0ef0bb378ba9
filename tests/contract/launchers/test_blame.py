"""Of several failures, the one that came first is the cause, however late an agent looks."""

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from autotune.worker.protocol import BlockPlan, BlockReport, Outcome
from tests.contract.launchers.sites import HASTY, Site, sites

pytestmark = pytest.mark.timeout(600)


@contextlib.contextmanager
def waking_agents(site: Site, after: float) -> Iterator[None]:
    """An agent that is stopped goes on so many seconds later."""
    over = threading.Event()

    def wake() -> None:
        while not over.wait(0.05):
            stopped = [a for a in site.agents() if a.status() == psutil.STATUS_STOPPED]
            time.sleep(after if stopped else 0)
            for agent in stopped:
                agent.resume()

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        yield
    finally:
        over.set()
        waker.join()


@sites("local")
@pytest.mark.long
def test_block_in_which_a_node_was_suspended_says_so(site: Site) -> None:
    told: list[float] = []

    def suspend(block: BlockReport) -> bool:
        told.append(block.observed.get("stood_still", 0.0))
        if block.index == 1:
            stopped = [one for agent in site.agents() for one in (agent, *agent.children(True))]
            for one in stopped:
                one.suspend()
            time.sleep(4.0)
            for one in reversed(stopped):
                one.resume()
        return block.index == 4

    asked = site.request(args={"sleep": 2.0}, blocks=BlockPlan(0.1, 1, 5))
    report = site.slot.run_solo(asked, suspend)
    assert (report.outcome, report.cause) == (None, "")
    assert told[2] >= 4.0
    assert told[:2] + told[3:] == [0.0] * 4


@pytest.mark.fault(7)
@sites("cluster")
def test_a_hang_is_blamed_on_the_rank_behind_though_another_node_sees_it_first(site: Site) -> None:
    with waking_agents(site, after=2.5 * HASTY.step):
        report = site.run("odd:build", args={"deed": "stop agent, hang"}, timeouts=HASTY)
    assert report.outcome is Outcome.HANG
    assert (
        report.cause
        == f"rank 1: a step took more than {HASTY.step:g} s (measurement.step_timeout); "
        "the others wait for it"
    )


@sites("local")
def test_the_first_failure_is_the_cause_even_if_the_agent_is_slow(site: Site) -> None:
    # A busy node: when the agent gets to look, both the error and its echo on rank 0 are there.
    with waking_agents(site, after=0.7):
        report = site.run("odd:build", args={"deed": "stop agent, raise"})
    assert report.outcome is Outcome.ERROR
    assert report.cause.startswith("rank 1: ValueError: planted error (")


@pytest.mark.slow
@sites("pair")
def test_the_first_failure_is_the_cause_on_whatever_node_it_was(site: Site) -> None:
    causes = [
        (rank, site.run(args={"trouble": "raise", "rank": rank}).cause) for rank in [0, 1, 2] * 4
    ]
    said = "ValueError: planted error (tiny.py:17, in _raise)"
    assert causes == [(rank, f"rank {rank}: {said}") for rank in [0, 1, 2] * 4]
