"""Trials on this machine, without any cluster software."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import LauncherError
from autotune.trial.agent_process import AgentProcess
from launchers.base import Launcher, Link, Resources
from launchers.slot import AgentSlot, Node

_LOOPBACK = "127.0.0.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalLink(Link):
    """An agent that is a child of this process."""

    host = _LOOPBACK

    def __init__(self, log_dir: str, env: dict[str, str]) -> None:
        self._agent = AgentProcess(_LOOPBACK, str(Path(log_dir) / "agent.log"), env)

    def send(self, line: bytes) -> bool:
        return self._agent.send(line)

    def read(self) -> bytes:
        return self._agent.read()

    def close(self) -> None:
        self._agent.close()


class LocalLauncher(Launcher):
    """Slots on this machine. With CUDA devices each slot has its own; on the CPU there is one slot
    unless more are asked for, because trials side by side would disturb each other's figures."""

    slots: Sequence[AgentSlot]

    def __init__(self, resources: Resources, log_dir: str) -> None:
        needed = resources.workers * resources.cpus_per_worker
        cores = len(os.sched_getaffinity(0))
        if needed * (resources.slots or 1) > cores:
            raise LauncherError(
                f"{resources.slots or 1} x {resources.workers} workers x "
                f"{resources.cpus_per_worker} CPUs need {needed * (resources.slots or 1)} cores; "
                f"this machine has {cores}; lower resources.workers, cpus_per_worker or slots"
            )
        first = self._open_slot(resources, log_dir, 0, {})
        devices = len(first.environment["devices"])
        per_slot = int(resources.workers * first.devices_per_rank)
        count = resources.slots or (max(1, devices // per_slot) if per_slot else 1)
        if count == 1:
            self.slots = [first]
            return
        first.close()
        shares = _device_shares(devices, per_slot, count)
        self.slots = [
            self._open_slot(resources, log_dir, number, env)
            for number, env in enumerate(itertools.islice(shares, count))
        ]

    def close(self) -> None:
        for slot in self.slots:
            slot.close()

    @staticmethod
    def _open_slot(
        resources: Resources, log_dir: str, number: int, env: dict[str, str]
    ) -> AgentSlot:
        node = Node(connect=lambda: LocalLink(log_dir, env), ranks=resources.workers)
        return AgentSlot(f"local-{number}", [node], gpus_per_worker=resources.gpus_per_worker)


def _device_shares(devices: int, per_slot: int, slots: int) -> list[dict[str, str]]:
    if per_slot * slots > devices:
        raise LauncherError(
            f"{slots} slots of {per_slot} GPUs need {per_slot * slots}; {devices} are visible; "
            "lower resources.slots"
        )
    if not per_slot:
        return [{} for _ in range(slots)]
    visible = os.environ.get(_VISIBLE, "").split(",") if os.environ.get(_VISIBLE) else None
    names = visible or [str(index) for index in range(devices)]
    return [
        {_VISIBLE: ",".join(names[slot * per_slot : (slot + 1) * per_slot])}
        for slot in range(slots)
    ]
