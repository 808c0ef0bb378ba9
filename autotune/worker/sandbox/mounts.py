"""The mounts of this machine, and the folders to cover so that none of it is written."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OF_SYSTEM = ("/dev", "/proc", "/sys", "/run")
"""Folders of devices, the kernel and sockets: no files of the user but on disks mounted in /run."""
_OF_DISKS = "/run"
"""Folder of the system in which disks of users are mounted: /run/media/USER."""
_OF_PACKAGES = re.compile("/(bin|boot|etc|lib[^/]*|lost[+]found|media|sbin|srv|usr|var)")
"""Top-level folders that hold no checkpoints: memory suffices, and is faster to set up."""
TEMPORARY = ("/tmp", "/var/tmp")
"""Folders for temporary files and sockets of several processes."""
LOCAL_DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs"})
"""File systems that an upper layer may lie on: local, and with room for checkpoints."""
_NO_FILES = frozenset({"autofs", "binfmt_misc", "cgroup", "cgroup2", "mqueue", "proc", "sysfs"})
_OF_KERNEL = frozenset(
    {
        *("bpf", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs"),
        *("nsfs", "pstore", "rpc_pipefs", "securityfs", "tracefs", "fuse.portal"),
    }
)
"""Other file systems without files of the user, as they are found in folders of the system."""
OVERLAY, MEMORY, AS_IT_IS = "overlay", "overlay in memory", "as it is"
_OF_MOMENT = frozenset({"overlay", "ramfs", "tmpfs"})
"""File systems of containers, which may be many, and in memory: memory suffices for them, too."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """Mounted file system.

    Attributes:
        writable: whether it may be written at all.
    """

    path: str
    kind: str
    writable: bool


def mounted() -> list[Mount]:
    """Return the mounts of this process; of several on one folder the last, which hides the others."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        of_mount, _, of_system = line.partition(" - ")
        fields, system = of_mount.split(), of_system.split()
        path = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        writable = "rw" in fields[5].split(",") and "rw" in system[-1].split(",")
        found[path] = Mount(path, system[0], writable)
    return [found[path] for path in sorted(found)]


def holds(folder: str, path: str) -> bool:
    """Return whether a path is a folder or lies in it; both absolute and normal."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def of(path: str, mounts: Iterable[Mount]) -> Mount:
    """Return the mount that a path lies on."""
    return max((m for m in mounts if holds(m.path, path)), key=lambda m: len(m.path))


@dataclass(frozen=True)
class Cover:
    """Folder to cover.

    Attributes:
        path: of the folder.
        how: OVERLAY; MEMORY, an overlay whose upper layer is in memory; or AS_IT_IS, a mount that
            has to appear again where a covered folder above hides it.
    """

    path: str
    how: str


def covers(mounts: list[Mount], wanted: Iterable[str], layers: str) -> list[Cover]:
    """Return every folder to cover, outer ones first.

    The whole machine is covered: each top-level folder and each mount, except those of the system.
    Disks that are mounted in /run are covered as well.

    Args:
        wanted: folders that the job is likely to write to: project, script, home.
        layers: folder of the upper layers, which no overlay over it can use; empty: in memory.
    """
    outer = [folder for folder in _top_level(mounts) if not _of_system(folder)]
    found = {folder: _how(folder, layers) for folder in outer}
    for mount in mounts:
        if mount.path != "/" and (not _of_system(mount.path) or _is_disk_of_user(mount)):
            found[mount.path] = _how_mount(mount, layers)
    for folder in wanted:
        around = [path for path in found if holds(path, folder)]
        if not around or found[max(around, key=len)] == MEMORY:
            found[folder] = _how(folder, layers)
    return [Cover(path, found[path]) for path in sorted(found, key=lambda path: path.count("/"))]


def _how_mount(mount: Mount, layers: str) -> str:
    if not mount.writable or mount.kind in _NO_FILES:
        return AS_IT_IS
    return MEMORY if mount.kind in _OF_MOMENT else _how(mount.path, layers)


def _how(folder: str, layers: str) -> str:
    small = _OF_PACKAGES.fullmatch(folder) or not layers or holds(folder, layers)
    return MEMORY if small else OVERLAY


def _of_system(path: str) -> bool:
    return any(holds(folder, path) for folder in OF_SYSTEM)


def _is_disk_of_user(mount: Mount) -> bool:
    return holds(_OF_DISKS, mount.path) and mount.kind not in _NO_FILES | _OF_MOMENT | _OF_KERNEL


def disks_of_users(mounts: Iterable[Mount]) -> list[str]:
    """Return the paths of disks that are mounted in folders of the system."""
    return [mount.path for mount in mounts if _is_disk_of_user(mount)]


def _top_level(mounts: list[Mount]) -> Iterator[str]:
    own = {mount.path for mount in mounts}
    with os.scandir("/") as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.path not in own:
                yield entry.path


def sockets(folders: Iterable[str]) -> list[str]:
    """Return the sockets in some folders at which processes of this machine listen."""
    several = tuple(folders)
    found = set()
    for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
        path = line.split(maxsplit=7)[-1]
        if path.startswith("/") and any(holds(folder, path) for folder in several):
            found.add(path)
    return sorted(found)
