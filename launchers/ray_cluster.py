"""Trials on a Ray cluster: a slot is a placement group, with one agent-owning actor per node.

This process never talks to Ray itself: see launchers.driver.
"""

import contextlib
import importlib.util
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ClusterAway, LauncherError, NotHere
from launchers import devices
from launchers.agents import Node, SlotGone
from launchers.base import Launcher, Link, Resources
from launchers.driver import Driver, DriverLost, Refused
from launchers.layout import Layout, NodeCapacity, plan
from launchers.placing import Avoided, ClusterNode, choose
from launchers.reservation import NOBODY, Busy, Reservation, Rival
from launchers.slot import AgentSlot

_LOOPBACK = "127.0.0.1"
_GRANT_SECONDS = 5.0
"""For what is free by Ray's own account."""
_ANSWER_SECONDS = 45.0
"""An actor starts, or ends, within half a minute."""
_SETTLE_SECONDS = 3.0
"""What has just been given back is not free at once: only then others hold it."""
_POLL_SECONDS = 0.5
_RENEW_SECONDS = 15.0
"""For a slot whose nodes are gone to find others."""
_GROW_SECONDS = 3.0
_NODE_SHARE = 0.001
"""Of the resource that Ray gives each node under its address: whoever takes of it is on that node."""


class RayLink(Link):
    """A line to an agent through the actor that owns it."""

    def __init__(self, ground: "_Ground", bundle: int, log: str, env: Mapping[str, str]) -> None:
        self._cluster, self._node = ground.cluster, ground.nodes[bundle]
        layout = self._cluster.layout
        self.host = _LOOPBACK if layout.nodes == 1 else self._node.address
        self.where = str(self._node) if self._cluster.is_shared else ""
        self._wire = self._cluster.driver.wire()
        self._closed = False
        self._cluster.driver.call(
            "start",
            link=self._wire.number,
            group=ground.group,
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

    def loss(self) -> str:
        if self._cluster.driver.lost:
            return self._cluster.driver.lost
        return f"node {self._node} was lost" if self._wire.node_lost else ""

    def give_up(self) -> None:
        self._cluster.avoided.add(self._node.id)

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
        return driver.call(name, _ANSWER_SECONDS, link=self._wire.number, **arguments)


class _Cluster:
    """The nodes that a launcher's slots are on."""

    def __init__(self, resources: Resources, driver: Driver, address: str | None) -> None:
        self.driver = driver
        self.is_shared = address is not None
        """It is of others, too."""
        self.avoided = Avoided()
        self.taken: Counter[str] = Counter()
        self.size = 0
        """Nodes, as far as it is known."""
        self._resources = resources
        self._address = address or driver.address
        self.layout = self.plan(self.nodes())

    def nodes(self) -> list[ClusterNode]:
        """That live, by Ray's account."""
        found = [ClusterNode(**node) for node in self.driver.call("nodes")]
        self.size = len(found)
        return found

    def plan(self, nodes: list[ClusterNode]) -> Layout:
        """How slots lie on these. Nodes of a cluster may still come, or come back."""
        capacities = [NodeCapacity(int(node.has["CPU"]), int(node.has["GPU"])) for node in nodes]
        try:
            return plan(self._resources, capacities)
        except NotHere as error:
            if not self.is_shared:
                raise
            raise ClusterAway(
                f"the Ray cluster at {self._address} is too small at present: {error}"
            ) from None

    def busy(self, since: str) -> str:
        """Whom a slot waits for, in words."""
        layout = self.layout
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in layout.bundle.items())
        others = "; ".join(self.driver.call("others")) or "nobody that Ray knows of"
        return (
            f"since {since}: the Ray cluster at {self._address} has not {wanted} free on "
            f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}; there run: {others}"
        )


class _Ground:
    """The nodes under a slot: a placement group, and another one when it is gone."""

    _numbers = itertools.count(1)

    def __init__(self, cluster: _Cluster, heed: Callable[[], object]) -> None:
        """
        Args:
            heed: called again and again while there is no room yet; may raise.
        """
        self.cluster = cluster
        self.heed = heed
        self.group = 0
        self.nodes: list[ClusterNode] = []

    def take(self) -> bool:
        """All of a slot's bundles, or none; whether there was room for them."""
        cluster = self.cluster
        chosen = choose(cluster.layout, cluster.nodes(), cluster.avoided.now(), cluster.taken)
        if not chosen:
            return False
        group = next(self._numbers)
        bundles = [
            {**cluster.layout.bundle, f"node:{node.address}": _NODE_SHARE} for node in chosen
        ]
        granted = cluster.driver.call(
            "reserve",
            _GRANT_SECONDS + _ANSWER_SECONDS,
            self.heed,
            group=group,
            bundles=bundles,
            strategy="STRICT_SPREAD" if len(chosen) > 1 else "STRICT_PACK",
            patience=_GRANT_SECONDS,
        )
        if not granted:
            return False
        self.group = group
        by_id = {node.id: node for node in cluster.nodes()}
        where = cluster.driver.call("where", group=group)
        self.nodes = [
            by_id.get(node, near) for node, near in zip(where, chosen, strict=True)
        ]  # two nodes may have one address
        cluster.taken.update(node.id for node in self.nodes)
        return True

    def stand(self) -> None:
        """See that it is there, or take another one.

        Raises:
            SlotGone: it is not, and there is no room for another.
            DriverLost: Ray has ended our job.
        """
        cluster = self.cluster
        state = cluster.driver.call("stands", group=self.group)
        if state == "REMOVED":
            cluster.driver.give_up("Ray has ended this job: its placement groups are gone")
            raise DriverLost(cluster.driver.lost)
        nodes, avoided = cluster.nodes(), cluster.avoided.now()
        own = {node.id for node in self.nodes}
        if state == "CREATED" and own <= {node.id for node in nodes}:
            if not own & avoided:
                return
            others = [node for node in nodes if node.id not in avoided]
            if len(others) < cluster.layout.nodes:
                return  # the cluster is too small to do without them
        was = ", ".join(map(str, self.nodes))
        self.release()
        give_up = time.monotonic() + _RENEW_SECONDS
        while not self.take():
            if time.monotonic() > give_up:
                raise SlotGone(f"an agent was lost on {was}, and there is no room elsewhere")
            self.heed()
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        """Give the bundles back."""
        if self.group:
            self.cluster.taken.subtract(node.id for node in self.nodes)
            group, self.group = self.group, 0
            with contextlib.suppress(DriverLost, Refused):
                self.cluster.driver.call("release", group=group)


