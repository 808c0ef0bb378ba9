"""A Slurm cluster of three nodes on one machine, see tests/support/nodes.py, and what is done to it.

slurmctld has a node of its own. The first process of each node starts what is of Slurm there, and starts
it again when it has ended, as systemd does.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from autotune.errors import StudyNotFound
from tests.faults.cluster_study import PATIENCE_SECONDS, ClusterStudy, Recovery
from tests.support.nodes import Network, Node, strike
from tests.support.slurm import SlurmFolder
from tests.support.waiting import wait_for

_NET = "10.78.0"
_CONTROL = f"{_NET}.9"
_WORKERS = {"n1": f"{_NET}.1", "n2": f"{_NET}.2", "n3": f"{_NET}.3"}
UNDISTURBED = "main"
"""Partition of jobs that nothing preempts."""
PREEMPTED = {
    "requeue": "PreemptMode=REQUEUE",
    "requeue-later": "PreemptMode=REQUEUE GraceTime=20",
    "cancel": "PreemptMode=CANCEL",
    "cancel-later": "PreemptMode=CANCEL GraceTime=20",
    "suspend": "PreemptMode=SUSPEND OverSubscribe=FORCE:1",
}
"""Further partitions, by what happens to their jobs when an urgent one wants the nodes."""
URGENT_SECONDS = 20
"""Time for which an urgent job keeps the nodes: longer than a lease."""
_LIFE = """
mount --bind {hosts} /etc/hosts
{beside}
while :; do
  [ -e {down} ] || {command} >> {log} 2>&1
  sleep 0.5
