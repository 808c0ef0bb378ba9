"""Hardware models of this node, read from files: no driver is touched."""

import platform
from pathlib import Path

_MODEL = "Model:"


def processor() -> str:
    """Return the processor's model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def devices(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Return the driver's names of all CUDA devices of this node; empty where it gives none."""
    found = []
    for file in sorted(driver.glob("*/information")):
        models = [line for line in file.read_text().splitlines() if line.startswith(_MODEL)]
        found += [line.removeprefix(_MODEL).strip() for line in models]
    return found
