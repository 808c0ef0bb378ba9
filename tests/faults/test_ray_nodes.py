"""A study on a Ray cluster whose nodes die, stall or are taken: it goes on, and nothing is lost."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.ray_nodes import RayNodes, ray_nodes, refusal
from tests.faults.ray_strikes import (
    RayStudy,
    all_restarted,
    head_away,
    head_restarted,
    link_cut,
    node_frozen,
    raylet_beside_killed,
    raylet_elsewhere_killed,
    survive,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("ray")]

_HOLDER = """
import sys, time
import ray
from ray.util.placement_group import placement_group

ray.init(address="auto", log_to_driver=False)
group = placement_group([{"CPU": 1}] * int(sys.argv[1]), strategy="SPREAD")
ray.get(group.ready())
print("held", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    if why := refusal():
        pytest.skip(why)
    with ray_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


@contextlib.contextmanager
def held(nodes: RayNodes, processors: int, folder: Path) -> Iterator[None]:
    """Somebody else has so many processors of the cluster."""
    program = folder / "holder.py"
    program.write_text(_HOLDER)
    holder = nodes.far.spawn(sys.executable, str(program), str(processors), cwd=folder)
    free = f"{3 - processors}.0" if processors < 3 else "None"
    code = "print(ray.available_resources().get('CPU'))"
    try:
        wait_for(lambda: nodes.ask(code) in (free, "0.0"), "they are held")
        yield
    finally:
        for process in nodes.far.processes("holder.py"):
            process.kill()
        holder.wait()


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
    ],
)
def test_a_study_outlives_it(
    nodes: RayNodes, strike: Callable[[RayNodes], None], ranks: int, tmp_path: Path
) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=ranks)
    recovery = survive(study, strike)
    print(strike.__doc__, recovery)
    assert recovery.next_trial < recovery.back + 120, "a minute, on a machine with nothing else"
    blamed = [a for a in study.recorded() if a.result.state not in ("COMPLETE", "PRUNED")]
    assert blamed == []
    slowest = [a for a in study.recorded("search") if (a.result.block_half_width or 0) > 10]
    assert slowest == [], "what stood still is no measurement"


@pytest.mark.fault(25)
def test_a_busy_cluster_is_waited_for(nodes: RayNodes, tmp_path: Path) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=2, trials=3)
    with held(nodes, 3, tmp_path):
        study.start()
        told = wait_for(lambda: study.waits, "it says for whom it waits")
        assert "holder.py" in told
        assert "since " in told
        spent = study.study().elapsed
        time.sleep(5)
        assert study.study().elapsed == spent, "that time does not count"
        assert study.attempts() == []
        assert "WAITING" in study.command("status", study.name)
    study.wait_done()
    study.check_nothing_is_left()


@pytest.mark.fault(25)
def test_a_study_that_waits_for_a_cluster_can_be_stopped_at_once(
    nodes: RayNodes, tmp_path: Path
) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=2, trials=3)
    with held(nodes, 3, tmp_path):
        study.start()
        wait_for(lambda: study.waits, "it waits")
        study.repository.studies.request_stop(study.name)
        began = time.monotonic()
        wait_for(lambda: study.study().state == "STOPPED", "it is stopped")
        assert time.monotonic() - began < 3, "a second, on a machine with nothing else"
    study.check_nothing_is_left()


@pytest.mark.fault(25)
def test_a_study_begins_with_what_is_free_and_takes_the_rest_when_it_comes(
    nodes: RayNodes, tmp_path: Path
) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=1, trials=40)
    with held(nodes, 1, tmp_path):
        study.start()
        study.wait_for_trials(2)
        assert "2 trials at a time" in study.said
    wait_for(lambda: "3 trials at a time" in study.said, "the third processor is used", 300)
    study.wait_done()
    study.check_nothing_is_left()