class RayLauncher(Launcher):
    """Slots on a Ray cluster; on a Ray of its own on this machine when no address is given.

    On a cluster that others use as well it begins with as many slots as there is room for, one at least,
    and adds others as room comes.
    """

    slots: list[AgentSlot]
    is_remote = True

    def __init__(
        self,
        resources: Resources,
        log_dir: str,
        address: str | None,
        busy: Busy,
        env: Mapping[str, str],
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise NotHere(
                "launcher: ray needs Ray, which is not installed here: pip install ray, or take "
                "launcher: local"
            )
        self._log = str(Path(log_dir) / "agent.log")
        self._env = dict(env)
        self._busy = busy
        self._grounds: list[_Ground] = []
        self._numbers = itertools.count()
        self._closing = threading.Event()
        self._growth: threading.Thread | None = None
        self._driver: Driver | None = None
        self.slots = []
        self._planned = 0
        self._reservation = Reservation(busy)
        try:
            if address is None and _is_for_processors(resources):
                self._reservation.take(devices.processors())
            self._driver = Driver(address, log_dir, self._joining(address))
            self._cluster = _Cluster(resources, self._driver, address)
            self._open(address)
        except Refused as error:
            self.close()
            raise LauncherError(f"the Ray cluster fails: {error}") from error
        except LauncherError:
            self.close()
            raise
        except BaseException:
            if self._driver:  # nobody waits for it any more, and it may take long to leave
                self._driver.give_up("its study is not to run")
            self.close()
            raise

    @property
    def address(self) -> str:
        """Of the cluster."""
        return self._cluster.driver.address

    @property
    def planned(self) -> int:
        """As many as all nodes had room for that were ever there at once."""
        return self._planned

    @property
    def several_nodes(self) -> bool:
        """Agents may be lost on one and not on another."""
        return self._cluster.size > 1

    def close(self) -> None:
        self._closing.set()
        try:
            for slot in self.slots:
                slot.close()
            for ground in self._grounds:
                ground.release()
            if self._driver:
                self._driver.close()
            if self._growth:
                self._growth.join()
        finally:
            self._reservation.close()

    def _joining(self, address: str | None) -> Callable[[str], object]:
        return lambda text: self._busy(Rival(0, text) if text and address else NOBODY)

    def _heed(self) -> None:
        """Hear, as it opens, that it need not."""
        self._busy(NOBODY)

    def _open(self, address: str | None) -> None:
        layout = self._cluster.layout
        self.workers = layout.nodes * layout.ranks_per_node
        self._planned = layout.slots
        self._wait_for_room()
        for _ in range(layout.slots - 1):
            if not self._add_slot(self._heed) and address is None:
                raise LauncherError(f"Ray has not granted {layout.slots} x {layout.bundle}")
        if address is None:  # others' clusters keep account themselves
            self._reservation.take(name for slot in self.slots for name in slot.cuda_devices)
        else:
            self._growth = threading.Thread(target=self._grow, name="growth", daemon=True)
            self._growth.start()

    def _wait_for_room(self) -> None:
        """Open the first slot as soon as others leave room for it."""
        began, since = time.monotonic(), time.strftime("%H:%M:%S")
        while not self._add_slot(self._heed):
            settled = time.monotonic() - began > _SETTLE_SECONDS
            self._busy(Rival(0, self._cluster.busy(since)) if settled else NOBODY)
            time.sleep(_POLL_SECONDS)

    def _add_slot(self, heed: Callable[[], object]) -> bool:
        """Open one more if there is room; whether there was.

        Args:
            heed: called again and again meanwhile; may raise.
        """
        ground = _Ground(self._cluster, heed)
        if not ground.take():
            return False
        self._grounds.append(ground)
        layout = self._cluster.layout
        ranks = layout.ranks_per_node
        nodes = [Node(self._connecting(ground, b), ranks) for b in range(layout.nodes)]
        name = f"ray-{next(self._numbers)}"
        try:
            slot = AgentSlot(name, nodes, gpus_per_worker=layout.gpus_per_worker, heed=heed)
        except BaseException:
            ground.release()
            raise
        ground.heed = slot.heed
        self.slots.append(slot)
        return True

    def _connecting(self, ground: _Ground, bundle: int) -> Callable[[], RayLink]:
        def connect() -> RayLink:
            if bundle == 0:
                ground.stand()
            return RayLink(ground, bundle, self._log, self._env)

        return connect

    def _grow(self) -> None:
        """Add slots as room comes: others leave, nodes come, or come back."""
        while not self._closing.wait(_GROW_SECONDS):
            with contextlib.suppress(LauncherError):
                wanted = self._cluster.plan(self._cluster.nodes()).slots
                self._planned = max(self._planned, wanted)
                if sum(not slot.unusable and not slot.gone for slot in self.slots) < wanted:
                    self._add_slot(lambda: None)


def _is_for_processors(resources: Resources) -> bool:
    return not plan(resources, [devices.this_machine()]).gpus_per_worker
