"""A process beside the user's own job, which watches it.

The job takes the place of this command, so that its exit status, its signals and its terminal are
its own. The watcher is no child of the job, which would have to wait for it, and leaves when the
job has ended.

This module imports little, because it forks: what is loaded by then should have started no threads.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from autotune.errors import AutotuneError, BadInput
from autotune.export.best import BestConfig
from autotune.views.terminal import plain
from autotune.worker.files import folder_for_sockets

_MINUTE = 60.0
_FOR_THE_JOB = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
"""Signals that are meant for the job, and end a process that does not handle them."""


@contextlib.contextmanager
def watched(best: BestConfig, port: int = 0, every: float = _MINUTE) -> Iterator[str]:
    """Have this process watched, which becomes the job inside.

    Yield the address for the reports of its ranks. If the body returns, the process has not become
    a job, and there is nothing to watch.

    Args:
        port: port of the metrics; 0: a free one.
        every: seconds between two checks.

    Raises:
        BadInput: the port is taken, or a package is missing.
        AutotuneError: the watcher did not start.
    """
    try:
        job = os.pidfd_open(os.getpid())
    except OSError as error:
        raise BadInput(f"--watch needs pidfd_open of Linux 5.3: {error.strerror}") from None
    folder = tempfile.mkdtemp(prefix="autotune-", dir=folder_for_sockets())
    answers, answer = os.pipe()
    # The second pipe ends with this program. Data in it says that no job took its place.
    begun, here = os.pipe()
    child = os.fork()
    if not child:
        os.close(answers)
        os.close(here)
        _detached(_Lines(job, answer, begun), folder, best, port, every)
    for theirs in (job, answer, begun):
        os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(answers) as file, os.fdopen(here, "wb", buffering=0) as not_begun:
        told = file.read()
        if not told:
            raise AutotuneError("the watcher did not start")
        if problem := json.loads(told)["problem"]:
            raise BadInput(problem)
        try:
            yield _address(folder)
        finally:
            with contextlib.suppress(OSError):
                not_begun.write(b"no")


@dataclass(frozen=True)
class _Lines:
    """File descriptors of the watcher.

    Attributes:
        job: process that it watches.
        answer: pipe for its readiness, or for the reason of a failure.
        begun: pipe that ends as the job begins; data before that says that there will be no job.
    """

    job: int
    answer: int
    begun: int


def _address(folder: str) -> str:
    return f"{folder}/socket"


def _detached(lines: _Lines, folder: str, best: BestConfig, port: int, every: float) -> NoReturn:
    """Run the watcher in the child; the process that it starts is an orphan in its own session."""
    try:
        os.setsid()  # a Ctrl-C is for the job
        if os.fork():
            os._exit(0)
        # The watcher ends only with the job, and a signal to all processes that are named like the
        # script reaches it, too. Handlers, not SIG_IGN, as children inherit the latter.
        for number in _FOR_THE_JOB:
            signal.signal(number, lambda *_: None)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        _watch(lines, folder, best, port, every)
    except BaseException:
        traceback.print_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _watch(lines: _Lines, folder: str, best: BestConfig, port: int, every: float) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.bind(_address(folder))
    problem = ""
    try:
        from autotune.service.watcher import Watcher

        watcher = Watcher(best, say, port, every)
    except ModuleNotFoundError as error:
        from autotune.worker.installing import pip_install

        problem = f"--watch needs {error.name}, which is not installed: {pip_install()}"
    except OSError as error:
        problem = f"--metrics-port {port}: {error.strerror}"
    os.write(lines.answer, json.dumps({"problem": problem}).encode())
    os.close(lines.answer)
    if problem or os.read(lines.begun, 1):
        return
    watcher.begin()
    watcher.attend(line, lines.job)


def say(text: str) -> None:
    """Print a line on standard error in one piece, as the job writes there, too."""
    with contextlib.suppress(OSError):
        os.write(2, f"autotune: {plain(text)}\n".encode())
