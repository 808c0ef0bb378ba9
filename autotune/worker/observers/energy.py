"""Energy of a node's processors by Intel RAPL, and whether the energy of trials can be read here.

The kernel counts microjoules of each processor package; memory and the rest of the node are not in
them. Most systems let only root read the counters.
"""

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


class ProcessorEnergy:
    """Reader of the energy of all processors of this node."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._packages = packages(root)
        self._before = self._read()

    def restart(self) -> None:
        """Start the energy anew."""
        self._before = self._read()

    def joules(self) -> float:
        """Return the energy since the last call; NaN where it cannot be read."""
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


def devices_unreadable(uuids: Sequence[str]) -> str:
    """Return why the energy of CUDA devices cannot be read; empty if it can.

    Args:
        uuids: of the devices, see autotune.worker.node.environment.cuda_devices.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed in the Python of the trials: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        for uuid in uuids:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # of the driver, of the library, or of a function that it lacks
        return f"a device does not tell its energy by NVML ({type(error).__name__}: {error})"
    return ""


def _number(file: Path) -> int:
    return int(file.read_text())
