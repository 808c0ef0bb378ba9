"""What kind of node this is: its processor, its devices. By files alone: no driver is touched."""

import platform
from pathlib import Path

_MODEL = "Model:"


def processor() -> str:
    """The processor's model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def devices(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Models of all CUDA devices of this node, as the driver calls them; empty where it does not say."""
    found = []
    for said in sorted(driver.glob("*/information")):
        models = [line for line in said.read_text().splitlines() if line.startswith(_MODEL)]
        found += [line.removeprefix(_MODEL).strip() for line in models]
    return found
