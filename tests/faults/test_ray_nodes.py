"""A study on a Ray cluster whose nodes are taken, come late or are not alike."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import autotune
from tests.faults.ray_nodes import RayNodes
from tests.faults.ray_strikes import RayStudy
from tests.support.waiting import stopwatch, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

_HELD_SECONDS = 120
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


def hosts(study: RayStudy) -> set[str]:
    """That its attempts ran on."""
    found = [study.repository.environments.of_attempt(a.id) for a in study.recorded()]
    return {str(one["host"]) for one in found if one}


@pytest.mark.fault(25)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_busy_cluster_is_waited_for(nodes: RayNodes, tmp_path: Path, ranks: int) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=ranks, trials=3)
    with held(nodes, 3, tmp_path):
        began = time.monotonic()
        study.start()
        told = wait_for(lambda: study.waits, "it says for whom it waits")
        assert "holder.py" in told
        assert "since " in told
        spent = study.study().elapsed
        time.sleep(max(0.0, began + _HELD_SECONDS - time.monotonic()))
        assert study.study().elapsed == spent, "that time does not count"
        assert study.attempts() == []
        assert "WAITING" in study.command("status", study.name)
    study.wait_done()
    study.check_nothing_is_left()


@pytest.mark.fault(25)
def test_a_study_that_waits_for_a_cluster_can_be_stopped_meanwhile(
    nodes: RayNodes, tmp_path: Path
) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=2, trials=3)
    with held(nodes, 3, tmp_path):
        study.start()
        wait_for(lambda: study.waits, "it waits")
        study.repository.studies.request_stop(study.name)
        stopping = stopwatch()
        wait_for(lambda: study.study().state == "STOPPED", "it is stopped while nothing is free")
        print(f"stopped in {stopping():.2f} s")
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


@pytest.mark.fault(25)
def test_a_node_that_joins_in_the_middle_of_a_study_is_used(
    nodes: RayNodes, tmp_path: Path
) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=1, trials=110)
    study.start()
    study.wait_for_trials(2)

    with nodes.another():
        wait_for(lambda: "4 trials at a time" in study.said, "it is seen", 300)
        wait_for(lambda: "late" in hosts(study), "trials run on it", 300)
    study.wait_done()
    study.check_nothing_is_left()


@pytest.mark.fault(29)
def test_nodes_need_not_share_a_file_system(nodes: RayNodes, tmp_path: Path) -> None:
    study = RayStudy(nodes, tmp_path / "project", ranks=2, trials=3)
    code = tmp_path / "tiny.py"
    code.write_text((study.folder / "tiny.py").read_text())
    with nodes.far.own(study.folder):
        nodes.far.must("cp", str(code), str(study.folder))
        study.start()
        study.wait_done()
        left = nodes.far.must("find", str(study.folder), "-name", "rank-*.log")
        assert left == "", "what a trial has left there is brought, or dropped"
    told = study.command("logs", study.name, "--trial", "0")
    assert "rank-0.log" in told
    assert "rank-1.log" in told
    assert list(study.folder.rglob("trace-1.json.gz")), "of the look at the baseline"
    study.check_nothing_is_left()


@pytest.mark.fault(29)
def test_another_version_on_a_node_is_found_before_the_first_trial(
    nodes: RayNodes, tmp_path: Path
) -> None:
    ours = Path(autotune.__file__)
    other = tmp_path / "other.py"
    other.write_text(ours.read_text().replace(autotune.__version__, "0.0.1"))
    study = RayStudy(nodes, tmp_path / "project", ranks=1, trials=3)
    with nodes.far.showing(ours, other):
        study.start()
        study.wait_done()
    why = f"autotune 0.0.1 is installed there and {autotune.__version__} here"
    assert f"Left out: node far ({nodes.far.address}): {why}; install autotune" in study.said
    assert hosts(study) <= {"near", "head"}
    study.check_nothing_is_left()


def test_a_study_runs_on_one_kind_of_device(nodes: RayNodes, tmp_path: Path) -> None:
    other = tmp_path / "cpuinfo"
    other.write_text("processor\t: 0\nmodel name\t: Another CPU\n")
    study = RayStudy(nodes, tmp_path / "project", ranks=1, trials=3)
    with nodes.far.showing(Path("/proc/cpuinfo"), other):
        study.start()
        study.wait_done()
    assert "Another CPU on 1; this study runs on " in study.said
    assert f"Left out: node far ({nodes.far.address}): it has Another CPU, and this" in study.said
    assert hosts(study) <= {"near", "head"}
    study.check_nothing_is_left()
