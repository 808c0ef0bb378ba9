"""Trials on a Ray cluster: a slot is a placement group, with one agent-owning actor per node.

This process never talks to Ray itself: see launchers.driver.
"""

import base64
import contextlib
import importlib.util
import itertools
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import DevicesTaken, LauncherError, NotHere
from autotune.worker.files import make_private
from launchers import layout
from launchers.agents import Node, is_of_nodes
from launchers.base import Launcher, Link, Resources, Slot
from launchers.driver import Driver, DriverLost, Refused
from launchers.layout import demand_of, plan
from launchers.node_compat import check_device
from launchers.placement import ClusterNode, room
from launchers.ray_nodes import (
    ANSWER_SECONDS,
    Cluster,
    Demand,
    SlotPlacement,
    TooSmall,
    strategy_of,
)
from launchers.ray_shares import RayShares
from launchers.reservation import NO_HOLDER, Busy, Reservation, DeviceHolder
from launchers.shares import Tenant
from launchers.slot import AgentSlot, take_out_other_kinds

_LOOPBACK = "127.0.0.1"
_SETTLE_SECONDS = 3.0
"""Time until freed resources show as free. Only after that are they held by others."""
_POLL_SECONDS = 0.5
_GROW_SECONDS = 3.0
_IDLE_SECONDS = 15.0
"""Time without a run after which a slot shows that the study needs no more of them: it may be in
its confirmation, which uses one."""
_LOOKS = 100
"""Looks at the cluster, five minutes together, after which slots that it has lost are not planned."""
_ASK_SECONDS = 120.0
"""Time for which a study asks a cluster that is too small for room before others have their turn."""


class RayLink(Link):
    """Connection to an agent through the actor that owns it."""

    def __init__(
        self, placement: SlotPlacement, bundle: int, log: str, env: Mapping[str, str]
    ) -> None:
        self._cluster, self._node = placement.cluster, placement.nodes[bundle]
        layout = self._cluster.layout
        self.host = _LOOPBACK if layout.nodes == 1 else self._node.address
        self.where = str(self._node) if self._cluster.is_shared else ""
        self._wire = self._cluster.driver.wire()
        self._closed = False
        self._cluster.driver.call(
            "start",
            link=self._wire.number,
            group=placement.group,
            bundle=bundle,
            resources=layout.bundle,
            host=self.host,
            log=log,
            env=dict(env),
        )

    def send(self, line: bytes) -> bool:
        try:
            return bool(self._call("send", text=line.decode()))
        except (DriverLost, Refused):
            return False

    def read(self) -> bytes:
        line = self._wire.read()
        if not line and not self._closed and not self._cluster.driver.lost:
            self._cluster.avoided.add(self._node.id)
        return line

    def loss_reason(self) -> str:
        if self._cluster.driver.lost:
            return self._cluster.driver.lost
        return f"node {self._node} was lost" if self._wire.node_lost else ""

    def mark_suspect(self) -> None:
        self._cluster.avoided.add(self._node.id)

    def fetch_files(self, folder: Path) -> None:
        token = f"brought-{secrets.token_hex(8)}"
        with contextlib.suppress(DriverLost, Refused, OSError):
            make_private(folder)
            (folder / token).touch()
            try:
                files = self._cluster.driver.call(
                    "taken",
                    ANSWER_SECONDS,
                    link=self._wire.number,
                    folder=str(folder),
                    token=token,
                )
                for name, content in files.items():
                    (folder / Path(name).name).write_bytes(base64.b64decode(content))
            finally:
                (folder / token).unlink()

    def close(self) -> str:
        if self._closed:
            return ""
        self._closed = True
        try:
            left = str(self._call("end"))
        except (DriverLost, Refused):
            return ""
        if left and self._cluster.is_shared and self._node.id in self._cluster.avoided.now():
            return ""  # its node does not answer: Ray ends it once it does
        return left

    def _call(self, name: str, **arguments: Any) -> object:
        driver = self._cluster.driver
        return driver.call(name, ANSWER_SECONDS, link=self._wire.number, **arguments)


