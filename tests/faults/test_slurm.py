"""A study in an allocation of a real Slurm, whose parts die or are taken, goes on and loses nothing."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import EVERY_OWNER, Quota
from tests.faults import slurm_nodes
from tests.faults.slurm_nodes import SlurmNodes, SlurmStudy
from tests.support import nodes, slurm
from tests.support.steering import quick_measurement
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.fault(34)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    if why := slurm.refusal() or nodes.refusal():
        pytest.skip(why)
    with slurm_nodes.slurm_nodes(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.mark.sample
@pytest.mark.parametrize(
    ("strike", "ranks"),
    [
        (slurm_nodes.cancelled, 2),
        (slurm_nodes.told_to_leave, 1),
        (slurm_nodes.requeued, 2),
        (slurm_nodes.node_killed, 1),
        (slurm_nodes.node_killed, 2),
        (slurm_nodes.step_cancelled, 2),
        (slurm_nodes.steps_told, 2),
        (slurm_nodes.agent_killed, 2),
        (slurm_nodes.node_drained, 2),
        (slurm_nodes.node_frozen, 2),
        (slurm_nodes.daemon_killed, 2),
        (slurm_nodes.controller_restarted, 2),
    ],
)
def test_study_in_an_allocation_outlives_it(
    cluster: SlurmNodes, strike: Callable[[SlurmStudy], None], ranks: int, tmp_path: Path
) -> None:
    study = SlurmStudy(cluster, tmp_path / "project", ranks=ranks)
    recovery = slurm_nodes.survive(study, strike)
    print(strike.__doc__, recovery)
    assert (recovery.missing, recovery.repeated, recovery.blamed) == (0, 0, 0)


@pytest.mark.parametrize(
    ("partition", "ranks"),
    [
        ("requeue", 2),
        ("requeue-later", 1),
        ("cancel", 2),
        ("cancel-later", 2),
        ("suspend", 1),
    ],
)
def test_study_goes_on_after_a_job_that_preempts_it(
    cluster: SlurmNodes, partition: str, ranks: int, tmp_path: Path
) -> None:
    study = SlurmStudy(cluster, tmp_path / "project", ranks=ranks, partition=partition)
    recovery = slurm_nodes.survive(study, slurm_nodes.preempted)
    print(slurm_nodes.PREEMPTED[partition], recovery)
    assert (recovery.missing, recovery.repeated, recovery.blamed) == (0, 0, 0)


def test_no_figure_spans_a_suspension(cluster: SlurmNodes, tmp_path: Path) -> None:
    """Blocks outlast the 2 s that Slurm leaves the ranks after it has stopped the daemon."""
    study = SlurmStudy(cluster, tmp_path / "project", ranks=2, partition="suspend", trials=3)
    study.write(
        measurement=quick_measurement(
            warmup=0.5,
            max_measure_time=30,
            search_ci_half_width=1e-3,
            block_seconds=12,
            step_timeout=60,
        )
    )
    study.submit(f"--nodes={len(cluster.workers)}")
    study.wait_for_trials(1)
    wait_for(
        lambda: any(time.time() - a.started > 6 for a in study.attempts("search") if a.running),
        "a trial is in the midst of its blocks",
    )
    slurm_nodes.preempted(study)
    study.wait_done()
    study.check_nothing_is_left()
    assert study.losses(study.wanted) == (0, 0)
    assert all(a.result.state in ("COMPLETE", "PRUNED") for a in study.recorded())
    assert any(a.result.state == "LOST" for a in study.attempts()), "no block was cut"
    assert study.longest_block() < slurm_nodes.URGENT_SECONDS - 3


def test_study_waits_for_nodes_that_another_job_has(cluster: SlurmNodes, tmp_path: Path) -> None:
    holder = cluster.told("sbatch", "--parsable", "--nodes=3", "--wrap=sleep 3600", "-o/dev/null")
    wait_for(lambda: set(cluster.states()) == {"allocated"}, "another job has all nodes")
    study = SlurmStudy(cluster, tmp_path / "project", ranks=2)
    study.submit(f"--nodes={len(cluster.workers)}", wait=False)
    assert study.state == "PENDING"
    cluster.control.must("scancel", holder)
    wait_for(study.is_known, "the job has begun the study")
    study.wait_done()
    study.check_nothing_is_left()
    assert study.losses(study.wanted) == (0, 0)


def test_study_of_one_node_goes_on_upon_another_one(cluster: SlurmNodes, tmp_path: Path) -> None:
    study = SlurmStudy(cluster, tmp_path / "project", ranks=1, launcher="local")
    study.submit("--nodes=1")
    study.wait_for_trials(2)
    first = study.first
    update = ("scontrol", "update", f"nodename={first.name}")
    cluster.control.must(*update, "state=drain", "reason=maintenance")
    try:
        study.signal("TERM")
        wait_for(lambda: study.state == "PENDING", f"it is requeued: {study.output}")
        wait_for(lambda: study.state == "RUNNING", f"it runs again: {study.output}")
        assert study.first is not first
        study.wait_done()
    finally:
        cluster.control.must(*update, "state=resume")
    study.check_nothing_is_left()


def test_job_of_a_study_that_may_not_run_gives_its_nodes_back(
    cluster: SlurmNodes, tmp_path: Path
) -> None:
    study = SlurmStudy(cluster, tmp_path / "project", ranks=1, launcher="local")
    study.repository.quotas.set(Quota(EVERY_OWNER, studies=0))
    study.submit("--nodes=1", "--export=ALL,AUTOTUNE_GIVE_UP_AFTER=5s")
    wait_for(lambda: study.state == "PENDING", f"it is requeued: {study.output}")
    assert "0 of 0 studies run" in study.output
    assert f"the job is held: scontrol release {study.job} begins it again" in study.output
    cluster.wait_all_free()
    study.repository.quotas.remove(EVERY_OWNER)
    cluster.control.must("scontrol", "release", study.job)
    study.wait_done()
    study.check_nothing_is_left()


def test_second_job_of_a_study_waits_for_the_first(cluster: SlurmNodes, tmp_path: Path) -> None:
    study = SlurmStudy(cluster, tmp_path / "project", ranks=1, launcher="local")
    study.submit("--nodes=1")
    study.submit("--nodes=1", wait=False)
    reason = cluster.told("squeue", "--noheader", "--format=%r", f"--job={study.job}")
    assert reason == "Dependency"
    study.wait_done()
    study.check_nothing_is_left()
    assert study.losses(study.wanted) == (0, 0)
