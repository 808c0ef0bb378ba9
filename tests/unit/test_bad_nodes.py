"""A node of a cluster on which no slot opens; answers and scripts stand in for nodes and agents."""

import itertools
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.errors import LauncherError
from autotune.worker.protocol import PROTOCOL, Hello, Preload, from_line
from launchers import Resources, ray_cluster, section_of, slurm, slurm_allocation
from launchers.agents import SlotGone
from launchers.base import Link
from launchers.driver import Wire
from launchers.placement import ClusterNode
from launchers.ray_cluster import RayLauncher
from launchers.slurm import SlurmLauncher

RESOURCES = Resources(1, 1.0, 1, None)
DEVICE = "NVIDIA H100 80GB HBM3"
SOFTWARE = {"autotune": autotune.__version__, "python": "3.12.1", "torch": "2.13.0", "cpu": "Xeon"}


def hello(devices: int) -> bytes:
    environment = {**SOFTWARE, "devices": [{"name": DEVICE}] * devices}
    return Hello(1, 1, "lo", environment, protocol=PROTOCOL).to_line()


class RayDriver:
    """Stand-in for the driver of a Ray cluster whose nodes have one device each.

    A node is given by the number of devices that its agent sees.
    """

    address = "10.0.0.1:6379"
    lost = ""

    def __init__(self, *seen: int) -> None:
        self._seen = seen
        self._numbers = itertools.count()
        self._wires: dict[int, Wire] = {}
        self._groups: dict[int, int] = {}
        self.started: list[int] = []
        """Nodes of all agents that were started."""
        self.foreign: set[int] = set()
        """Nodes whose devices another job holds."""

    def wire(self) -> Wire:
        wire = Wire(next(self._numbers))
        self._wires[wire.number] = wire
        return wire

    def call(self, name: str, *_: Any, **given: Any) -> Any:
        return getattr(self, f"_{name}")(**given)

    def close(self) -> None:
        """Nothing is left."""

    def _nodes(self) -> list[dict[str, Any]]:
        has = {"CPU": 8.0, "GPU": 1.0}
        held = {*self._groups.values()} | self.foreign
        return [
            {
                "id": f"{n}",
                "address": f"10.0.0.{n}",
                "host": f"n{n}",
                "has": has,
                "free": {"CPU": 8.0, "GPU": float(n not in held)},
            }
            for n in range(len(self._seen))
        ]

    def _node_info(self, nodes: list[str], patience: float) -> dict[str, Any]:
        return {node: {**SOFTWARE, "devices": [DEVICE]} for node in nodes}

    def _ask(self, **_: Any) -> None:
        """Grant the request at once, as Ray does where there is room."""

    def _stands(self, group: int) -> str:
        return "CREATED"

    def _reserve(self, group: int, bundles: list[dict[str, float]], **_: Any) -> bool:
        [node] = [name for name in bundles[0] if name.startswith("node:")]
        self._groups[group] = int(node.rpartition(".")[2])
        return True

    def _where(self, group: int) -> list[str]:
        return [str(self._groups[group])]

    def _release(self, group: int) -> None:
        self._groups.pop(group, None)

    def _start(self, link: int, group: int, **_: Any) -> None:
        self.started.append(self._groups[group])

    def _send(self, link: int, text: str) -> bool:
        assert isinstance(from_line(text.encode()), Preload)
        self._wires[link].put(hello(self._seen[self.started[link]]))
        return True

    def _end(self, link: int) -> str:
        self._wires[link].put(b"")
        return ""


def opened_on_ray(driver: RayDriver, folder: Path, patch: pytest.MonkeyPatch) -> RayLauncher:
    patch.setattr(ray_cluster, "Driver", lambda *_: driver)
    launcher = section_of("ray", address=driver.address).open(RESOURCES, str(folder))
    assert isinstance(launcher, RayLauncher)
    return launcher


def test_ray_study_runs_on_another_node_than_the_one_whose_device_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = RayDriver(0, 1)
    with opened_on_ray(driver, tmp_path, monkeypatch) as launcher:
        assert driver.started == [0, 1]
        assert len(launcher.slots) == 1
        [notice] = launcher.notices()
        assert notice.startswith("Left out for now: node n0 (10.0.0.0): ray-0: 1 CUDA devices are")
        assert not launcher._add_slot(lambda: None), "it is not taken again at once"
        assert driver.started == [0, 1]


def test_ray_study_is_told_why_no_node_opens_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = RayDriver(0, 0)
    with pytest.raises(LauncherError, match="1 CUDA devices are needed and PyTorch sees 0"):
        opened_on_ray(driver, tmp_path, monkeypatch)
    assert driver.started == [0, 1], "each was tried once"


def test_devices_of_another_job_are_not_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = RayDriver(1, 1, 1, 1)
    driver.foreign = {0, 1}
    with opened_on_ray(driver, tmp_path, monkeypatch) as launcher:
        for _ in range(3):
            launcher._look()
        assert (len(launcher.slots), launcher.planned) == (2, 2)
        driver.foreign = {0}
        for _ in range(2):
            launcher._look()
        assert (len(launcher.slots), launcher.planned) == (3, 3)
        driver.foreign = set()
        monkeypatch.setattr(launcher, "_take", lambda _: False)
        for _ in range(2):
            launcher._look()
        assert (len(launcher.slots), launcher.planned) == (3, 4), "it lacks one that has room"


class Step(Link):
    """Stand-in for the step of an agent; the node `a1` has lost its device."""

    def __init__(self, _: Any, node: ClusterNode, *__: Any) -> None:
        self.host, self.where = node.address, node.host
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, line: bytes) -> bool:
        self._lines.put(hello(int(self.where != "a1")))
        return True

    def read(self) -> bytes:
        return self._lines.get()

    def close(self) -> str:
        self._lines.put(b"")
        return ""


@pytest.fixture
def on_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLauncher]:
    """Put this process into a job of two nodes with a device each."""
    names = ("a1", "a2")
    shares = "".join(f" Nodes={name} CPU_IDs=0-1 Mem=0 GRES=gpu:1\n" for name in names)
    job = f"JobId=7 JobName=tune\n{shares}"
    nodes = "".join(f"NodeName={name} NodeAddr=10.0.0.9 State=MIXED\n" for name in names)
    monkeypatch.setattr(slurm_allocation, "_ask", lambda *words: job if "job" in words else nodes)
    monkeypatch.setattr(slurm, "SrunLink", Step)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with section_of("slurm").open(RESOURCES, str(tmp_path)) as launcher:
        assert isinstance(launcher, SlurmLauncher)
        yield launcher


def test_place_of_a_slurm_slot_is_not_looked_for_where_the_device_is_away(
    on_slurm: SlurmLauncher,
) -> None:
    assert len(on_slurm.slots) == 1
    [notice] = on_slurm.notices()
    assert notice.startswith("Left out for now: node a1: slurm-0: 1 CUDA devices are needed")
    assert isinstance(on_slurm._opened(), SlotGone)
