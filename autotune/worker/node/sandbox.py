"""The protection of the user's files on this node: chosen and set up before the ranks of a trial start,
cleared away when they are gone."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from autotune.worker.files import COMPILER_CACHES, TrialFiles
from autotune.worker.protocol import TrialRequest
from autotune.worker.sandbox import overlay, scratch
from autotune.worker.sandbox.overlay import View


@dataclass(frozen=True)
class Ticket:
    """What a rank needs to enter a sandbox.

    Attributes:
        holder: process that is in the view of the trial.
        layers: folder of what the trial writes.
    """

    holder: int
    layers: str


class Sandbox:
    """The protection of one trial on one node."""

    def __init__(self, request: TrialRequest, context: ForkServerContext) -> None:
        """Set it up.

        Raises:
            OSError: nothing can protect the files of the user here.
        """
        files = TrialFiles(Path(request.log_dir).absolute())
        wanted = _wanted(request)
        place, on_disk = scratch.place(list(wanted))
        self._scratch = scratch.Scratch(place)
        view = View(wanted, _kept(files, request.env), str(self._scratch.folder), not on_disk)
        self._ours, theirs = context.Pipe()
        self._holder: ForkServerProcess = context.Process(target=_hold, args=(view, theirs))
        self._holder.start()
        theirs.close()
        problem = self._ours.recv_bytes().decode()
        if problem:
            self.close()
            raise OSError(problem)
        assert self._holder.pid is not None
        self.ticket = Ticket(self._holder.pid, view.layers)

    @property
    def roots(self) -> list[int]:
        """Processes of it, which have to live as long as the ranks."""
        return [self._holder.pid] if self._holder.pid else []

    def close(self) -> None:
        """Discard all that the trial has written. Its processes are gone."""
        self._ours.close()
        self._holder.join()
        self._scratch.remove()


def enter(ticket: Ticket) -> None:
    """Have this process, a rank that has one thread, write nothing of the user's.

    Raises:
        OSError: the holder of the view is gone.
    """
    scratch.hold(Path(ticket.layers))
    overlay.join(ticket.holder)


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
