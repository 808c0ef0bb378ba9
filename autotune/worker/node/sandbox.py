"""The protection of the user's files on this node: chosen and set up before the ranks of a trial start,
cleared away when they are gone."""

import contextlib
import json
import multiprocessing.process
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from autotune.worker.files import COMPILER_CACHES, TrialFiles
from autotune.worker.protocol import TrialRequest
from autotune.worker.sandbox import kernel, overlay, redirect, scratch
from autotune.worker.sandbox.mounts import OF_SYSTEM, TEMPORARY, holds
from autotune.worker.sandbox.overlay import View

OVERLAY, COPIES = "overlay", "copies"
"""What may protect the files of the user."""


@dataclass(frozen=True)
class Ticket:
    """What a rank needs to enter a sandbox.

    Attributes:
        layers: folder of what the trial writes.
        holder: process that is in the view of the trial; 0: there is none, and it writes copies.
        free: folders that it writes as they are then.
    """

    layers: str
    holder: int = 0
    free: tuple[str, ...] = ()


class Sandbox:
    """The protection of one trial on one node."""

    def __init__(self, request: TrialRequest, context: ForkServerContext) -> None:
        """Set it up.

        Raises:
            OSError: nothing can protect the files of the user here.
        """
        files = TrialFiles(Path(request.log_dir).absolute())
        wanted, kept = _wanted(request), _kept(files, request.env)
        place, on_disk = scratch.place(list(wanted))
        self._scratch = scratch.Scratch(place)
        layers = str(self._scratch.folder)
        self._holder = _Holder(View(wanted, kept, layers, not on_disk), context)
        if self._holder.problem:
            self._holder.close()
            self._check_fallback()
            self.ticket = Ticket(layers, free=_free(wanted, kept))
        else:
            self.ticket = Ticket(layers, self._holder.process)
        how = COPIES if self._holder.problem else OVERLAY
        files.protection().write_text(json.dumps({"how": how, "why": self._holder.problem}))

    def _check_fallback(self) -> None:
        try:
            kernel.Landlock.version()
        except OSError as error:
            self._scratch.remove()
            raise OSError(
                f"nothing keeps your files as they are here ({self._holder.problem}; {error}): say "
                "`workload: {may_write: true}` if trials may change them, or run them in a container "
                "with --cap-add SYS_ADMIN or on a newer kernel"
            ) from None

    def advice(self, said: str) -> str:
        """Say what to do about a failure of a script that has met the protection; else nothing.

        Args:
            said: what the script has raised and printed.
        """
        if self.ticket.holder or "Permission denied" not in said:
            return ""
        return (
            "; what a script writes past Python is refused here, as no overlay can be mounted "
            f"({self._holder.problem}): say `workload: {{may_write: true}}` if trials may change files"
        )

    @property
    def roots(self) -> list[int]:
        """Processes of it, which have to live as long as the ranks."""
        return [self.ticket.holder] if self.ticket.holder else []

    def close(self) -> None:
        """Discard all that the trial has written. Its processes are gone."""
        self._holder.close()
        self._scratch.remove()


def enter(ticket: Ticket) -> None:
    """Have this process, a rank that has one thread, write nothing of the user's.

    Raises:
        OSError: the holder of the view is gone.
    """
    scratch.hold(Path(ticket.layers))
    if ticket.holder:
        overlay.join(ticket.holder)
        return
    rules = kernel.Landlock()
    for folder in (ticket.layers, *ticket.free):
        rules.allow(folder)
    _have_own_temporary(ticket)
    redirect.begin(ticket.layers, list(ticket.free))
    rules.begin()


class _Holder:
    """A process that keeps a view for the ranks that join it.

    Attributes:
        problem: why it has none; empty if it has.
        process: its id.
    """

    def __init__(self, view: View, context: ForkServerContext) -> None:
        self._ours, theirs = context.Pipe()
        self._process: ForkServerProcess = context.Process(target=_hold, args=(view, theirs))
        self._process.start()
        theirs.close()
        try:
            self.problem = self._ours.recv_bytes().decode()
        except EOFError:
            self.problem = "the process that was to mount overlays has died"
        self.process = self._process.pid or 0

    def close(self) -> None:
        """Let it go."""
        self._ours.close()
        self._process.join()


def _hold(view: View, connection: Connection) -> None:
    """Keep a view for the ranks that join it, until the agent lets go of it or is gone."""
    os.setsid()
    try:
        overlay.enter(view)
    except OSError as error:
        connection.send_bytes(str(error).encode())
        return
    connection.send_bytes(b"")
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    os._exit(0)


def _wanted(request: TrialRequest) -> tuple[str, ...]:
    """Folders that a job is likely to write to: where it works, where its script is, its home."""
    workdir = Path(request.workdir).absolute()
    several = [workdir, Path.home()]
    if request.script and not request.script.is_module:
        several.append((workdir / request.script.path).parent)
    if request.command:
        several += [(workdir / word).parent for word in request.command.argv if "/" in word]
    real = dict.fromkeys(os.path.realpath(folder) for folder in several)
    return tuple(folder for folder in real if Path(folder).is_dir() and os.access(folder, os.W_OK))


def _kept(files: TrialFiles, told: Mapping[str, str]) -> tuple[str, ...]:
    """Folders that a trial really writes: its own, and caches of compilers that the study has made."""
    caches = [
        os.environ[name] for name in COMPILER_CACHES if name in os.environ and name not in told
    ]
    for cache in caches:
        Path(cache).mkdir(parents=True, exist_ok=True)
    return tuple(dict.fromkeys([str(files.folder), *map(os.path.realpath, caches)]))


def _free(wanted: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Folders that are written as they are where no overlay can be mounted."""
    temporary = [t for t in TEMPORARY if not any(holds(t, folder) for folder in wanted)]
    several = (*kept, *OF_SYSTEM, *temporary)
    return tuple(folder for folder in several if Path(folder).exists())


def _have_own_temporary(ticket: Ticket) -> None:
    """Give a process that may not write to /tmp a folder in its place."""
    if tempfile.gettempdir() in ticket.free:
        return
    own = Path(ticket.layers) / "tmp"
    own.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    # What multiprocessing has found for the agent, as every process of it is told.
    multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
