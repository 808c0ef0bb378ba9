"""Slots of a Slurm job on nodes of several kinds; scripts stand in for the agents, answers for Slurm."""

import os
import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import ClusterAway, NotHere
from autotune.worker.node.relay import LEFT_BEHIND, AgentOrder
from autotune.worker.protocol import PROTOCOL, Hello, NodeReport, Preload, StartTrial, from_line
from launchers import slurm, slurm_allocation
from launchers.base import Link, Resources
from launchers.placement import AvoidedNodes, ClusterNode
from launchers.reservation import refuse
from launchers.slurm import SlurmLauncher
from tests.support.trials import of_one_rank

H100, A100 = "NVIDIA H100", "NVIDIA A100"
ONE = Resources(1, 1.0, 1, None)


class Job:
    """A job with so many devices on each of its nodes, and what each device is."""

    def __init__(self, nodes: dict[str, list[str]]) -> None:
        self.number = str(os.getpid())
        self.nodes = nodes
        self.down: set[str] = set()
        self.started: list[tuple[str, list[int]]] = []
        """Node and devices of each agent."""

    def ask(self, *words: str) -> str:
        """Answer as Slurm does."""
        if "job" in words:
            shares = [
                f" Nodes={name} CPU_IDs=0-7 Mem=0 GRES={f'gpu:{len(devices)}' if devices else ''}\n"
                for name, devices in self.nodes.items()
            ]
            return f"JobId={self.number} JobName=tune\n{''.join(shares)}"
        return "".join(
            f"NodeName={name} NodeAddr=10.0.0.{n} State={'DOWN' if name in self.down else 'MIXED'} \n"
            for n, name in enumerate(self.nodes)
        )

    def agent(self, _: Any, node: ClusterNode, order: AgentOrder, __: Path) -> Link:
        """Return an agent on a node."""
        self.started.append((node.id, order.devices))
        kinds = [self.nodes[node.id][index] for index in order.devices]
        return Agent(node.id, [{"name": kind} for kind in kinds])


class Agent(Link):
    """An agent that tells its devices, and ends every trial at once."""

    host = "127.0.0.1"

    def __init__(self, node: str, devices: list[dict[str, Any]]) -> None:
        self.where = node
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._environment = {"devices": devices, "cpu": "EPYC", "driver": "550.54"}

    def send(self, line: bytes) -> bool:
        command = from_line(line)
        if isinstance(command, Preload):
            uuids = [f"GPU-{self.where}" for _ in self._environment["devices"]]
            hello = Hello(1, 1, "lo", self._environment, tuple(uuids), protocol=PROTOCOL)
            self._lines.put(hello.to_line())
        if isinstance(command, StartTrial):
            self._lines.put(NodeReport(command.request.trial, 0, ()).to_line())
        return True

    def read(self) -> bytes:
        return self._lines.get(timeout=60)

    def close(self) -> str:
        self._lines.put(b"")
        return ""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """This process is in a job of no nodes yet."""
    found = Job({})
    monkeypatch.setenv("SLURM_JOB_ID", found.number)
    monkeypatch.setattr(slurm_allocation, "_ask", found.ask)
    monkeypatch.setattr(slurm_allocation, "_FRESH_SECONDS", -1.0)
    monkeypatch.setattr(slurm, "SrunLink", found.agent)
    yield found


def opened(folder: Path, resources: Resources = ONE) -> SlurmLauncher:
    return SlurmLauncher(resources, str(folder), refuse, {})


def begin_anew(launcher: SlurmLauncher, slot: int = 0) -> str:
    """Have new agents start for a trial of a slot; return why it was lost."""
    launcher.slots[slot].close()
    report = launcher.slots[slot].run_solo(of_one_rank({}, device="cuda"), lambda _: True)
    return report.cause if report.lost_agent else ""


def test_slot_goes_on_where_devices_are_those_that_it_began_on(job: Job, tmp_path: Path) -> None:
    job.nodes |= {"a": [H100], "b": [A100], "c": [H100]}
    with opened(tmp_path, Resources(1, 1.0, 1, 1)) as launcher:
        assert job.started == [("a", [0])]
        job.down.add("a")
        assert begin_anew(launcher) == ""
        assert job.started[1:] == [("b", [0]), ("c", [0])]
        (told,) = launcher.notices()
        assert told.startswith(f"Left out: node b has {A100}, and this study runs on {H100}")
        job.down.add("c")
        assert "no other node" in begin_anew(launcher)
        assert job.started[3:] == []


def test_preloading_goes_on_after_a_node_with_other_devices(job: Job, tmp_path: Path) -> None:
    job.nodes |= {"a": [H100], "b": [A100], "c": [H100]}
    with opened(tmp_path, Resources(1, 1.0, 1, 1)) as launcher:
        preloading = launcher.slots[0]._preloading
        preloading.by_node = [Preload(("json",))]
        job.down.add("a")
        assert begin_anew(launcher) == ""
        assert job.started == [("a", [0]), ("b", [0]), ("c", [0])]
        assert preloading.wanted