done
"""


class SlurmNode(Node):
    """One node: with slurmd, or the one with slurmctld."""

    def __init__(self, name: str, address: str, files: SlurmFolder, env: Mapping[str, str]) -> None:
        self._down = files.folder / f"{name}.down"
        control = address == _CONTROL
        life = _LIFE.format(
            hosts=files.folder / "hosts",
            beside=f"{' '.join(files.munged())} &" if control else "",
            down=self._down,
            command="slurmctld -D" if control else f"slurmd -D -N {name}",
            log=files.folder / f"{name}.out",
        )
        super().__init__(name, address, life, env)

    @contextlib.contextmanager
    def down(self, part: str = "") -> Iterator[None]:
        """All of its processes, or those with this in their command lines, are killed.

        Slurm is not started again before the end.
        """
        self._down.touch()
        try:
            struck = self.processes(part)
            assert struck, f"nothing like {part} runs on {self.name}"
            strike(struck, signal.SIGKILL)
            yield
        finally:
            self._down.unlink()


class SlurmNodes(Network):
    """The cluster."""

    def __init__(self, folder: Path, cpus: int = 1) -> None:
        super().__init__()
        nodes = {n: f"NodeAddr={a} CPUs={cpus} State=UNKNOWN" for n, a in _WORKERS.items()}
        self.files = SlurmFolder(folder, f"n0({_CONTROL})", nodes)
        self.files.add_preemption(PREEMPTED)
        lines = [f"{a} {n}" for n, a in {"n0": _CONTROL, **_WORKERS}.items()]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
        env = {**os.environ, **self.files.environment, "OMP_NUM_THREADS": "1"}
        self.control = self._add("n0", _CONTROL, env)
        wait_for((folder / "munge.sock").exists, "munged listens")
        self.workers = [self._add(name, address, env) for name, address in _WORKERS.items()]
        self.nodes = [self.control, *self.workers]

    def _add(self, name: str, address: str, env: Mapping[str, str]) -> SlurmNode:
        node = SlurmNode(name, address, self.files, env)
        self.join(node)
        return node

    def told(self, *command: str) -> str:
        """Return what a program of Slurm prints; empty while slurmctld does not answer."""
        found = self.control.run(*command, cwd=Path("/"), timeout=60)
        return found.stdout.strip() if found.returncode == 0 else ""

    def states(self) -> list[str]:
        """The state of each node."""
        asked = ("sinfo", "--noheader", "--Node", f"--partition={UNDISTURBED}", "--format=%T")
        return self.told(*asked).split()

    def state(self, job: str) -> str:
        """Return the state of a job; empty once Slurm has forgotten it."""
        return self.told("squeue", "--noheader", "--format=%T", f"--job={job}")

    def wait_all_free(self, timeout: float = 120) -> None:
        """All nodes are there, and no job holds any."""
        idle = ["idle"] * len(self.workers)
        wait_for(lambda: self.states() == idle, f"all are up, and free: {self.states()}", timeout)

    def steps(self, job: str) -> list[str]:
        """The steps of a job, but for the batch script."""
        found = self.told("squeue", "--noheader", "--steps", f"--job={job}", "--format=%i").split()
        return [step for step in found if not step.endswith((".batch", ".extern"))]

    def end(self) -> None:
        """Nothing of it is left."""
        for node in self.nodes:
            node.end()
        super().end()


@contextlib.contextmanager
def slurm_nodes(folder: Path) -> Iterator[SlurmNodes]:
    """The cluster, up."""
    nodes = SlurmNodes(folder)
    try:
        nodes.wait_all_free()
        yield nodes
    finally:
        nodes.end()


class SlurmStudy(ClusterStudy):
    """A study that is submitted as a batch job."""

    ours = ("autotune.worker", "autotune start", "srun")

    def __init__(
        self,
        nodes: SlurmNodes,
        folder: Path,
        *,
        ranks: int,
        launcher: str = "slurm",
        partition: str = UNDISTURBED,
        trials: int = 12,
    ) -> None:
        super().__init__(nodes.nodes, nodes.control, folder, launcher, ranks=ranks, trials=trials)
        self.nodes = nodes
        self.partition = partition
        self.job = ""

    def submit(self, *options: str, wait: bool = True) -> None:
        """Hand it to Slurm; unless told otherwise, wait until its job has begun."""
        partition = f"--partition={self.partition}"
        told = self.command("submit", "study.yaml", "--", partition, *options)
        found = re.search(r"^Submitted batch job (\d+)$", told, re.MULTILINE)
        assert found, told
        self.job = found[1]
        if wait:
            wait_for(self.is_known, f"job {self.job} has begun the study")

    def is_known(self) -> bool:
        """Return whether a job has begun it."""
        with contextlib.suppress(StudyNotFound):
            return self.study() is not None
        return False

    @property
    def state(self) -> str:
        """State of its job; empty once Slurm has forgotten it."""
        return self.nodes.state(self.job)

    @property
    def output(self) -> str:
        """Return what the job has printed."""
        files = sorted(self.folder.glob("slurm-*.out"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    @property
    def first(self) -> SlurmNode:
        """The node on which its daemon is."""
        batch = self.nodes.told("squeue", "--noheader", "--format=%B", f"--job={self.job}")
        return next(node for node in self.nodes.workers if node.name == batch)

    @property
    def other(self) -> SlurmNode:
        """Another node of its job."""
        return next(node for node in self.nodes.workers if node is not self.first)

    def signal(self, name: str) -> None:
        """Have Slurm signal its batch script, as before its end."""
        self.nodes.control.must("scancel", f"--signal={name}", "--batch", self.job)

    def check_nothing_is_left(self) -> None:
        """No process, no job, all nodes free."""
        wait_for(lambda: not self.processes(), f"no process is left: {self.processes()}", 120)
        self.nodes.wait_all_free()


def controller_restarted(study: SlurmStudy) -> None:
    """slurmctld is killed, and started again after 20 s."""
    with study.nodes.control.down("slurmctld"):
        time.sleep(20)


def node_killed(study: SlurmStudy) -> None:
    """slurmd and all steps of another node are killed, and slurmd is started again after 5 s."""
    with study.other.down():
        time.sleep(5)


def step_cancelled(study: SlurmStudy) -> None:
    """A step with an agent is cancelled."""
    study.nodes.control.must("scancel", study.nodes.steps(study.job)[0])


def agent_killed(study: SlurmStudy) -> None:
    """kill -9 of an agent on another node."""
    strike(study.other.processes("autotune.worker.node.agent"), signal.SIGKILL)


def node_drained(study: SlurmStudy) -> None:
    """Another node is drained, and given back after 20 s."""
    name = study.other.name
    update = ("scontrol", "update", f"nodename={name}")
    study.nodes.control.must(*update, "state=drain", "reason=maintenance")
    time.sleep(20)
    study.nodes.control.must(*update, "state=resume")


def node_frozen(study: SlurmStudy) -> None:
    """All processes of another node are stopped for 35 s."""
    with study.other.frozen():
        time.sleep(35)


def requeued(study: SlurmStudy) -> None:
    """An operator requeues the job."""
    study.nodes.control.must("scontrol", "requeue", study.job)


def told_to_leave(study: SlurmStudy) -> None:
    """Slurm signals the batch script, as 60 s before the end of its time."""
    study.signal("TERM")


def preempted(study: SlurmStudy) -> None:
    """An urgent job takes all nodes for 20 s; the study's job yields as its partition says."""
    nodes, ended = study.nodes, study.folder / "urgent.ended"
    asked = ("--partition=urgent", f"--nodes={len(nodes.workers)}", "--exclusive")
    wrapped = ("--output=/dev/null", f"--wrap=sleep {URGENT_SECONDS} && touch {ended}")
    urgent = nodes.control.must("sbatch", "--parsable", *asked, *wrapped).strip()
    wait_for(lambda: nodes.state(urgent) == "RUNNING", f"the urgent job runs: {study.output}")
    yielded = "SUSPENDED" if study.partition == "suspend" else "PENDING"
    wait_for(lambda: study.state == yielded, f"the job of the study is {yielded}")
    wait_for(ended.exists, "the urgent job ends")


