"""Nodes of a Ray cluster that a study may use: those that live and are alike; and slots placed on them.

A slot is a placement group: bundles on nodes of its own.
"""

import contextlib
import dataclasses
import itertools
import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import autotune
from autotune.errors import ClusterAway, NotHere
from launchers.agents import SlotGone
from launchers.base import Resources
from launchers.driver import Driver, DriverLost, Refused
from launchers.layout import Layout, NodeCapacity, devices_of_others, on_devices, plan
from launchers.node_compat import (
    CommonKind,
    NodeInfo,
    describe_kinds,
    device_kind,
    from_agent,
    is_of,
    kind_with_most_ranks,
    most_common_software,
)
from launchers.placement import AvoidedNodes, ClusterNode, choose
from launchers.shares import Tenant

ANSWER_SECONDS = 45.0
"""Timeout of a call: an actor starts, or ends, within half a minute."""
_QUERY_SECONDS = 10.0
"""Timeout of a node's information. A node that misses it tells its kind as its agent starts."""
_GRANT_SECONDS = 5.0
"""Timeout for resources that are free by Ray's own account."""
_RENEW_SECONDS = 15.0
"""Timeout for a slot whose nodes are gone to find others."""
_NODE_SHARE = 0.001
"""Share of the resource that Ray gives each node under its address; taking it places a bundle
there."""
_POLL_SECONDS = 0.5
_ANSWERED = ("CREATED", "REMOVED")
"""States of a placement group that waits no more."""
_NUMBERS = itertools.count(1)
"""Numbers of placement groups in this process."""


class TooSmall(ClusterAway):
    """Lack of nodes of a shared cluster, which may still come.

    Attributes:
        resources: what is asked for.
    """

    def __init__(self, text: str, resources: Resources) -> None:
        super().__init__(text)
        self.resources = resources


