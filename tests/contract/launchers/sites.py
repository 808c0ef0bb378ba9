"""Opened launchers of every kind, and a view on the processes that belong to them.

A site is an opened launcher of one kind. `local`, `ray` and `slurm` go through the contract; `pair` is
one slot over two agents on loopback (one rank on the first, two on the second), `cluster` a slot
over two Ray nodes: both show what several nodes change.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.worker.node.store import NAME
from autotune.worker.processes import MARKER
from autotune.worker.protocol import (
    BlockReport,
    StartTrial,
    Timeouts,
    TrialReport,
    TrialRequest,
    from_line,
)
from launchers import Resources, section_of
from launchers.agents import Node
from launchers.local import LocalLink
from launchers.slot import AgentSlot
from tests.support import slurm
from tests.support.trials import trial

WORKLOADS = Path(__file__).parents[2] / "workloads"
RUN_MARK = "AUTOTUNE_TEST_RUN"
"""Environment variable by which a test knows the processes of its own site among all others."""
HASTY = Timeouts(startup=60, step=2.0)
HASTE_SLACK = 180.0
"""Seconds beyond a timeout within which even a busy machine has started the ranks, judged, dumped
stacks and cleared away. Which timeout ended a trial is told by its cause."""


@dataclasses.dataclass
class Site:
    """An opened slot, with a user's folder and a view on the processes that belong to it."""

    kind: str
    slot: Any
    close: Callable[[], None]
    world_size: int
    folder: Path
    mark: str
    address: str | None = None

    def request(self, factory: str = "tiny:build", **changes: Any) -> TrialRequest:
        """A trial of a few milliseconds; keyword arguments replace fields."""
        return trial(self.folder, factory, **{"world_size": self.world_size, **changes})

    def run(self, factory: str = "tiny:build", **changes: Any) -> TrialReport:
        """Run to the end of its blocks."""
        return self.slot.run_solo(self.request(factory, **changes), go_on)

    def check_next_trial(self) -> None:
        """The slot is as good as new."""
        report = self.run()
        assert (report.outcome, report.lost_agent, report.cause) == (None, False, "")
        assert len(report.blocks) == 4

    def renew_agents(self) -> None:
        """Undo whatever a test has done to the agents, at the price of a trial."""
        for agent in self.agents():
            agent.kill()
        self.run()

    def agents(self) -> list[psutil.Process]:
        """The site's agents that live."""
        return [p for p in marked(self.mark) if "autotune.worker.node.agent" in command(p)]

    def strays(self) -> list[str]:
        """What lives, descends from an agent, and is no agent nor one of its helpers."""
        alive = {p.pid: p for p in marked(self.mark) if MARKER in environment(p)}
        for agent in self.agents():
            alive.pop(agent.pid, None)
            for helper in helpers(agent):
                alive.pop(helper.pid, None)
        return [f"{pid} {command(process)}" for pid, process in alive.items()]


def sites(*kinds: str, slow: Sequence[str] = ()) -> pytest.MarkDecorator:
    """The test runs on an opened launcher of each of these kinds; as a slow test on some of them, and on
    those that take half a minute to open.

    All tests of a kind share one, so they run in one worker; a machine has room for one Ray.
    """
    params = [pytest.param(kind, marks=_marks(kind, kind in slow)) for kind in (*kinds, *slow)]
    return pytest.mark.parametrize("site", params, indirect=True)


def sites_to_close(*kinds: str, slow: Sequence[str] = ()) -> pytest.MarkDecorator:
    """As `sites`, but opened for this test alone, which may close it for good."""
    named = [[f"{kind} to close" for kind in some] for some in (kinds, slow)]
    return sites(*named[0], slow=named[1])


def _marks(kind: str, slow: bool) -> list[pytest.MarkDecorator]:
    of_ray = kind.startswith(("ray", "cluster"))
    group = "slurm" if kind.startswith("slurm") else "ray" if of_ray else "local"
    found = [pytest.mark.xdist_group(group)]
    return found + [pytest.mark.slow] * (slow or (of_ray and kind != "ray"))


def go_on(_: BlockReport) -> bool:
    return False


