"""Placement group of a slot in a Ray cluster: bundles on nodes of its own."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from launchers.agents import SlotGone
from launchers.driver import Driver, DriverLost, Refused
from launchers.placement import ClusterNode, choose
from launchers.ray_nodes import ANSWER_SECONDS, Cluster
from launchers.shares import Tenant

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
            self._group = next(_NUMBERS)
            self._driver.call(
                "ask",
                group=self._group,
                bundles=list(bundles),
                strategy=strategy,
                tenant=self._tenant,
            )

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
        self.group = group
        by_id = {node.id: node for node in cluster.nodes()}
        where = cluster.driver.call("where", group=group)
        self.nodes = [
            by_id.get(node, near) for node, near in zip(where, chosen, strict=True)
        ]  # two nodes may have one address
        cluster.taken.update(node.id for node in self.nodes)
        return True

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
        while not self.reserve():
            if time.monotonic() > give_up:
                raise SlotGone(f"{was} was lost, or is to go, and there is no room elsewhere")
            self.on_wait()
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        """Give the bundles back."""
        if self.group:
            self.cluster.taken.subtract(node.id for node in self.nodes)
            group, self.group = self.group, 0
            with contextlib.suppress(DriverLost, Refused):
                self.cluster.driver.call("release", group=group)
