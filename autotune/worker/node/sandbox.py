"""Protection of the user's files on this node while a trial's ranks run."""

import contextlib
import errno
import json
import multiprocessing.process
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from autotune.worker import starters
from autotune.worker.files import COMPILER_CACHES, TrialFiles
from autotune.worker.protocol import TrialRequest
from autotune.worker.sandbox import kernel, overlay, redirect, scratch
from autotune.worker.sandbox.mounts import OF_SYSTEM, TEMPORARY, disks_of_users, holds, mounted
from autotune.worker.sandbox.overlay import View

_USUAL = {
    "TRITON_CACHE_DIR": ("~/.triton/cache", 1),
    "TORCH_EXTENSIONS_DIR": ("~/.cache/torch_extensions", 2),
}
"""Variable -> the user's default folder for compiled code, and how deep its entries lie."""
OVERLAY, COPIES = "overlay", "copies"
"""Means of protection: an overlay file system, or redirected writes to copies."""
_REFUSED = "Permission denied"
_MAY_BE_REFUSED = (
    "CalledProcessError",
    "PytorchStreamWriter",
    "open file failed",
    "cannot open file",
)
"""Errors of programs and libraries that do not pass on the message of the kernel."""
_NO_SPACE = os.strerror(errno.ENOSPC)
_FULL_BYTES = 16 << 20
"""Free bytes below which a disk counts as full once a write has failed on it."""
_LOOP = os.strerror(errno.ELOOP)
_OF_AUTOMOUNTS = (
    "; an automounter cannot mount a folder in a trial that has begun: have an argument or a variable "
    "of the job name it, or use it (`ls`) before"
)
_READ_ONLY = re.compile(
    rf"""['"‘](/[^/'"’]+)/?['"’]: {os.strerror(errno.EROFS)}|"""
    rf"""{os.strerror(errno.EROFS)}: ['"](/[^/'"]+)/?['"]"""
)
"""Errors of programs and of Python about something directly in /."""
_MAY_WRITE = "`workload: {may_write: true}` in study.yaml (`autotune init --may-write` writes it)"


def shared_caches(variables: Mapping[str, str]) -> list[str]:
    """Make the folders that the environment of this agent names.

    Args:
        variables: that the study sets itself: such folders are the user's own.

    Returns:
        Their real paths.
    """
    several = {name: os.environ.get(name, "") for name in COMPILER_CACHES if name not in variables}
    for name, folder in several.items():
        if folder and not Path(folder).exists():
            Path(folder).mkdir(parents=True, exist_ok=True)
            usual, depth = _USUAL.get(name, ("", 0))
            if usual:
                _show(Path(os.path.expanduser(usual)), Path(folder), depth)  # noqa: PTH111
    return [os.path.realpath(folder) for folder in several.values() if folder]


def _show(usual: Path, cache: Path, depth: int) -> None:
    """Link the user's compiled code into a cache of trials.

    Nothing is written through the links: their targets are protected. New code lies beside them.

    Args:
        usual: the user's own cache.
        cache: of the trials.
        depth: of entries in both.
    """
    with contextlib.suppress(OSError):
        for entry in usual.iterdir():
            shown = cache / entry.name
            if depth > 1 and entry.is_dir():
                shown.mkdir(exist_ok=True)
                _show(entry, shown, depth - 1)
            elif not shown.exists():
                shown.symlink_to(entry)


@dataclass(frozen=True)
class Ticket:
    """Data that a rank needs to enter a sandbox.

    Attributes:
        layers: folder of what the trial writes.
        view: overlay that the first rank on the node has to mount; None: it is mounted, or cannot
            be.
        maker: process id of the rank that has mounted it.
        free: folders and files that are written directly where there is no view.
    """

    layers: str
    view: View | None = None
    maker: int = 0
    free: tuple[str, ...] = ()


class Sandbox:
    """Protection of the user's files against one trial on one node.

    Attributes:
        ticket: for the next rank.
    """

    def __init__(self, request: TrialRequest) -> None:
        """Make room for what the trial writes.

        Raises:
            OSError: there is no room, or ranks would run outside of the sandbox.
        """
        _refuse_ranks_elsewhere(request)
        self._files = TrialFiles(Path(request.log_dir).absolute())
        self._wanted, self._kept = _wanted(request), _kept(self._files, request.env)
        place, on_disk = scratch.place(list(self._wanted))
        self._scratch = scratch.Scratch(place)
        self._layers, self._problem = str(self._scratch.folder), ""
        view = View(self._wanted, self._kept, self._layers, not on_disk, _named(request))
        self.ticket = Ticket(self._layers, view)

    def settle(self, maker: int, problem: str) -> bool:
        """Choose the protection, depending on whether the first rank could mount its view.

        Args:
            maker: process id of the first rank.
            problem: why it has no view; empty if it has one.

        Returns:
            True if that rank goes on; False if it has ended and must be started again.

        Raises:
            OSError: nothing protects the files here.
        """
        self._problem = problem
        if problem:
            self._check_fallback()
            self.ticket = Ticket(self._layers, free=_free(self._wanted, self._kept))
        else:
            self.ticket = Ticket(self._layers, maker=maker)
        how = COPIES if problem else OVERLAY
        self._files.protection().write_text(json.dumps({"how": how, "why": problem}))
        return not problem

    def _check_fallback(self) -> None:
        try:
            kernel.Landlock.version()
        except OSError as error:
            raise OSError(
                f"nothing keeps your files as they are here ({self._problem}; {error}): say "
                f"{_MAY_WRITE} if trials may change them, or run them in a container with --cap-add "
                "SYS_ADMIN or on a newer kernel"
            ) from None

    def advice(self, output: str) -> str:
        """Return advice on a failure that the protection may have caused; empty otherwise.

        Args:
            output: the error of the script and what it has printed.
        """
        if _NO_SPACE in output and shutil.disk_usage(self._layers).free < _FULL_BYTES:
            return (
                f"; the disk of {self._layers} is full, where all lies that a trial writes, wherever "
                "the job wants it: make room there"
            )
        if not self._problem:
            return _of_overlay(output)
        refused = next((line for line in output.splitlines() if _REFUSED in line), "")
        if not refused and not any(sign in output for sign in _MAY_BE_REFUSED):
            return ""
        met = f"; refused was: {refused.strip()}" if refused else ""
        return (
            f"{met}; what a script writes past Python, as cp does, is refused here, as no overlay can "
            f"be mounted ({self._problem}): say {_MAY_WRITE} if trials may change files"
        )

    def close(self) -> None:
        """Discard all that the trial has written. Its processes must be gone."""
        self._scratch.remove()


