"""Choice of the nodes of a slot: nodes with room, without those that have just failed. Pure."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from launchers.layout import Layout, slots_on

_ROUNDING = 1e-6
FIRST_SECONDS = 30.0
"""Time for which a node is avoided after its first loss; doubled at each further loss."""
MOST_SECONDS = 480.0
"""Longest such time. A node without losses for this long counts as sound again."""


@dataclass(frozen=True)
class ClusterNode:
    """A living node, as the cluster reports it.

    Attributes:
        id: identifier, a new one after each restart.
        has: total amounts of CPU and GPU.
        free: amounts that are not held.
    """

    id: str
    address: str
    host: str
    has: Mapping[str, float]
    free: Mapping[str, float]

    def __str__(self) -> str:
        return self.host if self.host == self.address else f"{self.host} ({self.address})"


class AvoidedNodes:
    """Nodes on which an agent was lost, each avoided for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._losses: Counter[str] = Counter()
        self._failed: set[str] = set()
        """Nodes on which a slot did not open."""

    def add(self, node: str) -> None:
        """Record that an agent was lost on a node."""
        now, until = self._clock(), self._until.get(node, -math.inf)
        if until > now:
            return  # other agents have reported the same incident
        if now - until > MOST_SECONDS:
            self._losses.pop(node, None)
        self._until[node] = now + min(FIRST_SECONDS * 2.0 ** self._losses[node], MOST_SECONDS)
        self._losses[node] += 1

    def first_failures(self, nodes: Collection[str]) -> set[str]:
        """Record that a slot did not open on these nodes; return those that fail for the first time.

        Those whose agents were lost are avoided already, and then the others are not to blame.
        """
        avoided = self.now()
        failed = [node for node in nodes if node in avoided] or list(nodes)
        for node in failed:
            self.add(node)
        new = set(failed) - self._failed
        self._failed |= new
        return new

    def now(self) -> set[str]:
        """Return the ids of the nodes that are avoided at present."""
        now = self._clock()
        return {node for node, until in self._until.items() if until > now}


def choose(
    layout: Layout,
    nodes: Sequence[ClusterNode],
    avoided: Collection[str],
    taken: Mapping[str, int],
) -> list[ClusterNode]:
    """Return a node for each bundle of one more slot; none if not all bundles have room.

    Avoided nodes are taken where the cluster is too small to do without them.

    Args:
        taken: number of bundles of other slots by node id. On the CPU fewer are better, because
            they disturb each other.
    """
    there = [node for node in nodes if _holds(node.has, layout.bundle)]
    sound = [node for node in there if node.id not in avoided]
    usable = sound if len(sound) >= layout.nodes else there
    free = [node for node in usable if _holds(node.free, layout.bundle)]
    on_cpu = "GPU" not in layout.bundle
    free.sort(key=lambda node: (on_cpu * taken.get(node.id, 0), node.address, node.id))
    return free[: layout.nodes] if len(free) >= layout.nodes else []


def room(layout: Layout, nodes: Sequence[ClusterNode], own: Mapping[str, int]) -> int:
    """Return the number of slots that fit into what is free and what the study itself holds.

    Args:
        own: number of bundles of the study by node id.
    """

    def bundles(node: ClusterNode) -> int:
        free = (node.free.get(name, 0.0) / amount for name, amount in layout.bundle.items())
        return own.get(node.id, 0) + math.floor(min(free) + _ROUNDING)

    return slots_on([bundles(node) for node in nodes], layout.nodes)


def _holds(amounts: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(amounts.get(name, 0.0) + _ROUNDING >= amount for name, amount in bundle.items())
