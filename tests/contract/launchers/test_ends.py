"""A trial that is ended on purpose."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.worker.protocol import BlockPlan, BlockReport, TimeLimit, Timeouts
from tests.contract.launchers.sites import Site, WatchedLink, go_on, sites
from tests.support.trials import ENDLESS
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)


@sites("local", "ray", "slurm", "cluster")
def test_watch_ends_the_trial_and_nothing_of_it_is_left(site: Site) -> None:
    request = site.request(blocks=BlockPlan(0.01, 2, ENDLESS))
    seen: list[int] = []

    def watch(block: BlockReport) -> bool:
        seen.append(block.index)
        assert site.strays(), "this test would not see a rank that lives on"
        return block.index == 3

    report = site.slot.run_solo(request, watch)
    assert site.strays() == []
    assert report.outcome is None
    assert [block.index for block in report.blocks] == seen == [0, 1, 2, 3]
    assert len(site.agents()) == (2 if site.kind == "cluster" else 1)


@sites("local", "ray", "slurm", slow=["pair"])
def test_end_from_another_thread(site: Site) -> None:
    training = threading.Event()

    def watch(_: BlockReport) -> bool:
        training.set()
        return False

    with ending(site, training.is_set):
        report = site.slot.run_solo(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), watch)
    assert report.outcome is None
    assert report.blocks
    assert site.strays() == []
    site.check_next_trial()


@pytest.mark.long
@sites("local", "ray", "slurm", slow=["pair"])
def test_a_trial_is_ended_when_its_time_is_over_wherever_it_is(site: Site) -> None:
    """Its first step hangs for longer than anybody waits."""
    timeouts = Timeouts(startup=600.0, step=600.0)
    hanging = {"trouble": "hang", "at": 1}
    request = site.request(args=hanging, limit=TimeLimit(hard=3.0), timeouts=timeouts)
    report = site.slot.run_solo(request, go_on)
    assert report.outcome is None
    assert 3.0 <= report.wall_seconds < 60.0
    assert site.strays() == []
    site.check_next_trial()


@contextlib.contextmanager
def ending(site: Site, when: Callable[[], object]) -> Iterator[None]:
    """Another thread ends the trial once that is so."""

    def end() -> None:
        wait_for(when, "the moment to end the trial")
        site.slot.end()

    thread = threading.Thread(target=end)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@sites("local")
def test_end_while_a_factory_hangs(site: Site) -> None:
    request = site.request("odd:stuck", timeouts=Timeouts(startup=1000, step=1000))
    stuck = Path(request.workdir, "stuck")
    stuck.unlink(missing_ok=True)  # of an earlier test in this folder
    with ending(site, stuck.exists):
        report = site.slot.run_solo(request, go_on)
    assert (report.outcome, report.blocks) == (None, ())
    assert site.strays() == []


@sites("local")
def test_end_with_nothing_running_does_not_end_the_next_trial(site: Site) -> None:
    site.slot.end()
    site.check_next_trial()


@sites("pair")
@pytest.mark.long
def test_end_is_not_lost_while_the_trial_is_being_started(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_meanwhile() -> None:
        thread = threading.Thread(target=site.slot.end)
        thread.start()
        thread.join(1)  # it may have to wait until the trial has been started

    monkeypatch.setattr(WatchedLink, "before_start", end_meanwhile)
    # A trial that has missed its end goes on until the test is given up.
    report = site.slot.run_solo(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), go_on)
    assert report.outcome is None


@pytest.mark.long
@sites("local")
def test_end_is_not_lost_while_a_dead_agent_is_replaced(site: Site) -> None:
    def kill_agent(_: BlockReport) -> bool:
        for agent in site.agents():
            agent.kill()
        return False

    assert site.slot.run_solo(
        site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), kill_agent
    ).lost_agent
    with ending(site, site.agents):
        report = site.slot.run_solo(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), go_on)
    assert report.outcome is None


@pytest.mark.long
@sites("local", "pair")
def test_a_watch_that_raises_leaves_nothing_running(site: Site) -> None:
    class StorageDown(Exception):
        pass

    def watch(_: BlockReport) -> bool:
        raise StorageDown

    with pytest.raises(StorageDown):
        site.slot.run_solo(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), watch)
    strays = site.strays()
    site.check_next_trial()
    assert strays == []
