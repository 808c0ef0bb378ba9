"""Trials on this machine, without any cluster software."""

from collections.abc import Mapping
from pathlib import Path

from autotune.errors import LauncherError
from autotune.worker import processes
from autotune.worker.node.agent_process import AgentProcess
from launchers import layout
from launchers.agents import Node
from launchers.base import Launcher, Link, Resources
from launchers.layout import Layout, plan
from launchers.node_compat import check_device
from launchers.reservation import NO_HOLDER, Busy, Reservation
from launchers.slot import AgentSlot, take_out_other_kinds

_LOOPBACK = "127.0.0.1"


class LocalLink(Link):
    """Connection to an agent that is a child of this process."""

    host = _LOOPBACK

    def __init__(
        self, log_dir: str, env: Mapping[str, str], devices: Mapping[str, str] | None = None
    ) -> None:
        """Start the agent; env and devices are as for AgentProcess."""
        log = str(Path(log_dir) / "agent.log")
        self._agent = AgentProcess(_LOOPBACK, log, env, devices)

    def send(self, line: bytes) -> bool:
        return self._agent.send(line)

    def read(self) -> bytes:
        return self._agent.read()

    def close(self) -> str:
        return self._agent.close()


class LocalLauncher(Launcher):
    """Slots on this machine, each with CUDA devices of its own where there are any."""

    slots: list[AgentSlot]

    def __init__(
        self, resources: Resources, log_dir: str, busy: Busy, env: Mapping[str, str]
    ) -> None:
        layout.refuse_lost_devices(resources)
        fit = plan(resources, [layout.this_machine()])
        self.ranks = fit.ranks_per_node
        self._notices: list[str] = [*filter(None, [fit.notice()])]
        self.slots = []
        self._reservation = Reservation(busy)
        if left := processes.sweep():
            raise LauncherError(f"processes of an earlier study cannot be ended: {left}")
        try:
            if not fit.gpus_per_worker:
                self._reservation.take(layout.processors())
            for number in range(fit.slots):
                self.slots.append(_open_slot(fit, number, resources, log_dir, env, busy))
            for slot, its in take_out_other_kinds(self.slots, resources.device):
                self._notices.append(f"Left out: {slot.name} has {its}.")
            check_device(resources.device, self.site)
            self._reservation.take(name for slot in self.slots for name in slot.cuda_devices)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        try:
            for slot in self.slots:
                slot.close()
        finally:
            self._reservation.close()


def _open_slot(
    fit: Layout,
    number: int,
    resources: Resources,
    log_dir: str,
    env: Mapping[str, str],
    busy: Busy,
) -> AgentSlot:
    own = {}
    visible = layout.visible_devices()
    if indices := fit.devices_of(number, len(visible)):
        own = {layout.VISIBLE: ",".join(visible[index] for index in indices)}
    elif visible:
        own = {
            layout.VISIBLE: ""
        }  # a script would use any visible device, also in a slot without devices
    node = Node(connect=lambda: LocalLink(log_dir, env, own), ranks=fit.ranks_per_node)
    return AgentSlot(
        f"local-{number}",
        [node],
        gpus_per_worker=fit.gpus_per_worker,
        reads_energy=resources.reads_energy,
        on_wait=lambda: busy(NO_HOLDER),
    )