def _of_overlay(output: str) -> str:
    if _LOOP in output:
        return _OF_AUTOMOUNTS
    if met := _READ_ONLY.search(output):
        return (
            f"; a trial makes and changes nothing directly in /: if {met[1] or met[2]} is a folder of "
            "the job, make it before, and what trials write in it is discarded"
        )
    return ""


def enter(ticket: Ticket, connection: Connection) -> None:
    """Confine this process, a single-threaded rank, so that it changes no file of the user.

    Args:
        connection: to the agent, which waits for the first rank to report whether it has a view.

    Raises:
        OSError: the first rank is gone.
    """
    scratch.hold(Path(ticket.layers))
    if ticket.view:
        _make(ticket.view, connection)
    elif ticket.maker:
        overlay.join(ticket.maker)
    else:
        _write_copies(ticket)


def _make(view: View, connection: Connection) -> None:
    try:
        overlay.enter(view)
    except OSError as error:
        connection.send_bytes(str(error).encode())
        os._exit(0)  # its view may be half made
    connection.send_bytes(b"")


def _write_copies(ticket: Ticket) -> None:
    rules = kernel.Landlock()
    rules.allow(ticket.layers)
    for path in ticket.free:
        with contextlib.suppress(FileNotFoundError):  # a file of the system that is gone by now
            rules.allow(path)
    _have_own_temporary(ticket)
    redirect.begin(ticket.layers, list(ticket.free))
    rules.begin()


def _refuse_ranks_elsewhere(request: TrialRequest) -> None:
    program = starters.elsewhere(request.command.argv) if request.command else ""
    if program:
        raise OSError(
            f"{starters.UNPROTECTED.format(program)}: say {_MAY_WRITE} if trials may do so"
        )


def _wanted(request: TrialRequest) -> tuple[str, ...]:
    """Return folders that a job may write to: its own, its script's and the user's home."""
    workdir = Path(request.workdir).absolute()
    several = [workdir]
    if request.script and not request.script.is_module:
        several.append((workdir / request.script.target).parent)
    if request.command:
        several += [(workdir / word).parent for word in request.command.argv if "/" in word]
    return writable(several)


def _named(request: TrialRequest) -> tuple[str, ...]:
    """Return what may be paths in a job's arguments and variables, from its working directory on."""
    script, command = request.script, request.command
    words = [*(script.args if script else ()), *(command.argv if command else ())]
    words += request.env.values()
    values = [part for word in words for part in (word, word.partition("=")[2])]
    return tuple(str(Path(request.workdir, value)) for value in values if value)


def writable(folders: Iterable[str | Path]) -> tuple[str, ...]:
    """Return the real paths of folders, and of the user's home, that this user may write to."""
    several = [*folders, os.path.expanduser("~")]  # noqa: PTH111 (there may be none)
    real = dict.fromkeys(os.path.realpath(folder) for folder in several)
    return tuple(folder for folder in real if Path(folder).is_dir() and os.access(folder, os.W_OK))


def _kept(files: TrialFiles, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that a trial really writes: its own, and compiler caches of the study."""
    return tuple(dict.fromkeys([str(files.folder), *shared_caches(environment)]))


def _free(wanted: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return what is written directly where no overlay can be mounted: folders and single files."""
    temporary = [t for t in TEMPORARY if not any(holds(t, folder) for folder in wanted)]
    closed = {*wanted, *disks_of_users(mounted())} - {*OF_SYSTEM}
    of_system = [path for folder in OF_SYSTEM for path in _around(folder, closed)]
    several = (*kept, *of_system, *temporary)
    return tuple(path for path in several if Path(path).exists())


def _around(folder: str, closed: Collection[str]) -> Iterator[str]:
    """Yield a folder, or of one that holds closed paths all that lies beside these."""
    if not any(holds(folder, path) for path in closed):
        yield folder
    elif folder not in closed:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    yield from _around(entry.path, closed)


def _have_own_temporary(ticket: Ticket) -> None:
    """Set TMPDIR to a folder of the trial if this process may not write to /tmp."""
    if tempfile.gettempdir() in ticket.free:
        return
    own = Path(ticket.layers) / "tmp"
    own.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    # Drop the folder that multiprocessing chose for the agent and passes on to every process.
    multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