def steps_told(study: SlurmStudy) -> None:
    """Slurm signals all steps but the batch script, as at the beginning of a GraceTime."""
    study.nodes.control.must("scancel", "--signal=TERM", study.job)


def cancelled(study: SlurmStudy) -> None:
    """The user cancels the job, and submits the study again."""
    study.nodes.control.must("scancel", study.job)
    wait_for(lambda: study.state not in ("RUNNING", "COMPLETING"), "the job is over")
    assert study.state == "", study.state
    study.submit(f"--nodes={len(study.nodes.workers)}")


def daemon_killed(study: SlurmStudy) -> None:
    """kill -9 of the daemon; the study is submitted again once nothing of it is left."""
    strike(study.first.processes("autotune start"), signal.SIGKILL)
    study.check_nothing_is_left()
    study.submit(f"--nodes={len(study.nodes.workers)}")


STRIKES: dict[str, Callable[[SlurmStudy], None]] = {
    "batch script told to leave (SIGTERM), as before a preemption": told_to_leave,
    "job requeued": requeued,
    "job cancelled amid a trial, submitted again": cancelled,
    "slurmd and steps of another node killed, back after 5 s": node_killed,
    "a step cancelled": step_cancelled,
    "agent of another node killed": agent_killed,
    "another node drained for 20 s": node_drained,
    "another node frozen for 35 s": node_frozen,
    "daemon killed, submitted again": daemon_killed,
    "slurmctld killed, back after 20 s": controller_restarted,
}
PREEMPTIONS = {f"preempted, {how}": partition for partition, how in PREEMPTED.items()}
"""Partition of a study's job, by what then happens to it."""


def survive(study: SlurmStudy, strike: Callable[[SlurmStudy], None]) -> Recovery:
    """Strike in the middle of a study, and see it end well."""
    study.submit(f"--nodes={len(study.nodes.workers)}")
    study.wait_for_trials(2)
    began = time.time()
    strike(study)
    back = time.time() - began
    ended = wait_for(
        lambda: study.completed_after(began), f"a trial after it: {study.output}", PATIENCE_SECONDS
    )
    study.wait_done()
    study.check_nothing_is_left()
    return study.recovery(began, back, ended)
