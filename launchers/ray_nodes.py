"""The nodes of a Ray cluster that a study may have: which of them there are, and which are alike."""

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
from launchers.placing import Avoided, ClusterNode
from launchers.sameness import Look, Same, commonest, kind_of, listed, most_ranks, of_agent

ANSWER_SECONDS = 45.0
"""An actor starts, or ends, within half a minute."""
_LOOK_SECONDS = 10.0
"""For a node to say what it is. One that does not says so as its agent starts."""


class Cluster:
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
            seconds = _LOOK_SECONDS + ANSWER_SECONDS
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
