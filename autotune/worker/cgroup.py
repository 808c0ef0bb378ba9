"""Folders of the cgroup that a process is in, and of those above it, which limit it as well."""

from collections.abc import Iterator
from pathlib import Path

OWN = Path("/proc/self/cgroup")
"""File that names the cgroup of this process."""
MOUNT = Path("/sys/fs/cgroup")
"""Where cgroup v2 is mounted, or the folder with a mount of cgroup v1 for each controller."""
UNIFIED = ""
"""Name that stands in the place of a controller in the line for cgroup v2."""


def folders(controller: str, own: Path, mount: Path) -> Iterator[Path]:
    """Yield the folders of a cgroup and of those above it, as far as they can be seen.

    Args:
        controller: that of cgroup v1, or UNIFIED.
        own: file that names the cgroup.
        mount: where the tree is mounted, as `MOUNT`.
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
