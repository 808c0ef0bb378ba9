"""What can be mounted on this machine, as the programs of util-linux find it: autotune is not asked."""

import functools
import os
import subprocess
from pathlib import Path

_OVERLAY = """
mount -t tmpfs tmpfs /tmp && cd /tmp && mkdir lower upper work seen &&
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work seen
"""
_AS_ROOT = ("unshare", "--mount")
_AS_USER = ("unshare", "--user", "--map-root-user", "--mount")


@functools.cache
def refusal() -> str:
    """Why this process can mount no overlay in namespaces of its own; empty: it can."""
    return _tried(_AS_ROOT, _OVERLAY) and _tried(_AS_USER, _OVERLAY)


@functools.cache
def refusal_beside(user: int) -> str:
    """Why there is no machine of its own to mount on, for root and for a user; empty: there is."""
    if os.geteuid() != 0:
        return "only root can become another user"
    return _tried(_AS_ROOT, _OVERLAY) or _tried(_AS_USER, _OVERLAY, user)


@functools.cache
def has_automounter() -> bool:
    """Return whether the kernel knows the file system of automounters."""
    _tried(_AS_ROOT, "mount -t autofs none /tmp")  # loads its module, where it is one
    return "autofs" in Path("/proc/filesystems").read_text().split()


def _tried(namespaces: tuple[str, ...], script: str, user: int | None = None) -> str:
    """Return why a script fails there; empty: it does not."""
    try:
        found = subprocess.run(
            [*namespaces, "sh", "-c", script],
            user=user,
            group=user,
            extra_groups=None if user is None else (),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"nothing can be mounted: {error}"  # util-linux is not installed
    return f"nothing can be mounted: {found.stderr.strip()}" if found.returncode else ""
