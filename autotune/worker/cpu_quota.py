"""Processors that a process has time on: those that it may run on, within the quota of its cgroup.

A container that may use four processors of sixty-four runs on all of them, and is stopped for the
rest of each period once it has used its time: what counts processors must count its quota.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from autotune.worker.cgroup import MOUNT, OWN, UNIFIED, folders

_NO_QUOTA = "max"


def usable_cpus(own: Path = OWN, mount: Path = MOUNT) -> int:
    """Return how many processors this process can keep busy, at least one.

    Args:
        own: file that names the cgroup of the process.
        mount: where cgroup v2 is mounted.
    """
    quotas = [int(quota) for quota in _quotas(own, mount)]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def _quotas(own: Path, mount: Path) -> Iterator[float]:
    """Yield the quotas, in processors, of the cgroup and of those above it."""
    for folder in folders(UNIFIED, own, mount):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):  # the root has none, and cgroup v1 another file
            continue
        if quota != _NO_QUOTA:
            yield int(quota) / int(period)
