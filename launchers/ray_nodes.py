"""Nodes of a Ray cluster that a study may use: those that live and are alike."""

import contextlib
import dataclasses
import queue
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import autotune
from autotune.errors import ClusterAway, NotHere
from launchers.base import Resources
from launchers.driver import Driver
from launchers.layout import Layout, NodeCapacity, plan
from launchers.node_compat import (
    CommonKind,
    NodeInfo,
    describe_kinds,
    device_kind,
    from_agent,
    kind_with_most_ranks,
    most_common_software,
)
from launchers.placement import AvoidedNodes, ClusterNode

ANSWER_SECONDS = 45.0
"""Timeout of a call: an actor starts, or ends, within half a minute."""
_QUERY_SECONDS = 10.0
"""Timeout of a node's information. A node that misses it tells its kind as its agent starts."""


class TooSmall(ClusterAway):
    """Lack of nodes of a shared cluster, which may still come."""


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
        everywhere = self.living()
        if self.is_shared:
            self._query(everywhere)
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
                self._judge(node, self._infos.get(node.id, {}))
        return [node for node in nodes if node.id not in self._left_out]

    def are_fit(self, nodes: list[ClusterNode], environment: Mapping[str, Any]) -> bool:
        """Return whether nodes are of the common kind, by what their agents report.

        Args:
            environment: environment of a slot on these nodes.
        """
        if not self.is_shared:
            return True
        told = [environment, *environment.get("others", ())]
        for node, one in zip(nodes, told, strict=True):
            self._judge(node, from_agent(one))
        return not any(node.id in self._left_out for node in nodes)

    def _judge(self, node: ClusterNode, info: NodeInfo) -> None:
        why = self._same.mismatch(info)
        if why and node.id not in self._left_out:
            self._left_out[node.id] = f"node {node}: {why}"
            self.notices.put(f"Left out: {self._left_out[node.id]}.")

    def _query(self, nodes: list[ClusterNode]) -> None:
        unseen = [node.id for node in nodes if node.id not in self._infos]
        if unseen:
            seconds = _QUERY_SECONDS + ANSWER_SECONDS
            found = self.driver.call("node_info", seconds, nodes=unseen, patience=_QUERY_SECONDS)
            # Each node is asked once: one that does not answer is not waited for repeatedly.
            self._infos |= {node: found.get(node, {}) for node in unseen}

    def _common(self, nodes: list[ClusterNode]) -> CommonKind:
        """Return the software and kind of device that the study's nodes are to have in common."""
        same = most_common_software(autotune.__version__, [self._infos[node.id] for node in nodes])
        fit = [node for node in nodes if not same.software_mismatch(self._infos[node.id])]
        with contextlib.suppress(NotHere):
            on_gpu = bool(plan(self._resources, _capacities(fit)).gpus_per_worker)
            same = dataclasses.replace(same, on_gpu=on_gpu)
        kinds = [device_kind(self._infos[node.id], on_gpu=same.on_gpu) for node in fit]

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
                f"are: {describe_kinds(kinds)}"
            )
        chosen = wanted or kind_with_most_ranks(kinds, ranks)
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
            others = "".join(f"; left out: {why}" for why in self._left_out.values())
            raise TooSmall(
                f"the Ray cluster at {self._address} is too small at present: {error}{others}"
            ) from None

    def busy(self, since: str) -> str:
        """Return what a slot waits for, as a message."""
        layout = self.layout
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in layout.bundle.items())
        others = "; ".join(self.driver.call("others")) or "no job that Ray knows of"
        return (
            f"since {since}: the Ray cluster at {self._address} has not {wanted} free on "
            f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}; running there: {others}"
        )


def _capacities(nodes: Sequence[ClusterNode]) -> list[NodeCapacity]:
    return [NodeCapacity(int(node.has["CPU"]), int(node.has["GPU"])) for node in nodes]
