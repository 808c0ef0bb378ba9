"""Processors and memory that a process may use, within the limits of its cgroup.

A container that may use four processors of 64 runs on all of them, and is stopped for the rest of each
period once it has used its time. One that may have 16 GiB of 256 sees all of them, and is killed beyond
its limit.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
"""File that names the cgroup of this process."""
_MOUNT = Path("/sys/fs/cgroup")
"""Where cgroup v2 is mounted, or the folder with a mount of cgroup v1 for each controller."""
_UNIFIED = ""
"""Name that stands in the place of a controller in the line for cgroup v2."""
_NO_QUOTA = "max"
_MEMORY_FILES = {_UNIFIED: "memory.max", "memory": "memory.limit_in_bytes"}
"""File with the limit in bytes, by controller. cgroup v1 has a huge number for no limit."""
_GIB = 1 << 30


def usable_cpus(own: Path = _OWN, mount: Path = _MOUNT) -> int:
    """Return how many processors this process can keep busy, at least one.

    Args:
        own: file that names the cgroup of the process.
        mount: where cgroup v2 is mounted.
    """
    quotas = [int(quota) for quota in _quotas(own, mount)]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def usable_memory(own: Path = _OWN, mount: Path = _MOUNT) -> int:
    """Return the memory that this process may have, in bytes.

    That of the machine is in whole GiB: what the kernel reserves differs by pages from boot to boot.

    Args:
        own: file that names the cgroup of the process.
        mount: where cgroups are mounted.
    """
    there = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB) * _GIB
    return min([there, *_memory_limits(own, mount)])


def _quotas(own: Path, mount: Path) -> Iterator[float]:
    """Yield the quotas, in processors, of the cgroup and of those above it."""
    for folder in _folders(_UNIFIED, own, mount):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):  # the root has none, and cgroup v1 another file
            continue
        if quota != _NO_QUOTA:
            yield int(quota) / int(period)


def _memory_limits(own: Path, mount: Path) -> Iterator[int]:
    """Yield the limits, in bytes, of the cgroup and of those above it."""
    for controller, name in _MEMORY_FILES.items():
        for folder in _folders(controller, own, mount):
            try:
                yield int((folder / name).read_text())
            except (OSError, ValueError):  # the root has none, and "max" is no limit
                continue


def _folders(controller: str, own: Path, mount: Path) -> Iterator[Path]:
    """Yield the folders of a cgroup and of those above it, as far as they can be seen.

    Args:
        controller: that of cgroup v1, or `_UNIFIED`.
        own: file that names the cgroup.
        mount: where the tree is mounted, as `_MOUNT`.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    parts = (line.partition(":")[2].partition(":") for line in lines)
    named = next((path for names, _, path in parts if controller in names.split(",")), "")
    top = mount / controller
    folder = top / named.lstrip("/")
    yield folder
    for above in folder.parents:
        if above.is_relative_to(top):
            yield above
