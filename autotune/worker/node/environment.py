"""Fingerprint of a node: what a measured figure depends on besides the configuration.

torch is imported where it is asked: a node of a cluster is described without it at first.
"""

import os
import platform
import socket
from pathlib import Path
from typing import Any

import autotune
from autotune.worker.cgroup import usable_cpus, usable_memory

NODE = "AUTOTUNE_NODE"
"""Variable with the name of the node, for a container whose host has a new name whenever it is made."""
_MODEL = "Model:"


def processor() -> str:
    """Return the processor's model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def driver_devices(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Return the driver's names of all CUDA devices of this node; empty where it gives none."""
    found = []
    for file in sorted(driver.glob("*/information")):
        models = [line for line in file.read_text().splitlines() if line.startswith(_MODEL)]
        found += [line.removeprefix(_MODEL).strip() for line in models]
    return found


def describe() -> dict[str, Any]:
    """Describe hardware and software of this node.

    It initialises CUDA: call it in a process from which nothing is forked.

    Returns:
        JSON-ready. `devices` has one entry per visible CUDA device with name, memory_bytes and
        capability (e.g. [9, 0]); it is empty where there is none.
    """
    import torch

    return {
        "host": os.environ.get(NODE) or socket.gethostname(),
        "cpu": processor(),
        "cores": usable_cpus(),
        "memory_bytes": usable_memory(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": _nccl_version(),
        "driver": _driver_version(),
        "devices": _devices(),
        "autotune": autotune.__version__,
    }


def cuda_devices() -> tuple[str, ...]:
    """Return the UUID of each visible CUDA device. It is the same in every process."""
    import torch

    count = torch.cuda.device_count()
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(count))


def _devices() -> list[dict[str, Any]]:
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": [properties.major, properties.minor],
            }
        )
    return found


def _nccl_version() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _driver_version() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None
