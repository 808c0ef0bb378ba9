"""Daemons that replay their trials: real processes and databases, with no agent or rank to start.

Each is forked from a process that has imported all of autotune, so that it works after moments. It runs
the queue of a database until that is empty, and kills itself with SIGKILL at a call of a method, if one
is given (see dying_command.py). A trial takes moments of real time, for others to strike in.
"""

import itertools
import multiprocessing
import os
import random
import subprocess
import time
from pathlib import Path

from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from launchers.replay import Answer, Launch, ReplayLauncher
from storage import Database, Repository
from tests.faults.dying_command import plant_death
from tests.support.steering import StudyFolder

_LONGEST_TRIAL = 0.4
_IMPORTED = multiprocessing.get_context("forkserver")
_IMPORTED.set_forkserver_preload([__name__])


class ReplayedFolder(StudyFolder):
    """A user's folder whose daemons replay its trials."""

    def daemon(self, *death: str) -> "ReplayingDaemon":
        """Start one, which ends once the queue is empty."""
        return ReplayingDaemon(self.folder, self.url, *death)

    def dying(self, when: str, method: str, call: int) -> "ReplayingDaemon":
        """A daemon that kills itself."""
        return self.daemon(when, method, str(call))

    def go_on(self) -> subprocess.CompletedProcess[str]:
        """Have the next daemon run what is in the queue."""
        self.bury_daemon()
        daemon = self.daemon()
        return subprocess.CompletedProcess("daemon", daemon.wait(), daemon.output(), "")


class ReplayingDaemon:
    """A process of its own; what it prints goes to a file beside its folder."""

    _numbers = itertools.count(1)

    def __init__(self, folder: Path, url: str, *death: str) -> None:
        self._log = folder.parent / f"daemon-{next(self._numbers)}.log"
        self._log.touch()
        self._process = _IMPORTED.Process(target=_run, args=(folder, self._log, url, *death))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self, timeout: float = 300) -> int:
        """Its exit status, negative for a signal."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, self.output()
        return self._process.exitcode

    def output(self) -> str:
        return self._log.read_text(errors="replace")


def _run(folder: Path, log: Path, url: str, *death: str) -> None:
    """What the process does: as if it had been started in the folder."""
    os.setsid()
    os.chdir(folder)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    serve(url, *death)


def trial(launch: Launch) -> Answer:
    """Faster with larger micro-batches, and a little noisy."""
    time.sleep(random.uniform(0.0, _LONGEST_TRIAL))
    samples = float(launch.knobs["micro_batch"])
    return Answer(rate=launch.draw.gauss(1.0, 0.01) * samples / (samples + 3.0))


def serve(url: str, *death: str) -> None:
    """Run the queue."""
    if death:
        when, method, call = death
        plant_death(when, method, int(call))
    daemon = Daemon(
        Repository(Database(url)), this_queue(), open_launcher=lambda *_: ReplayLauncher(trial)
    )
    daemon.serve(idle_seconds=0.0)
