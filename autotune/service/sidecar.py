"""A process beside the user's own job, which watches it.

The job takes the place of this command, so that its exit status, its signals and its terminal are its
own. The watcher is no child of it, which would wait for it, and leaves when the job has ended.

Imports little: it forks, and what is loaded by then should have started no threads.
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
from autotune.service.watch_options import WatchOptions
from autotune.views.terminal import plain

_LONGEST_FOLDER = 80
"""Characters; the path of a socket may have 107."""


@contextlib.contextmanager
def watched(best: BestConfig, options: WatchOptions) -> Iterator[str]:
    """Have this process watched, which becomes the job inside; the address by which its ranks report.

    Whoever leaves here instead has not become anything: then there is nothing to watch.

    Raises:
        BadInput: the port is taken, or a package is missing.
        AutotuneError: the watcher did not start.
    """
    try:
        job = os.pidfd_open(os.getpid())
    except OSError as error:
        raise BadInput(f"--watch needs pidfd_open of Linux 5.3: {error.strerror}") from None
    folder = tempfile.mkdtemp(prefix="autotune-", dir=_short())
    answers, answer = os.pipe()
    # The second one ends with this program. What comes over it says that no other took its place.
    begun, here = os.pipe()
    child = os.fork()
    if not child:
        os.close(answers)
        os.close(here)
        _detached(_Lines(job, answer, begun), folder, best, options)
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
    """Of the watcher, as file descriptors.

    Attributes:
        job: the process that it watches.
        answer: where it says that it is there, or why not.
        begun: ends as the job begins; what comes over it before says that there will be none.
    """

    job: int
    answer: int
    begun: int


def _short() -> str | None:
    """Where the folder of a socket goes; None: where temporary files do."""
    return "/tmp" if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER else None


def _address(folder: str) -> str:
    return f"{folder}/socket"


def _detached(lines: _Lines, folder: str, best: BestConfig, options: WatchOptions) -> NoReturn:
    """Return the child: what it starts is an orphan in a session of its own."""
    try:
        os.setsid()  # a Ctrl-C is for the job
        if os.fork():
            os._exit(0)
        # It ends when the job does, whoever ends that. No signal is ignored for what it starts.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        _watch(lines, folder, best, options)
    except BaseException:
        traceback.print_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _watch(lines: _Lines, folder: str, best: BestConfig, options: WatchOptions) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.bind(_address(folder))
    problem = ""
    try:
        from autotune.service.watcher import Watcher

        watcher = Watcher(best, options, say)
    except ModuleNotFoundError as error:
        problem = f"--watch needs {error.name}, which is not installed: pip install autotune"
    except OSError as error:
        problem = f"--metrics-port {options.port}: {error.strerror}"
    os.write(lines.answer, json.dumps({"problem": problem}).encode())
    os.close(lines.answer)
    if problem or os.read(lines.begun, 1):
        return
    watcher.begin()
    watcher.attend(line, lines.job)


def say(text: str) -> None:
    """A line on standard error, in one piece; the job writes there, too."""
    with contextlib.suppress(OSError):
        os.write(2, f"autotune: {plain(text)}\n".encode())
