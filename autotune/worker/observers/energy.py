"""Energy of a node's processors by Intel RAPL.

The kernel counts microjoules of each processor package; memory and the rest of the node are not in
them. Most systems let only root read the counters.
"""

import math
from pathlib import Path

from autotune.worker.observers.device import DeviceState

POWERCAP = Path("/sys/class/powercap")
_MICRO = 1e-6


def packages(root: Path = POWERCAP) -> list[Path]:
    """Return the folders of the counters of all processor packages of this node."""
    found = []
    for folder in sorted(root.glob("*-rapl:*")):
        try:
            if (folder / "name").read_text().startswith("package"):
                found.append(folder)
        except OSError:
            continue
    return found


class ProcessorWatch:
    """Observer of the processors of this node."""

    def __init__(self, *, first: bool, alone: bool, root: Path = POWERCAP) -> None:
        """Open the counters.

        Args:
            first: whether this rank reports the energy of its node.
            alone: whether no other trial may be on the node; otherwise its energy cannot be attributed.
        """
        self._first, self._alone = first, alone
        self._packages = packages(root) if first and alone else []
        self._before = self._read()

    def restart(self, *, known: bool = True) -> None:
        """Start the energy anew: other trials have had the processors."""
        if known:
            self._before = self._read()

    def state(self) -> DeviceState:
        """Return the energy since the last call, where it can be read."""
        if not self._alone:
            return DeviceState()
        return DeviceState(energy_joules=self._joules() if self._first else 0.0)

    def _joules(self) -> float:
        before, self._before = self._before, self._read()
        if not self._before or len(before) != len(self._before):
            return math.nan
        spent = 0
        for folder, old, new in zip(self._packages, before, self._before, strict=True):
            # A counter that has reached its range begins again at 0.
            spent += (
                new - old if new >= old else new - old + _number(folder / "max_energy_range_uj")
            )
        return spent * _MICRO

    def _read(self) -> list[int]:
        try:
            return [_number(folder / "energy_uj") for folder in self._packages]
        except (OSError, ValueError):
            return []


def processors_unreadable(root: Path = POWERCAP) -> str:
    """Return why the energy of this node's processors cannot be read; empty if it can."""
    found = packages(root)
    if not found:
        return f"{root} has no counter of a processor package (Intel RAPL)"
    try:
        _number(found[0] / "energy_uj")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"{found[0] / 'energy_uj'} cannot be read ({reason}): let this account read it"
    return ""


def _number(file: Path) -> int:
    return int(file.read_text())