class RayLauncher(Launcher):
    """Slots on a Ray cluster; on a Ray of its own on this machine when no address is given.

    On a shared cluster it begins with as many slots as there is room for, at least one, and adds
    others as room comes. Studies that are named there share it, see launchers.shares.
    """

    slots: list[AgentSlot]
    is_remote = True

    def __init__(
        self,
        resources: Resources,
        log_dir: str,
        busy: Busy,
        env: Mapping[str, str],
        address: str | None,
        tenant: Tenant | None = None,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise NotHere(
                "launcher: ray needs Ray, which is not installed here: pip install ray, or take "
                "launcher: local"
            )
        self._log = str(Path(log_dir) / "agent.log")
        self._env = dict(env)
        self._busy = busy
        self._reads_energy = resources.reads_energy
        self._tenant = tenant
        self._shares: RayShares | None = None
        self._placements: dict[str, SlotPlacement] = {}
        """Placement of each slot, by the slot's name."""
        self._numbers = itertools.count()
        self._retired: queue.SimpleQueue[AgentSlot | None] = queue.SimpleQueue()
        """Slots to give back; None: the launcher closes."""
        self._growth: threading.Thread | None = None
        self._driver: Driver | None = None
        self.slots = []
        self._unopened = 0
        """Number of slots that did not open on the nodes that they were given."""
        self._plans: deque[int] = deque(maxlen=_LOOKS)
        """Numbers of slots that the cluster had room for, at the last looks."""
        self._room = 0
        """Number of slots that had room at the last look."""
        self._reservation = Reservation(busy)
        with self._closed_on_failure():
            if address is None and _is_for_processors(resources):
                self._reservation.take(layout.processors())
            self._driver = Driver(address, log_dir, self._joining(address))
            self._cluster = self._joined(resources, self._driver, address)
            self._open(address)

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            self.close()
            raise LauncherError(f"the Ray cluster fails: {error}") from error
        except LauncherError:
            self.close()
            raise
        except BaseException:
            if self._driver:  # it is no longer needed, and may take long to leave
                self._driver.give_up("its study is not to run")
            self.close()
            raise

    @property
    def address(self) -> str:
        """Address of the cluster."""
        return self._cluster.driver.address

    @property
    def planned(self) -> int:
        """Largest number of slots that the cluster has had room for lately.

        What other jobs hold is no room. A node that has not come back by then was taken away, as by an
        autoscaler.
        """
        return max(self._plans.copy(), default=len(self.slots))

    def notices(self) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._cluster.notices.get_nowait())
        return found

    @property
    def several_nodes(self) -> bool:
        """True if agents may be lost on one node and not on another."""
        return self._cluster.size > 1

    @property
    def surplus(self) -> int:
        return self._shares.surplus if self._shares else 0

    def retire(self, slot: Slot) -> None:
        assert self._shares and isinstance(slot, AgentSlot)
        slot.gone = f"it is given back to the cluster, for {self._shares.takers}"
        slot.given_back = True
        self._shares.surplus -= 1
        self._plans.clear()
        self._retired.put(slot)

    def close(self) -> None:
        self._retired.put(None)
        try:
            for slot in self.slots:
                if not slot.given_back:
                    slot.close()
            for placement in list(self._placements.values()):
                placement.release()
            if self._driver:
                self._driver.close()
            if self._growth:
                self._growth.join()
        finally:
            self._reservation.close()

    def _joining(self, address: str | None) -> Callable[[str], object]:
        return lambda text: self._busy(DeviceHolder(0, text) if text and address else NO_HOLDER)

    def _check_busy(self) -> None:
        """Raise if the launcher is no longer wanted while it opens."""
        self._busy(NO_HOLDER)

    def _joined(self, resources: Resources, driver: Driver, address: str | None) -> Cluster:
        """Return the cluster once its nodes hold a slot, or raise when it stays too small.

        An autoscaler hears of what is missing, and adds nodes.
        """
        began, since = time.monotonic(), time.strftime("%H:%M:%S")
        demand = Demand(driver, None)  # of no study: none can give back what is not there
        while True:
            try:
                found = Cluster(resources, driver, address)
            except TooSmall as error:
                if time.monotonic() - began > _ASK_SECONDS:
                    raise
                demand.ask(*demand_of(error.resources))
                with _instead_of_a_rival(error):
                    self._wait(f"since {since}: {error}")
            else:
                demand.withdraw()
                return found
            demand.withdraw_if_granted()

    def _wait(self, why: str) -> None:
        """Wait until it is time to look at the cluster again."""
        looked = time.monotonic()
        while time.monotonic() - looked < _GROW_SECONDS:
            self._busy(DeviceHolder(0, why))
            time.sleep(_POLL_SECONDS)

    def _open(self, address: str | None) -> None:
        layout = self._cluster.layout
        self.ranks = layout.nodes * layout.ranks_per_node
        if address is None:
            self._plans.append(layout.slots)
        self._wait_for_room()
        if address is not None and self._tenant:
            self._shares = RayShares(self._cluster, self._tenant)
        for _ in range(layout.slots - 1):
            if not self._may_begin_with_another():
                break
            if not self._add_slot(self._check_busy) and address is None:
                raise LauncherError(f"Ray has not granted {layout.slots} x {layout.bundle}")
        if address is None:  # a shared cluster does its own accounting
            self._close_other_kinds()
            check_device(self._cluster.device, self.site)
            self._reservation.take(name for slot in self.slots for name in slot.cuda_devices)
        else:
            self._growth = threading.Thread(target=self._grow, name="growth", daemon=True)
            self._growth.start()

    def _close_other_kinds(self) -> None:
        """Close slots of a Ray of its own that have other devices than the rest."""
        others = take_out_other_kinds(self.slots, self._cluster.device)
        for slot, its in others:
            self._placements.pop(slot.name).release()
            self._cluster.notices.put(f"Left out: {slot.name} has {its}.")
        if others:
            self._plans.clear()  # no slot takes their place

    def _may_begin_with_another(self) -> bool:
        """Return whether a slot that is free is not for a study that needs it more."""
        if self._shares is None:
            return True
        self._shares.look(self._cluster.living())
        return self._shares.may_take

    def _wait_for_room(self) -> None:
        """Open the first slot as soon as other jobs leave room for it."""
        began, since = time.monotonic(), time.strftime("%H:%M:%S")
        layout = self._cluster.layout
        demand = Demand(self._cluster.driver, self._tenant)
        # What is asked for and not granted has no room; granted beside a slot it would hold another.
        while demand.is_pending or not self._add_slot(self._check_busy):
            demand.ask([layout.bundle] * layout.nodes, strategy_of(layout.nodes))
            settled = time.monotonic() - began > _SETTLE_SECONDS
            self._busy(DeviceHolder(0, self._cluster.busy(since)) if settled else NO_HOLDER)
            time.sleep(_POLL_SECONDS)
            demand.withdraw_if_granted()

    def _add_slot(self, on_wait: Callable[[], object]) -> bool:
        """Open one more slot if there is room on sound nodes; return whether there was.

        Args:
            on_wait: called repeatedly meanwhile; may raise.
        """
        placement = SlotPlacement(self._cluster, self._tenant, on_wait)
        if not placement.reserve():
            return False
        layout = self._cluster.layout
        ranks = layout.ranks_per_node
        nodes = [Node(self._connecting(placement, b), ranks) for b in range(layout.nodes)]
        name = f"ray-{next(self._numbers)}"
        try:
            slot = AgentSlot(
                name,
                nodes,
                gpus_per_worker=layout.gpus_per_worker,
                reads_energy=self._reads_energy,
                on_wait=on_wait,
            )
        except BaseException as error:
            placement.release()
            if not self._passes_over(placement.nodes, error):
                raise
            return False
        if not placement.accepts(slot.environment):
            slot.close()
            placement.release()
            return False
        placement.on_wait, slot.accepts = slot.check_cancelled, placement.accepts
        self._placements[name] = placement
        self.slots.append(slot)
        return True

    def _passes_over(self, nodes: list[ClusterNode], error: BaseException) -> bool:
        """Avoid nodes on which a slot did not open; return False where there is no hope of others.

        There is none left if no slot is open after as many tries as there are choices of nodes.
        """
        cluster = self._cluster
        if not is_of_nodes(error) or cluster.driver.lost or not cluster.is_shared:
            return False
        self._unopened += 1
        if not self.slots and self._unopened > cluster.size - cluster.layout.nodes:
            return False
        cluster.pass_over(nodes, error)
        return True

    def _connecting(self, placement: SlotPlacement, bundle: int) -> Callable[[], RayLink]:
        def connect() -> RayLink:
            if bundle == 0:
                placement.ensure()
            return RayLink(placement, bundle, self._log, self._env)

        return connect

    def _grow(self) -> None:
        """Add slots as room comes: other jobs leave, nodes join or return. Give retired ones back."""
        while True:
            pause = _POLL_SECONDS if self._shares and self._shares.is_asking else _GROW_SECONDS
            try:
                retired = self._retired.get(timeout=pause)
            except queue.Empty:
                with contextlib.suppress(LauncherError):
                    self._look()
                continue
            if retired is None:
                return
            retired.dismiss()
            retired.close()
            self._placements.pop(retired.name).release()

    def _look(self) -> None:
        """Look at the cluster, and take one more slot if there is room for it."""
        living, shares = self._cluster.living(), self._shares
        nodes = self._cluster.fit(living)
        wanted = self._cluster.plan(nodes).slots
        usable = [slot for slot in self.slots if slot.usable]
        lacks = len(usable) < wanted and all(s.idle_seconds < _IDLE_SECONDS for s in usable)
        granted = shares is not None and shares.look(living)
        may_take = shares is None or shares.may_take
        # Ray tells late what is held: what had room at two looks in a row counts.
        now = min(wanted, room(self._cluster.layout, nodes, self._cluster.taken))
        before, self._room = self._room, now
        self._plans.append(max(len(usable), min(before, now) if may_take else 0))
        if lacks and may_take and not (shares and shares.is_asking):
            lacks = not self._take(_SETTLE_SECONDS if granted else 0.0)
        if shares:
            shares.ask(lacks=lacks)

    def _take(self, seconds: float) -> bool:
        """Add a slot; return whether there was room for it within this time."""
        give_up = time.monotonic() + seconds
        while not self._add_slot(lambda: None):
            if time.monotonic() >= give_up:
                return False
            time.sleep(_POLL_SECONDS)
        return True


@contextlib.contextmanager
def _instead_of_a_rival(error: LauncherError) -> Iterator[None]:
    """Raise this error where a command refuses to wait for another process."""
    try:
        yield
    except DevicesTaken:
        raise error from None


def _is_for_processors(resources: Resources) -> bool:
    return not plan(resources, [layout.this_machine()]).gpus_per_worker
