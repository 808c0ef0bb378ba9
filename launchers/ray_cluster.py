"""Trials on a Ray cluster: a slot is a placement group, with one agent-owning actor per node.

This process never talks to Ray itself: see launchers.driver.
"""

import base64
import contextlib
import dataclasses
import importlib.util
import itertools
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import autotune
from autotune.errors import ClusterAway, LauncherError, NotHere
from autotune.trial.files import make_private
from launchers import devices
from launchers.agents import Node, SlotGone
from launchers.base import Launcher, Link, Resources
from launchers.driver import Driver, DriverLost, Refused
from launchers.layout import Layout, NodeCapacity, plan
from launchers.placing import Avoided, ClusterNode, choose
from launchers.reservation import NOBODY, Busy, Reservation, Rival
from launchers.sameness import Look, Same, check, commonest, kind_of, listed, most_ranks, of_agent
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
_LOOK_SECONDS = 10.0
"""For a node to say what it is. One that does not says so as its agent starts."""
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

    def bring(self, folder: Path) -> None:
        token = f"brought-{secrets.token_hex(8)}"
        with contextlib.suppress(DriverLost, Refused, OSError):
            make_private(folder)
            (folder / token).touch()
            try:
                files = self._cluster.driver.call(
                    "taken",
                    _ANSWER_SECONDS,
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
        self.device = resources.device
        self._resources = resources
        self._address = address or driver.address
        self._looks: dict[str, Look] = {}
        """By node."""
        self._left_out: dict[str, str] = {}
        """Why, in words, by node."""
        self.news: queue.SimpleQueue[str] = queue.SimpleQueue()
        """What there is to say of nodes."""
        self._same = Same(autotune.__version__)
        everywhere = self.living()
        if self.is_shared:
            self._look_at(everywhere)
            self._same = self._common(everywhere)
        self.layout = self.plan(self.fit(everywhere))

    def nodes(self) -> list[ClusterNode]:
        """That live, by Ray's account, and may make slots."""
        return self.fit(self.living())

    def living(self) -> list[ClusterNode]:
        """The same, whatever they are."""
        found = [ClusterNode(**node) for node in self.driver.call("nodes")]
        self.size = len(found)
        return found

    def fit(self, nodes: list[ClusterNode]) -> list[ClusterNode]:
        """Those of them that are as all others of the study."""
        if self.is_shared:
            self._look_at(nodes)
            for node in nodes:
                self._judge(node, self._looks.get(node.id, {}))
        return [node for node in nodes if node.id not in self._left_out]

    def are_fit(self, nodes: list[ClusterNode], environment: Mapping[str, Any]) -> bool:
        """Whether they are, by what their agents say.

        Args:
            environment: of a slot on these nodes.
        """
        if not self.is_shared:
            return True
        told = [environment, *environment.get("others", ())]
        for node, one in zip(nodes, told, strict=True):
            self._judge(node, of_agent(one))
        return not any(node.id in self._left_out for node in nodes)

    def _judge(self, node: ClusterNode, look: Look) -> None:
        why = self._same.misfit(look)
        if why and node.id not in self._left_out:
            self._left_out[node.id] = f"node {node}: {why}"
            self.news.put(f"Left out: {self._left_out[node.id]}.")

    def _look_at(self, nodes: list[ClusterNode]) -> None:
        unseen = [node.id for node in nodes if node.id not in self._looks]
        if unseen:
            seconds = _LOOK_SECONDS + _ANSWER_SECONDS
            found = self.driver.call("look", seconds, nodes=unseen, patience=_LOOK_SECONDS)
            # Once: a node that does not answer is not waited for again and again.
            self._looks |= {node: found.get(node, {}) for node in unseen}

    def _common(self, nodes: list[ClusterNode]) -> Same:
        """What the nodes of the study are to have in common: software, kind of device."""
        same = commonest(autotune.__version__, [self._looks[node.id] for node in nodes])
        fit = [node for node in nodes if not same.other_software(self._looks[node.id])]
        with contextlib.suppress(NotHere):
            on_gpu = bool(plan(self._resources, _capacities(fit)).gpus_per_worker)
            same = dataclasses.replace(same, on_gpu=on_gpu)
        kinds = [kind_of(self._looks[node.id], on_gpu=same.on_gpu) for node in fit]

        def ranks(kind: str) -> int:
            own = [node for node, its in zip(fit, kinds, strict=True) if its == kind]
            with contextlib.suppress(NotHere):
                layout = plan(self._resources, _capacities(own))
                return layout.slots * layout.nodes * layout.ranks_per_node
            return 0

        wanted = self.device
        if wanted and fit and wanted not in kinds and all(kinds):
            raise ClusterAway(
                f"no node of the Ray cluster at {self._address} has resources.device: {wanted}; there "
                f"are: {listed(kinds)}"
            )
        chosen = wanted or most_ranks(kinds, ranks)
        if len(set(kinds)) > 1:
            self.news.put(f"There are {listed(kinds)}; this study runs on {chosen}.")
        return dataclasses.replace(same, kind=chosen)

    def plan(self, nodes: list[ClusterNode]) -> Layout:
        """How slots lie on these. Nodes of a cluster may still come, or come back."""
        try:
            return plan(self._resources, _capacities(nodes))
        except NotHere as error:
            if not self.is_shared:
                raise
            others = "".join(f"; left out: {why}" for why in self._left_out.values())
            raise ClusterAway(
                f"the Ray cluster at {self._address} is too small at present: {error}{others}"
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


def _capacities(nodes: Sequence[ClusterNode]) -> list[NodeCapacity]:
    return [NodeCapacity(int(node.has["CPU"]), int(node.has["GPU"])) for node in nodes]


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
                raise SlotGone(f"{was} was lost, or is to go, and there is no room elsewhere")
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

    def news(self) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._cluster.news.get_nowait())
        return found

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
            on_gpu = bool(layout.gpus_per_worker)
            check(self._cluster.device, self.slots[0].environment, on_gpu=on_gpu)
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
        if not self._cluster.are_fit(ground.nodes, slot.environment):
            slot.close()
            ground.release()
            self._grounds.remove(ground)
            return False
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
