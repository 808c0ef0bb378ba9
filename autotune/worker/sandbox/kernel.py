"""System calls that Python's standard library does not offer: namespaces, mounts, Landlock."""

import ctypes
import os
import stat
import struct
from collections.abc import Mapping

NEW_MOUNTS = 0x00020000
"""CLONE_NEWNS of unshare(2) and setns(2)."""
NEW_USERS = 0x10000000
"""CLONE_NEWUSER of unshare(2) and setns(2)."""

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_KEPT_FLAGS = {
    os.ST_NOSUID: 2,
    os.ST_NODEV: 4,
    os.ST_NOEXEC: 8,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    os.ST_RELATIME: 1 << 21,
}
"""Flag of statvfs(3) -> flag of mount(2)."""
_MNT_DETACH = 2
_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls of Landlock, the same on every architecture."""
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(status: int, what: str) -> int:
    if status < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return status


def unshare(flags: int) -> None:
    """Move this process into new namespaces; the manual page is unshare in section 2.

    Raises:
        OSError: the kernel or the container forbids it.
    """
    _checked(_libc.unshare(flags), "unshare")


def join(namespace: int, kind: int) -> None:
    """Put this process into a namespace that is open as a file; see setns(2).

    Raises:
        OSError: it may not be joined.
    """
    _checked(_libc.setns(namespace, kind), "setns")


def mount(source: str, target: str, kind: str, options: Mapping[str, str | None]) -> None:
    """Mount a file system.

    Args:
        source: device, or any word where the file system has none.
        kind: of the file system.
        options: name -> value; None of those that have none.

    Raises:
        OSError: it cannot be mounted, with the target.
    """
    words = ",".join(
        name if value is None else f"{name}={value}" for name, value in options.items()
    )
    status = _libc.mount(*map(os.fsencode, (source, target, kind)), 0, os.fsencode(words))
    _checked(status, f"mount {kind} on {target}")


def bind(source: str, target: str) -> None:
    """Make a file, or a folder with its mounts, appear at another path.

    Raises:
        OSError: it cannot be mounted there.
    """
    _flagged(source, target, _MS_BIND | _MS_REC)


def make_read_only(target: str) -> None:
    """Forbid writing through a mount, which stays writable elsewhere.

    Raises:
        OSError: the kernel refuses that.
    """
    known = os.statvfs(target).f_flag
    # Other flags of the mount must be repeated: a user namespace may not change them.
    kept = sum(flag for theirs, flag in _KEPT_FLAGS.items() if known & theirs)
    _flagged("none", target, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | kept)


def keep_mounts_here() -> None:
    """Make later mounts visible in this namespace alone, and those of others not in it.

    Raises:
        OSError: the kernel refuses that.
    """
    _flagged("none", "/", _MS_REC | _MS_PRIVATE)


def _flagged(source: str, target: str, flags: int) -> None:
    status = _libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None)
    _checked(status, f"mount on {target}")


def unmount(target: str) -> None:
    """Detach a mount; processes that use it keep it until they end.

    Raises:
        OSError: nothing is mounted there.
    """
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"umount {target}")


def drop_capabilities() -> None:
    """Give up what a new user namespace grants beyond the rights of an ordinary user.

    Raises:
        OSError: the kernel refuses that.
    """
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


class Landlock:
    """Rule that limits where this process and its descendants may change files."""

    def __init__(self) -> None:
        """Make a rule that forbids every change, once `begin` is called.

        Raises:
            OSError: the kernel has no Landlock, or it is switched off.
        """
        self._rights = _rights_of_writing(self.version())
        rules = struct.pack("=Q", self._rights)
        self._rules = _checked(_libc.syscall(_CREATE_RULESET, rules, len(rules), 0), "Landlock")

    @staticmethod
    def version() -> int:
        """Return the version of Landlock in the kernel.

        Raises:
            OSError: there is none, or it is switched off.
        """
        status = _libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
        return _checked(status, "Landlock")

    def allow(self, path: str) -> None:
        """Allow changes below a folder, or of a single file.

        Raises:
            OSError: there is no such path.
        """
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            is_folder = stat.S_ISDIR(os.fstat(opened).st_mode)
            rights = self._rights if is_folder else self._rights & (_WRITE_FILE | _TRUNCATE)
            rule = struct.pack("=Qi", rights, opened)
            status = _libc.syscall(_ADD_RULE, self._rules, _RULE_PATH_BENEATH, rule, 0)
            _checked(status, f"Landlock on {path}")
        finally:
            os.close(opened)

    def begin(self) -> None:
        """Put the rule in force.

        Raises:
            OSError: the kernel refuses that.
        """
        _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _checked(_libc.syscall(_RESTRICT_SELF, self._rules, 0), "Landlock")
        os.close(self._rules)


_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGES = sum(1 << bit for bit in range(4, 13))
"""Rights to remove and make entries of folders, of every kind."""
_REFER = 1 << 13
_TRUNCATE_SINCE, _REFER_SINCE = 3, 2
"""Versions of Landlock that have these rights; see landlock(7)."""


def _rights_of_writing(version: int) -> int:
    rights = _WRITE_FILE | _CHANGES
    rights |= _REFER if version >= _REFER_SINCE else 0
    return rights | (_TRUNCATE if version >= _TRUNCATE_SINCE else 0)
