"""A study's share of a Ray cluster: what it is owed, and what it gives back."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from launchers.placement import ClusterNode
from launchers.ray_nodes import Cluster, Demand, strategy_of
from launchers.shares import (
    Gift,
    Holding,
    Tenant,
    gifts,
    group_of,
    holdings,
    is_owed,
    may_take,
    size_of,
)


class RayShares:
    """Devices that the studies on a cluster hold and wait for, as their placement groups tell.

    What is true at two looks in a row counts: between a slot that is granted and one that is taken a
    study neither holds it nor waits for it.
    """

    def __init__(self, cluster: Cluster, tenant: Tenant) -> None:
        self._cluster = cluster
        self._own = Holding(tenant, str(cluster.driver.call("job")))
        self._demand = Demand(cluster.driver, tenant)
        self._known: dict[str, Holding] = {}
        self._given: Sequence[Gift] = ()
        self._might_take = True
        self._size = 1.0
        """Share of the cluster that a slot takes."""
        self.surplus = 0
        """Number of slots to give back now."""
        self.may_take = True
        """True if a slot that is free is not for a study that needs it more."""

    def look(self, living: Sequence[ClusterNode]) -> bool:
        """Read what all studies hold and wait for.

        Args:
            living: all nodes of the cluster.

        Returns:
            Whether the slot that this study waited for was granted, and is free to be taken.
        """
        granted = self._demand.withdraw_if_granted()
        total: Counter[str] = Counter()
        for node in living:
            total.update(node.has)
        self._known = self._read(total)
        layout = self._cluster.layout
        self._size = size_of([layout.bundle] * layout.nodes, total)
        own = self._own.job
        before, self._given = self._given, [g for g in gifts(self._known) if g.giver == own]
        self.surplus = min(sum(gift.slots for gift in given) for given in (before, self._given))
        might, self._might_take = self._might_take, may_take(own, self._size, self._known)
        self.may_take = granted or (might and self._might_take and not self._given)
        return granted

    @property
    def takers(self) -> str:
        """Studies that slots are given back for."""
        return " and ".join(str(gift.taker.tenant) for gift in self._given)

    @property
    def is_asking(self) -> bool:
        """True while it waits for one more slot, which others are to give back."""
        return self._demand.is_pending

    def ask(self, *, lacks: bool) -> None:
        """Wait for one more slot if other studies would give it back; else for none.

        Args:
            lacks: True if the study could use one.
        """
        if lacks and is_owed(self._own.job, self._size, self._known):
            layout = self._cluster.layout
            self._demand.ask([layout.bundle] * layout.nodes, strategy_of(layout.nodes))
        else:
            self._demand.withdraw()

    def _read(self, total: Counter[str]) -> dict[str, Holding]:
        told = self._cluster.driver.call("named_groups")
        groups = (
            group_of(one["name"], waits=one["waits"], size=size_of(one["bundles"], total))
            for one in told
        )
        known = holdings(filter(None, groups))
        return {self._own.job: dataclasses.replace(self._own), **known}
