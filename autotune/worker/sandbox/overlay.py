"""View of the machine in which everything can be written and nothing is changed.

It is a mount namespace with an overlay over every folder.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.worker.sandbox import kernel
from autotune.worker.sandbox.mounts import (
    AS_IT_IS,
    MEMORY,
    OF_SYSTEM,
    TEMPORARY,
    Cover,
    covers,
    holds,
    mounted,
    sockets,
)

_FAST = {"index": "off", "volatile": None}
"""Mount options for upper layers that need not survive: they are never written back."""


@dataclass(frozen=True)
class View:
    """Folders of a view.

    Attributes:
        wanted: folders that the job is likely to write to, absolute.
        kept: folders that it really writes: output of the trial, caches of compilers.
        layers: folder for what it writes elsewhere.
        in_memory: whether that is kept in memory, as no local disk has room.
        named: paths in the words of the job.
    """

    wanted: tuple[str, ...]
    kept: tuple[str, ...]
    layers: str
    in_memory: bool = False
    named: tuple[str, ...] = ()


def enter(view: View) -> None:
    """Put this process, which has one thread, into a view of its own.

    Raises:
        OSError: the kernel or the container forbids it, or a file system cannot be covered.
    """
    if "/" in view.wanted:
        raise OSError(errno.EINVAL, "no overlay can cover / itself, which the job works in")
    here = os.getcwd()  # noqa: PTH109
    _use(view.named)
    mounts = mounted()
    planned = covers(mounts, view.wanted, "" if view.in_memory else view.layers)
    hidden = {c.path: any(holds(o.path, c.path) for o in planned if o != c) for c in planned}
    again = [*view.kept, *sockets([cover.path for cover in planned])]
    as_user = _unshare()
    kernel.keep_mounts_here()
    with contextlib.ExitStack() as opened:
        # Open all paths first: once a folder is covered, its path leads to the overlay.
        layers = _Layers(_opened(view.layers, opened), as_user)
        origins = {path: _opened(path, opened) for path in [*hidden, *view.wanted, *again]}
        for cover in planned:
            if cover.how == AS_IT_IS:
                if hidden[cover.path]:
                    _bind(origins[cover.path], cover.path)
            elif origins[cover.path]:
                _cover(cover, view.wanted, origins, layers)
        for path in again:
            _bind(origins[path], path)
        layers.close()
        _close_root({mount.path for mount in mounts})
    os.chdir(here)
    if as_user:
        kernel.drop_capabilities()


def join(process: int) -> None:
    """Put this process, which has one thread, into the view of another process.

    Raises:
        OSError: that process is gone.
    """
    here = os.getcwd()  # noqa: PTH109
    users = f"/proc/{process}/ns/user"
    as_user = os.stat(users).st_ino != os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116
    with contextlib.ExitStack() as opened:
        mounts = opened.enter_context(_open_namespace(f"/proc/{process}/ns/mnt"))
        if as_user:
            kernel.join(opened.enter_context(_open_namespace(users)), kernel.NEW_USERS)
        kernel.join(mounts, kernel.NEW_MOUNTS)
    os.chdir(here)
    if as_user:
        kernel.drop_capabilities()


def _unshare() -> bool:
    """Enter new namespaces; return whether a user namespace was needed.

    The user is the same in it.
    """
    try:
        kernel.unshare(kernel.NEW_MOUNTS)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_USERS)
        # Without this the kernel maps no group: see user_namespaces(7).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        return True
    return False


def _use(paths: Iterable[str]) -> None:
    """Use paths, so that an automounter mounts now what they lie on.

    What it mounts once there is a view cannot be covered, and so does not appear in it.
    """
    for path in paths:
        os.path.isdir(f"{path}/")  # noqa: PTH112 (without the slash it would not be mounted)


@contextlib.contextmanager
def _open_namespace(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: str, stack: contextlib.ExitStack) -> str:
    """Return a name for the file at a path now; empty if there is none, or none for this user."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return ""
    stack.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def _bind(origin: str, path: str) -> None:
    """Make the former content of a path appear there again, if that is possible."""
    with contextlib.suppress(OSError):
        kernel.bind(origin, path)


def _cover(
    cover: Cover, wanted: Iterable[str], origins: Mapping[str, str], layers: "_Layers"
) -> None:
    """Cover a folder.

    Some file systems support no overlay, nor do folders with mounts in them in a user namespace.
    Such a folder becomes read-only, except for folders in it that the job is likely to write to. A
    folder for temporary files takes new ones all the same.

    Raises:
        OSError: it is such a folder, and the job is likely to write to it.
    """
    try:
        layers.lay(origins[cover.path], cover.path, in_memory=cover.how == MEMORY)
        return
    except OSError:
        if cover.path in wanted:
            raise
    if cover.path in TEMPORARY:
        layers.lay_over_entries(origins[cover.path], cover.path, in_memory=cover.how == MEMORY)
    else:
        _close(origins[cover.path], cover.path)
    for folder in wanted:
        if holds(cover.path, folder):
            layers.lay(origins[folder], folder, in_memory=cover.how == MEMORY)


