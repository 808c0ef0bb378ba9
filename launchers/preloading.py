"""Modules that the agents of a slot import once for all trials, learnt from an early trial."""

from collections.abc import Mapping

from autotune.worker.protocol import Preload, WorkloadBuilt

_WORTH_NEW_AGENTS_SECONDS = 1.0
"""Seconds to build a workload, in every trial, that justify new agents. These take two or three,
once."""


class Preloading:
    """Modules to preload: at first none, then those that building the workload imported.

    They are preloaded only if that saves time.
    """

    def __init__(self, nodes: int, energy_of: str = "") -> None:
        """Preload nothing yet.

        Args:
            nodes: number of agents.
            energy_of: devices whose energy has to be readable, 'cpu' or 'cuda'; the first agents tell
                whether it is. Empty: it is not asked for.
        """
        self.by_node = [Preload(energy_of=energy_of)] * nodes
        self._learnt = False

    @property
    def wanted(self) -> bool:
        """True if there are modules to import."""
        return any(preload.modules for preload in self.by_node)

    def learn(self, built: Mapping[int, WorkloadBuilt]) -> bool:
        """Take in what the nodes report of a trial; return whether new agents would save time."""
        if self._learnt or len(built) < len(self.by_node):
            return False
        self._learnt = True
        if max(report.seconds for report in built.values()) > _WORTH_NEW_AGENTS_SECONDS:
            self.by_node = [built[node].preload for node in range(len(self.by_node))]
        return self.wanted

    def disable(self) -> None:
        """Import nothing any more, because it does harm."""
        self.by_node = [Preload()] * len(self.by_node)
