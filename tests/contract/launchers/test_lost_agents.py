"""The agent itself dies, or what it forks its ranks from."""

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from autotune.errors import ClusterAway
from autotune.worker.protocol import BlockPlan, BlockReport, Outcome, TrialReport
from tests.contract.launchers.sites import Site, go_on, marked, sites, sites_to_close
from tests.support.trials import ENDLESS
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)


def run_with_grandchild_until(
    site: Site, strike: Callable[[], None], factory: str = "tiny:build", **args: Any
) -> TrialReport:
    """A trial with an escaping grandchild under which something is struck."""
    request = site.request(
        factory,
        args=args or {"trouble": "grandchild", "at": 2},
        blocks=BlockPlan(0.01, 2, ENDLESS),
    )

    def watch(block: BlockReport) -> bool:
        if block.index == 5:
            strike()
        return block.index > 2000

    return site.slot.run_solo(request, watch)


@pytest.mark.fault(5)
@sites("local", slow=["ray", "slurm", "pair"])
def test_a_trial_that_loses_its_agent(site: Site) -> None:
    before = {agent.pid for agent in site.agents()}
    report = run_with_grandchild_until(site, lambda: site.agents()[-1].kill())
    assert report.lost_agent is True
    assert report.outcome is Outcome.CRASH
    assert re.search(r"agent of node \d(, n1,)? died", report.cause)
    assert site.strays() == []
    site.check_next_trial()
    after = {agent.pid for agent in site.agents()}
    assert len(after) == len(before)
    assert not after & before


@sites("local", slow=["ray", "slurm"])
def test_an_agent_that_dies_between_trials_costs_no_trial(site: Site) -> None:
    site.check_next_trial()
    for agent in site.agents():
        agent.kill()
    wait_for(lambda: not site.agents() + site.strays(), "nothing is left of the agents")
    time.sleep(1)  # the slot may read of it
    site.check_next_trial()


@pytest.mark.fault(6)
@sites(slow=["ray", "slurm"])
def test_a_trial_that_loses_the_actor_of_its_agent(site: Site) -> None:
    report = run_with_grandchild_until(site, lambda: site.agents()[0].parent().kill())
    assert report.lost_agent is True
    assert site.strays() == []
    site.check_next_trial()


@sites("local")
@pytest.mark.long
def test_trials_after_one_that_killed_the_fork_server(site: Site) -> None:
    request = site.request(
        "odd:build", args={"deed": "kill fork server"}, blocks=BlockPlan(0.01, 2, 50)
    )
    try:
        assert site.slot.run_solo(request, go_on).outcome is Outcome.CRASH
        for _ in range(3):
            site.check_next_trial()
    finally:
        site.renew_agents()


@pytest.mark.sample
@pytest.mark.fault(6)
@pytest.mark.fault(23)
@sites_to_close(slow=["ray"])
def test_a_ray_driver_that_is_killed_takes_its_ray_along_and_nobody_else(site: Site) -> None:
    driver = site.slot._agents.links[0]._cluster.driver
    report = run_with_grandchild_until(site, lambda: os.kill(driver.pid, signal.SIGKILL))
    assert report.lost_agent is True
    assert report.not_its_own == driver.lost
    assert "the Ray driver of this machine has ended" in driver.lost
    with pytest.raises(ClusterAway, match="the Ray driver of this machine has ended"):
        site.run()
    site.close()
    wait_for(lambda: not marked(site.mark), "nothing of it is left")