def end_at(index: int) -> Callable[[BlockReport], bool]:
    return lambda block: block.index >= index


def environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ()
    return {}


def command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def commands(mark: str) -> str:
    return "\n".join(command(process) for process in marked(mark))


def marked(mark: str) -> list[psutil.Process]:
    """Living processes that were started under this mark, whatever their parents are by now."""
    found = [p for p in psutil.process_iter() if environment(p).get(RUN_MARK) == mark]
    return [p for p in found if is_alive(p)]


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill_all(mark: str) -> None:
    """What a failed test has left behind."""
    for process in marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def helpers(agent: psutil.Process) -> list[psutil.Process]:
    """The agent's resource tracker, its newest fork server, and the store that is forked from it."""
    children = agent.children()
    names = ("resource_tracker", "multiprocessing.forkserver")
    kinds = ([child for child in children if name in command(child)] for name in names)
    found = [kind[-1] for kind in kinds if kind]
    return found + [child for server in found for child in server.children() if is_store(child)]


def is_store(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == NAME
    return False


def fork_server(agent: psutil.Process) -> psutil.Process:
    return next(helper for helper in helpers(agent) if "forkserver" in command(helper))


def ranks(agent: psutil.Process) -> list[psutil.Process]:
    """Those of the trial that runs."""
    return [child for child in fork_server(agent).children() if not is_store(child)]


def spent(site: Site) -> dict[int, float]:
    """Processor seconds of every rank, worker and agent, by process id."""
    found: dict[int, float] = {}
    for agent in site.agents():
        for process in fork_server(agent).children(recursive=True):
            if not is_store(process):
                used = process.cpu_times()
                found[process.pid] = used.user + used.system
    return found


class WatchedLink(LocalLink):
    """A line on which something may happen while a trial is being started."""

    before_start: Callable[[], None] | None = None

    def send(self, line: bytes) -> bool:
        if type(self).before_start and isinstance(from_line(line), StartTrial):
            type(self).before_start()
        return super().send(line)


@contextlib.contextmanager
def opened(kind: str, folder: Path, mark: str) -> Iterator[Site]:
    """A site of this kind in the folder, whose processes bear the mark; nothing is left of it."""
    project = folder / "project"
    project.mkdir()
    for workload in ("tiny.py", "odd.py", "seeing.py"):
        (project / workload).write_text((WORKLOADS / workload).read_text())
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv(RUN_MARK, mark)
        patch.delenv("PYTHONUNBUFFERED", raising=False)  # or every print would be in the log
        stack.callback(kill_all, mark)
        yield stack.enter_context(_site(kind, project, str(folder / "agents"), mark))


@contextlib.contextmanager
def _site(kind: str, project: Path, logs: str, mark: str) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        if kind == "pair":
            nodes = [Node(connect=lambda: WatchedLink(logs, {}), ranks=ranks) for ranks in (1, 2)]
            slot = AgentSlot("pair", nodes, gpus_per_worker=0)
            stack.callback(slot.close)
            yield Site(kind, slot, slot.close, 3, project, mark)
            return
        address = stack.enter_context(two_ray_nodes()) if kind == "cluster" else None
        two = Resources(2, None, 1, None)
        if kind == "slurm":
            stack.enter_context(in_allocation(project.parent / "slurm"))
        named = "ray" if kind == "cluster" else kind
        section = section_of(named, address=address) if address else section_of(named)
        launcher = section.open(two, logs)
        stack.callback(launcher.close)
        assert len(launcher.slots) == 1
        yield Site(kind, launcher.slots[0], launcher.close, 2, project, mark, address)


@contextlib.contextmanager
def in_allocation(folder: Path, *options: str, **nodes: int) -> Iterator[None]:
    """This process is in an allocation of a Slurm of its own, which does not bear the mark of a site.

    Args:
        options: of salloc.
        nodes: as `slurm.allocation` takes them.
    """
    if why := slurm.refusal():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(RUN_MARK, raising=False)
            variables = stack.enter_context(slurm.allocation(folder, *options, **nodes))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def two_ray_nodes() -> Iterator[str]:
    """A Ray cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()