def test_slot_on_a_node_that_is_left_out_takes_the_place_of_no_lost_one(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_MOST_OPENING", 1)
    monkeypatch.setattr(slurm, "_GROW_SECONDS", 600.0)
    job.nodes |= {"a": [H100, A100], "b": [H100, H100]}
    with opened(tmp_path, Resources(1, 1.0, 1, None, device=H100)) as launcher:
        assert sorted(job.started) == [("a", [0]), ("a", [1]), ("b", [0]), ("b", [1])]
        assert launcher._missing() == 0
        job.down.add("b")
        for number, slot in enumerate(launcher.slots):
            if launcher._placements[slot.name].nodes == {"b"}:
                assert "no other node" in begin_anew(launcher, number)
        job.down.clear()
        assert [slot.usable for slot in launcher.slots].count(True) == 1
        assert launcher._missing() == 2


def test_slot_stays_on_a_node_that_has_devices_of_another_kind_as_well(
    job: Job, tmp_path: Path
) -> None:
    job.nodes |= {"a": [H100, A100]}
    with opened(tmp_path) as launcher:
        assert len(launcher.slots) == 1
        kind = launcher.slots[0].environment["devices"]
        assert begin_anew(launcher) == ""
        assert launcher.slots[0].environment["devices"] == kind


def test_job_that_has_asked_for_no_device_is_refused_where_there_are_some(
    job: Job, tmp_path: Path
) -> None:
    job.nodes |= {"a": []}
    with pytest.raises(NotHere, match=r"has no GPU, .* ask for GPUs \(--gpus-per-node\), or say"):
        opened(tmp_path, Resources(1, None, 1, None))
    with opened(tmp_path, Resources(1, 0.0, 1, None)) as launcher:
        assert launcher.site.device == "cpu"
    with opened(tmp_path, Resources(1, None, 1, None, device="EPYC")) as launcher:
        assert launcher.site.device == "cpu", "as the study names a processor"


def test_allocation_whose_nodes_all_differ_is_refused_for_good(job: Job, tmp_path: Path) -> None:
    job.nodes |= {"a": [A100] * 2}
    with pytest.raises(NotHere, match=f"runs on {H100}, .* \\(not a\\): .*--constraint"):
        opened(tmp_path, Resources(2, None, 1, None, device=H100))
    job.nodes |= {"b": [A100] * 2}
    with pytest.raises(NotHere, match=r"\(not a, b\)"):
        opened(tmp_path, Resources(2, None, 1, 1, device=H100))
    job.nodes |= {"c": [H100] * 2}
    with opened(tmp_path, Resources(2, None, 1, 1, device=H100)) as launcher:
        assert launcher._placements[launcher.slots[0].name].nodes == {"c"}


@pytest.mark.parametrize("other", ["a", "c"])
def test_workers_are_those_of_the_nodes_that_have_the_kind_of_most_ranks(
    job: Job, tmp_path: Path, other: str
) -> None:
    job.nodes |= {name: [H100 if name == other else A100] * 2 for name in "abc"}
    with opened(tmp_path, Resources(None, None, 1, None)) as launcher:
        assert (len(launcher.slots), launcher.ranks, launcher.planned) == (1, 4, 1)
        nodes = launcher._placements[launcher.slots[0].name].nodes
        assert nodes == {"a", "b", "c"} - {other}
        (told,) = launcher.notices()
        assert told.startswith(f"Left out: node {other} has {H100}, and this study runs on {A100}")


def test_allocation_is_not_refused_while_a_node_that_may_do_is_down(
    job: Job, tmp_path: Path
) -> None:
    job.nodes |= {"a": [A100] * 2, "b": [H100] * 2}
    job.down.add("b")
    with pytest.raises(ClusterAway, match=f"node a has {A100}"):
        opened(tmp_path, Resources(2, None, 1, 1, device=H100))


@pytest.mark.parametrize(("status", "left"), [(0, ""), (LEFT_BEHIND, "processes on node a")])
def test_what_an_agent_leaves_on_its_node_is_told_as_its_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, left: str
) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\ncat > /dev/null\nexit {status}\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    allocation: Any = SimpleNamespace(job="7", avoided=AvoidedNodes())
    node = ClusterNode("a", "10.0.0.1", "a", {"CPU": 1.0, "GPU": 0.0}, {})
    link = slurm.SrunLink(allocation, node, AgentOrder("10.0.0.1", {}, []), tmp_path / "agent.log")
    assert link.close().startswith(left)
    assert bool(link.close()) == bool(left)
