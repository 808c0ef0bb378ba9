"""Memory that a process may have: that of its machine, within the limits of its cgroup.

A container or a job that may have 16 GiB of 256 sees all of them, and is killed beyond its limit.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from autotune.worker.cgroup import MOUNT, OWN, UNIFIED, folders

_FILES = {UNIFIED: "memory.max", "memory": "memory.limit_in_bytes"}
"""File with the limit in bytes, by controller. cgroup v1 has a huge number for no limit."""
_GIB = 1 << 30


def usable_memory(own: Path = OWN, mount: Path = MOUNT) -> int:
    """Return the memory that this process may have, in bytes.

    That of the machine is in whole GiB: what the kernel reserves differs by pages from boot to boot.

    Args:
        own: file that names the cgroup of the process.
        mount: where cgroups are mounted.
    """
    there = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB) * _GIB
    return min([there, *_limits(own, mount)])


def _limits(own: Path, mount: Path) -> Iterator[int]:
    """Yield the limits of the cgroup and of those above it."""
    for controller, name in _FILES.items():
        for folder in folders(controller, own, mount):
            try:
                yield int((folder / name).read_text())
            except (OSError, ValueError):  # the root has none, and "max" is no limit
                continue
