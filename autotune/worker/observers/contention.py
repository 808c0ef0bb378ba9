"""Share of a node's processors that other processes take while a block is timed.

Linux accounts for it: /proc/stat has the busy time of all processors, including what a hypervisor
gave to other machines ("steal"), and /proc/<pid>/stat that of each process.
"""

import math
import os
from pathlib import Path
from typing import NamedTuple

from autotune.worker import proc, processes

_TICKS = os.sysconf("SC_CLK_TCK")
_STAT = Path("/proc/stat")


class NodeShares(NamedTuple):
    """Shares of all processors of this node over a block; NaN on a rank that does not observe it."""

    foreign: float = math.nan
    idle: float = math.nan


class NodeLoad:
    """Reader of the processor accounts, called between blocks, while all ranks wait anyway."""

    def __init__(self) -> None:
        # Ranks are children of the fork server: it and all below it are this trial on this node.
        self._root = os.getppid()
        self._before = self._accounts()

    def shares(self) -> NodeShares:
        """Return the shares since the last call."""
        now = self._accounts()
        busy, idle, ours = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        total = busy + idle
        if total <= 0:
            return NodeShares(0.0, 1.0)
        return NodeShares(max(0.0, busy - ours) / total, idle / total)

    def _accounts(self) -> tuple[float, float, float]:
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(ticks) / _TICKS for ticks in _STAT.read_text().split(maxsplit=9)[1:9]
        )
        busy = user + nice + system + irq + softirq + steal
        pids = {self._root, *processes.descendants(self._root)}
        return busy, idle + iowait, sum(map(_cpu_seconds, pids))


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    return sum(map(int, proc.stat_of(pid)[11:15])) / _TICKS