class Cluster:
    """The nodes that a launcher's slots are on."""

    def __init__(self, resources: Resources, driver: Driver, address: str | None) -> None:
        self.driver = driver
        self.is_shared = address is not None
        """True if other jobs use it, too."""
        self.avoided = AvoidedNodes()
        self.taken: Counter[str] = Counter()
        self.size = 0
        """Number of nodes, as far as known."""
        self.device = resources.device
        # A node that is missing may still come: ranks wait for it rather than share processors.
        self._resources = dataclasses.replace(
            resources, shares_cpus=resources.shares_cpus and not self.is_shared
        )
        self._address = address or driver.address
        self._infos: dict[str, NodeInfo] = {}
        """Information by node."""
        self._left_out: dict[str, str] = {}
        """Reason why a node is left out, by node."""
        self.notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Messages about nodes."""
        self._same = CommonKind(autotune.__version__)
        self._told = ""
        """Kind that agents tell; empty before the first. They name what they see of a device."""
        everywhere = self.living()
        if self.is_shared:
            self._query(everywhere)
            self._resources = on_devices(self._resources, _capacities(everywhere))
            self._same = self._common(everywhere)
        self.layout = self.plan(self.fit(everywhere))
        if notice := self.layout.notice():
            self.notices.put(notice)

    def nodes(self) -> list[ClusterNode]:
        """Return nodes that live, by Ray's account, and may take slots."""
        return self.fit(self.living())

    def living(self) -> list[ClusterNode]:
        """Return nodes that live, whatever they are."""
        found = [ClusterNode(**node) for node in self.driver.call("nodes")]
        self.size = len(found)
        return found

    def fit(self, nodes: list[ClusterNode]) -> list[ClusterNode]:
        """Return the nodes that are of the study's common kind."""
        if self.is_shared:
            self._query(nodes)
            for node in nodes:
                self._leave_out(node, self._same.mismatch(self._infos.get(node.id, {})))
        return [node for node in nodes if node.id not in self._left_out]

    def are_fit(self, nodes: list[ClusterNode], environment: Mapping[str, Any]) -> bool:
        """Return whether nodes are of the common kind, by what their agents report.

        Those that are not take no further slots. Other slots stay on them: a node may have devices of
        two kinds.

        Args:
            environment: environment of a slot on these nodes.
        """
        if not self.is_shared:
            return True
        told = [from_agent(one) for one in (environment, *environment.get("others", ()))]
        kind = self._told or self._kind_told(told[0])
        same = dataclasses.replace(self._same, kind=kind)
        reasons = [same.mismatch(info) or devices_of_others(info, self.layout) for info in told]
        for node, why in zip(nodes, reasons, strict=True):
            self._leave_out(node, why)
        if any(reasons):
            return False
        self._told = kind
        return True

    def _kind_told(self, first: NodeInfo) -> str:
        """Return the kind that agents are to tell, by the first of them.

        An agent names a part of a device (MIG), and only the devices that Ray gave it; a look names all
        boards of a node. So agents are compared with agents.
        """
        if not self._same.on_gpu:
            return self._same.kind
        return self.device or device_kind(first, on_gpu=True)

    def _leave_out(self, node: ClusterNode, why: str) -> None:
        if why and node.id not in self._left_out:
            self._left_out[node.id] = f"node {node}: {why}"
            self.notices.put(f"Left out: {self._left_out[node.id]}.")

    def pass_over(self, nodes: list[ClusterNode], why: BaseException) -> None:
        """Avoid nodes on which a slot did not open, for now, and tell it the first time."""
        failed = self.avoided.first_failures([node.id for node in nodes])
        for node in nodes:
            if node.id in failed:
                self.notices.put(f"Left out for now: node {node}: {why}.")

    def _query(self, nodes: list[ClusterNode]) -> None:
        unseen = [node.id for node in nodes if node.id not in self._infos]
        if unseen:
            seconds = _QUERY_SECONDS + ANSWER_SECONDS
            found = self.driver.call("node_info", seconds, nodes=unseen, patience=_QUERY_SECONDS)
            # Each node is asked once: one that does not answer is not waited for repeatedly.
            self._infos |= {node: found.get(node, {}) for node in unseen}

    def _common(self, nodes: list[ClusterNode]) -> CommonKind:
        """Return the software and kind of device that the study's nodes are to have in common."""
        on_gpu = self._resources.gpus_per_worker != 0 and any(node.has["GPU"] for node in nodes)
        able = [node for node in nodes if node.has["GPU"]] if on_gpu else nodes
        same = most_common_software(autotune.__version__, [self._infos[node.id] for node in able])
        same = dataclasses.replace(same, on_gpu=on_gpu)
        fit = [node for node in able if not same.software_mismatch(self._infos[node.id])]
        kinds = [device_kind(self._infos[node.id], on_gpu=on_gpu) for node in fit]

        def ranks(kind: str) -> int:
            own = [node for node, its in zip(fit, kinds, strict=True) if its == kind]
            with contextlib.suppress(NotHere):
                layout = plan(self._resources, _capacities(own))
                return layout.slots * layout.nodes * layout.ranks_per_node
            return 0

        wanted = self.device
        chosen = next((kind for kind in kinds if wanted and is_of(kind, wanted)), "")
        if wanted and fit and not chosen and all(kinds):
            raise ClusterAway(
                f"no node of the Ray cluster at {self._address} has resources.device: {wanted}; there "
                f"are: {describe_kinds(kinds)}"
            )
        chosen = chosen or wanted or kind_with_most_ranks(kinds, ranks)
        if len(set(kinds)) > 1:
            self.notices.put(f"There are {describe_kinds(kinds)}; this study runs on {chosen}.")
        return dataclasses.replace(same, kind=chosen)

    def plan(self, nodes: list[ClusterNode]) -> Layout:
        """Return the layout on these nodes.

        Nodes of a shared cluster may still come, or come back.
        """
        try:
            return plan(self._resources, _capacities(nodes))
        except NotHere as error:
            if not self.is_shared:
                raise
            raise TooSmall(
                f"the Ray cluster at {self._address} is too small at present: {error}{self._without}",
                self._resources,
            ) from None

    @property
    def _without(self) -> str:
        """Reasons why nodes are left out, to follow a message; empty if none is."""
        return "".join(f"; left out: {why}" for why in self._left_out.values())

    def busy(self, since: str) -> str:
        """Return what a slot waits for, as a message."""
        layout = self.layout
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in layout.bundle.items())
        others = "; ".join(self.driver.call("others")) or "no job that Ray knows of"
        return (
            f"since {since}: the Ray cluster at {self._address} has not {wanted} free on "
            f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}; running there: {others}"
            f"{self._without}"
        )


def _capacities(nodes: Sequence[ClusterNode]) -> list[NodeCapacity]:
    return [NodeCapacity(int(node.has["CPU"]), int(node.has["GPU"])) for node in nodes]


def strategy_of(nodes: int) -> str:
    """Return Ray's strategy for bundles that are each on a node of its own."""
    return "STRICT_SPREAD" if nodes > 1 else "STRICT_PACK"


def as_words(tenant: Tenant | None) -> tuple[str, str, float] | None:
    """Return the fields of a study's tenant for a call of the driver."""
    return dataclasses.astuple(tenant) if tenant else None


