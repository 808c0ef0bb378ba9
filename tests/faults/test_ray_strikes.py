"""A study on a Ray cluster whose nodes die or stall: it goes on, and nothing is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.views.overview import status_of
from tests.faults.ray_nodes import RayNodes
from tests.faults.ray_strikes import (
    RayStudy,
    all_restarted,
    head_away,
    head_restarted,
    link_cut,
    node_drained,
    node_frozen,
    packets_lost,
    raylet_beside_killed,
    raylet_elsewhere_killed,
    survive,
)
from tests.support.nodes import refusal_to_lose
from tests.support.waiting import wait_for

STANDSTILL = 10.0
"""Seconds of a block: ten times what one lasts, less than half of what anything here stands still."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(
    ("strike", "ranks"),
    [
        pytest.param(raylet_beside_killed, 2, marks=pytest.mark.fault(23)),
        pytest.param(raylet_elsewhere_killed, 2, marks=pytest.mark.fault(23)),
        pytest.param(raylet_elsewhere_killed, 1, marks=pytest.mark.fault(23)),
        pytest.param(head_restarted, 2, marks=pytest.mark.fault(23)),
        pytest.param(head_away, 2, marks=pytest.mark.fault(23)),
        pytest.param(all_restarted, 2, marks=pytest.mark.fault(23)),
        pytest.param(node_frozen, 2, marks=pytest.mark.fault(24)),
        pytest.param(link_cut, 2, marks=pytest.mark.fault(24)),
        pytest.param(node_drained, 1, marks=pytest.mark.fault(23)),
        pytest.param(packets_lost, 2, marks=pytest.mark.fault(24)),
    ],
)
def test_a_study_outlives_it(
    nodes: RayNodes, strike: Callable[[RayNodes], None], ranks: int, tmp_path: Path
) -> None:
    if strike is packets_lost and (why := refusal_to_lose()):
        pytest.skip(why)
    study = RayStudy(nodes, tmp_path / "project", ranks=ranks)
    recovery = survive(study, strike)
    print(strike.__doc__, recovery)
    assert recovery.next_trial < recovery.back + 120, "a minute, on a machine with nothing else"
    assert (recovery.missing, recovery.repeated, recovery.blamed) == (0, 0, 0)
    told = [study.repository.attempts.blocks(a.id) for a in study.recorded("search")]
    longest = max(block.seconds for blocks in told for block in blocks if block.kept)
    assert longest < STANDSTILL, "what stood still is no measurement"


@pytest.mark.fault(24)
def test_status_is_true_while_a_node_is_away(nodes: RayNodes, tmp_path: Path) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=1, trials=40)
    study.start()
    study.wait_for_trials(2)

    def slots() -> tuple[int, int, str]:
        found = status_of(study.repository, study.name)["slots"] or {}
        away = ", ".join(found.get("away", ()))
        return found.get("alive", 0), found.get("planned", 0), away

    wait_for(lambda: slots() == (3, 3, ""), "all three work")
    with nodes.far.frozen():
        silent = (2, 3, f"far ({nodes.far.address}) fell silent")
        wait_for(lambda: slots() == silent, "one of them is missed", 60)
    wait_for(lambda: slots()[:2] == (3, 3), "all three work again", 300)
    study.wait_done()
    study.check_nothing_is_left()


@pytest.mark.fault(3)
def test_a_paused_daemon_gives_up_what_it_holds(nodes: RayNodes, tmp_path: Path) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=1, trials=12)
    study.start()
    study.wait_for_trials(2)
    daemons = nodes.near.processes("autotune daemon")
    for process in daemons:
        process.suspend()
    nodes.wait_all_free()
    for process in daemons:
        process.resume()
    study.wait_done()
    study.check_nothing_is_left()