def _close(origin: str, path: str) -> None:
    """Make a folder read-only.

    Raises:
        OSError: it is not possible, and this user may write there.
    """
    try:
        kernel.bind(origin, path)
        kernel.make_read_only(path)
    except OSError:
        if os.access(path, os.W_OK):
            raise


def _close_root(own: Collection[str]) -> None:
    """Make / read-only: a new folder in it would be real. Folders of the system stay as they are.

    Args:
        own: paths at which file systems are mounted.

    Raises:
        OSError: it is not possible, and this user may write there.
    """
    for folder in OF_SYSTEM:
        if folder not in own:
            _bind(folder, folder)
    try:
        kernel.make_read_only("/")
    except OSError:
        if os.access("/", os.W_OK):
            raise


class _Layers:
    """Upper layers of the overlays of one view."""

    def __init__(self, folder: str, as_user: bool) -> None:
        """Prepare a place for the layers.

        Args:
            folder: on a disk.
            as_user: whether a user namespace is needed: overlays keep their attributes elsewhere
                there.
        """
        self._disk = Path(folder)
        self._memory: Path | None = None
        self._options = {"userxattr": None} if as_user else {"redirect_dir": "on"}
        self._made = 0

    def lay(self, origin: str, path: str, *, in_memory: bool) -> None:
        """Mount an overlay.

        Args:
            origin: name of the folder that is covered.
            path: at which the overlay appears.
            in_memory: whether its upper layer is in memory.

        Raises:
            OSError: it cannot be mounted.
        """
        upper = self._upper(origin, in_memory=in_memory)
        work = upper.with_name("work")
        work.mkdir()
        layers = {"lowerdir": origin, "upperdir": str(upper), "workdir": str(work)}
        try:
            kernel.mount("overlay", path, "overlay", {**layers, **self._options, **_FAST})
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            kernel.mount("overlay", path, "overlay", {**layers, **self._options})

    def lay_over_entries(self, origin: str, path: str, *, in_memory: bool) -> None:
        """Put a new folder in the place of one, with an overlay over each folder in that.

        What else is in it, and folders that cannot be covered either, becomes read-only.

        Args:
            origin: name of the folder.
            path: at which the new one appears.
            in_memory: whether what is written is in memory.

        Raises:
            OSError: it is not possible.
        """
        with os.scandir(origin) as found:
            entries = list(found)
        folder = self._upper(origin, in_memory=in_memory)
        for entry in entries:
            _make_place(entry, folder / entry.name)
        kernel.bind(str(folder), path)
        for entry in entries:
            if not entry.is_symlink():
                self._cover_entry(entry, f"{path}/{entry.name}", in_memory=in_memory)

    def _cover_entry(self, entry: "os.DirEntry[str]", path: str, *, in_memory: bool) -> None:
        with contextlib.suppress(OSError):
            if entry.is_dir():
                self.lay(entry.path, path, in_memory=in_memory)
                return
        if os.path.lexists(entry.path):  # others may have removed it meanwhile
            _close(entry.path, path)

    def _upper(self, origin: str, *, in_memory: bool) -> Path:
        """Make a folder for what is written in another one."""
        self._made += 1
        upper = (self._in_memory() if in_memory else self._disk) / str(self._made) / "upper"
        upper.mkdir(parents=True)
        _be_like(origin, upper)
        return upper

    def _in_memory(self) -> Path:
        if self._memory is None:
            folder = self._disk / "memory"
            folder.mkdir()
            kernel.mount("tmpfs", str(folder), "tmpfs", {"mode": "700"})
            self._descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            self._memory = Path(f"/proc/self/fd/{self._descriptor}")
        return self._memory

    def close(self) -> None:
        """Close what only mounting needs; the overlays keep what they use."""
        if self._memory is not None:
            kernel.unmount(str(self._memory))
            os.close(self._descriptor)


def _make_place(entry: "os.DirEntry[str]", path: Path) -> None:
    """Make something at which an entry of a folder can appear; of a link, make one."""
    if entry.is_symlink():
        path.symlink_to(os.readlink(entry.path))  # noqa: PTH115
    elif entry.is_dir():
        path.mkdir()
    else:
        path.touch()


def _be_like(origin: str, upper: Path) -> None:
    """Give an upper layer the mode, owner and time of the folder that it covers."""
    known = os.stat(origin)  # noqa: PTH116
    mode = stat.S_IMODE(known.st_mode)
    try:
        os.chown(upper, known.st_uid, known.st_gid)
    except OSError:  # another user's: the owner's rights there become those of this user
        may = sum(bit for bit in (os.R_OK, os.W_OK, os.X_OK) if os.access(origin, bit))
        mode = (mode & ~stat.S_IRWXU) | may << 6
    upper.chmod(mode)
    os.utime(upper, ns=(known.st_atime_ns, known.st_mtime_ns))
