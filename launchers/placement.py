"""Which nodes of a cluster a slot takes: those with room, and none that has just failed. Pure."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from launchers.layout import Layout

_ROUNDING = 1e-6
FIRST_SECONDS = 30.0
"""For which a node is avoided; twice as long each time."""
MOST_SECONDS = 480.0
"""When nothing has happened for so long since, it is as good as any."""


@dataclass(frozen=True)
class ClusterNode:
    """A living node, as the cluster tells of it.

    Attributes:
        id: another one after each restart.
        has: amounts of CPU and GPU.
        free: of them, those that nobody holds.
    """

    id: str
    address: str
    host: str
    has: Mapping[str, float]
    free: Mapping[str, float]

    def __str__(self) -> str:
        return self.host if self.host == self.address else f"{self.host} ({self.address})"


class AvoidedNodes:
    """Nodes that an agent was lost on, each for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._losses: Counter[str] = Counter()

    def add(self, node: str) -> None:
        """An agent was lost there."""
        now, until = self._clock(), self._until.get(node, -math.inf)
        if until > now:
            return  # of one incident, others have told already
        if now - until > MOST_SECONDS:
            self._losses.pop(node, None)
        self._until[node] = now + min(FIRST_SECONDS * 2.0 ** self._losses[node], MOST_SECONDS)
        self._losses[node] += 1

    def now(self) -> set[str]:
        """Return those that are to be avoided at present, by id."""
        now = self._clock()
        return {node for node, until in self._until.items() if until > now}


def choose(
    layout: Layout,
    nodes: Sequence[ClusterNode],
    avoided: Collection[str],
    taken: Mapping[str, int],
) -> list[ClusterNode]:
    """Return a node for each bundle of one more slot; none if there is no room for all of them.

    Where the cluster is too small to do without them, avoided nodes are taken.

    Args:
        avoided: by id.
        taken: bundles that other slots have there, by id: on the CPU the fewer the better, because they
            disturb each other.
    """
    there = [node for node in nodes if _holds(node.has, layout.bundle)]
    sound = [node for node in there if node.id not in avoided]
    usable = sound if len(sound) >= layout.nodes else there
    free = [node for node in usable if _holds(node.free, layout.bundle)]
    on_cpu = "GPU" not in layout.bundle
    free.sort(key=lambda node: (on_cpu * taken.get(node.id, 0), node.address, node.id))
    return free[: layout.nodes] if len(free) >= layout.nodes else []


def _holds(amounts: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(amounts.get(name, 0.0) + _ROUNDING >= amount for name, amount in bundle.items())
