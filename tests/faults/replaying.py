"""Daemons that replay their trials: real processes and databases, with no agent or rank to start.

    python -m tests.faults.replaying URL [before|after CLASS.METHOD CALL]

Runs the queue of a database until it is empty, and kills itself with SIGKILL at a call of a method, if
one is given (see dying_command.py). A trial takes moments of real time, for others to strike in.
"""

import random
import subprocess
import sys
import time
from pathlib import Path

from autotune.service.daemon import Daemon, this_cluster
from launchers.replay import Answer, Launch, ReplayLauncher
from storage import Database, Repository
from tests.faults.dying_command import plant_death
from tests.steering import Command, StudyFolder

_LONGEST_TRIAL = 0.4


class ReplayedFolder(StudyFolder):
    """A user's folder whose daemons replay its trials."""

    def daemon(self, *death: str) -> Command:
        """Start one, which ends once the queue is empty."""
        arguments = ["-m", "tests.faults.replaying", self.url, *death]
        root = str(Path(__file__).parents[2])
        return Command(arguments, self.folder, {"PYTHONPATH": root})

    def dying(self, when: str, method: str, call: int) -> Command:
        """A daemon that kills itself."""
        return self.daemon(when, method, str(call))

    def go_on(self) -> subprocess.CompletedProcess[str]:
        """Have the next daemon run what is in the queue."""
        self.bury_daemon()
        daemon = self.daemon()
        return subprocess.CompletedProcess("daemon", daemon.wait(), daemon.output(), "")


def trial(launch: Launch) -> Answer:
    """Faster with larger micro-batches, and a little noisy."""
    time.sleep(random.uniform(0.0, _LONGEST_TRIAL))
    samples = float(launch.knobs["micro_batch"])
    return Answer(rate=launch.draw.gauss(1.0, 0.01) * samples / (samples + 3.0))


def main(url: str, *death: str) -> None:
    """Run the queue."""
    if death:
        when, method, call = death
        plant_death(when, method, int(call))
    daemon = Daemon(
        Repository(Database(url)), this_cluster(), open_launcher=lambda *_: ReplayLauncher(trial)
    )
    daemon.serve(idle_seconds=0.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