class Demand:
    """A pending placement group, by which Ray's autoscaler hears of a slot that has no room.

    Other studies on the cluster hear of it as well, by its name. It goes with the driver.
    """

    def __init__(self, driver: Driver, tenant: Tenant | None) -> None:
        self._driver = driver
        self._tenant = as_words(tenant)
        self._group = 0

    @property
    def is_pending(self) -> bool:
        """True while something is asked for."""
        return bool(self._group)

    def ask(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> None:
        """Ask for these bundles, unless something is asked for already."""
        if not self._group:
            group = next(_NUMBERS)
            self._driver.call(
                "ask",
                group=group,
                bundles=list(bundles),
                strategy=strategy,
                tenant=self._tenant,
            )
            self._group = group  # not before: a call may be refused

    def withdraw_if_granted(self) -> bool:
        """Give back what has been granted: the slot itself chooses among nodes.

        Returns:
            Whether it was granted.
        """
        granted = self.is_pending and self._driver.call("stands", group=self._group) in _ANSWERED
        if granted:
            self.withdraw()
        return granted

    def withdraw(self) -> None:
        """Ask for nothing any more."""
        if self._group:
            group, self._group = self._group, 0
            self._driver.call("release", group=group)


class SlotPlacement:
    """The nodes under a slot: a placement group, replaced when it is gone."""

    def __init__(
        self, cluster: Cluster, tenant: Tenant | None, on_wait: Callable[[], object]
    ) -> None:
        """Prepare a placement that holds nothing yet.

        Args:
            tenant: study after which its groups are named; None: they have no name.
            on_wait: called repeatedly while there is no room yet; may raise.
        """
        self.cluster = cluster
        self._tenant = as_words(tenant)
        self.on_wait = on_wait
        self.group = 0
        self.nodes: list[ClusterNode] = []
        self._is_refused = False
        """True if the present nodes are not to be kept."""

    def reserve(self) -> bool:
        """Reserve all bundles of a slot or none; return whether there was room."""
        cluster = self.cluster
        chosen = choose(cluster.layout, cluster.nodes(), cluster.avoided.now(), cluster.taken)
        if not chosen:
            return False
        group = next(_NUMBERS)
        bundles = [
            {**cluster.layout.bundle, f"node:{node.address}": _NODE_SHARE} for node in chosen
        ]
        granted = cluster.driver.call(
            "reserve",
            _GRANT_SECONDS + ANSWER_SECONDS,
            self.on_wait,
            group=group,
            bundles=bundles,
            strategy=strategy_of(len(chosen)),
            patience=_GRANT_SECONDS,
            tenant=self._tenant,
        )
        if not granted:
            return False
        self.group, self.nodes, self._is_refused = group, [], False
        try:
            self.nodes = self._granted(chosen)
        except BaseException:
            self.release()
            raise
        cluster.taken.update(node.id for node in self.nodes)
        return True

    def _granted(self, chosen: list[ClusterNode]) -> list[ClusterNode]:
        """Return the nodes on which the bundles are: two nodes may have one address."""
        by_id = {node.id: node for node in self.cluster.nodes()}
        where = self.cluster.driver.call("where", group=self.group)
        return [by_id.get(node, near) for node, near in zip(where, chosen, strict=True)]

    def ensure(self) -> None:
        """Check that the group exists, or reserve another one.

        Raises:
            SlotGone: the group is gone, and there is no room for another.
            DriverLost: Ray has ended our job.
        """
        cluster = self.cluster
        # No group is held if an earlier search for another place has failed.
        state = cluster.driver.call("stands", group=self.group) if self.group else ""
        if state == "REMOVED":
            cluster.driver.give_up("Ray has ended this job: its placement groups are gone")
            raise DriverLost(cluster.driver.lost)
        living = cluster.living()
        nodes, avoided = cluster.fit(living), cluster.avoided.now()
        own = {node.id for node in self.nodes}
        stays = not self._is_refused and own <= {node.id for node in living}
        if state == "CREATED" and stays:
            if not own & avoided:
                return
            others = [node for node in nodes if node.id not in avoided]
            if len(others) < cluster.layout.nodes:
                return  # the cluster is too small to do without them
        was = ", ".join(map(str, self.nodes))
        why = "has other devices or software" if self._is_refused else "was lost, or is to go"
        self.release()
        give_up = time.monotonic() + _RENEW_SECONDS
        while not self.reserve():
            if time.monotonic() > give_up:
                raise SlotGone(f"{was} {why}, and there is no room elsewhere")
            self.on_wait()
            time.sleep(_POLL_SECONDS)

    def accepts(self, environment: Mapping[str, Any]) -> bool:
        """Return whether the nodes are of the common kind; those that are not are not kept.

        Args:
            environment: environment of the slot's agents there.
        """
        self._is_refused = not self.cluster.are_fit(self.nodes, environment)
        return not self._is_refused

    def release(self) -> None:
        """Give the bundles back."""
        if self.group:
            self.cluster.taken.subtract(node.id for node in self.nodes)
            group, self.group = self.group, 0
            with contextlib.suppress(DriverLost, Refused):
                self.cluster.driver.call("release", group=group)
