"""Process of one rank that runs an unmodified script, driven by the steps of its optimizer."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NoReturn

from autotune.worker import failure
from autotune.worker.inject import spawning
from autotune.worker.inject.changes import Changes
from autotune.worker.inject.constructed import Constructed
from autotune.worker.inject.settings_copies import SettingsCopies
from autotune.worker.processes import NO_DEVICES, VISIBLE_DEVICES
from autotune.worker.protocol import Outcome, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.execution import execute
from autotune.worker.rank.line import RankLine

_FORKS = (
    "the script trains in processes that it forks, and a trial follows the process that it is started "
    "in: have it train there, or have torchrun start its ranks"
)


class ScriptProcess(ABC):
    """Run of a script in this process, with the changes of its configuration, until it is left."""

    def __init__(self, request: TrialRequest, context: RankContext, line: RankLine) -> None:
        assert request.script is not None
        self._request = request
        self._script = request.script
        self._context = context
        self._line = line
        self._changes = Changes(request.knobs, self._script.changes, self._script.baseline)
        self._copies = SettingsCopies(request.copies)
        self._constructed = Constructed(self._script.constructed)
        self._devices = GivenDevices()
        self._steps_seen = 0
        self._process = os.getpid()

    def run(self) -> NoReturn:
        """Run the script until it is left, or to its end."""
        spawning.watch(self._script, self._refuse, self._starts)
        self._copies.begin()
        if self._script.constructed or self._script.survey:
            self._constructed.watch()
        self._changes.begin()
        self.watch()
        folders, local_rank = self._request.import_paths, self._context.local_rank
        self._ended(execute(self._script, folders, local_rank))

    @abstractmethod
    def watch(self) -> None:
        """Have `_goes_on` and `_stepped` called by the hooks in the script's training."""

    @abstractmethod
    def _taken(self) -> None:
        """Take in an optimizer step that is over."""

    @abstractmethod
    def _starts(self, ranks: int) -> NoReturn:
        """Leave a script that starts ranks by itself."""

    @abstractmethod
    def _ended(self, how: str) -> NoReturn:
        """Leave a script that has ended; see `execute`."""

    def _goes_on(self) -> None:
        # The first step belongs to the start: passes and optimizer may be compiled in it.
        if self._steps_seen:
            self._line.progressed()

    def _stepped(self) -> None:
        # An error here must not be raised in the script, which might catch it.
        try:
            if os.getpid() != self._process:
                self._refuse(_FORKS)
            self._steps_seen += 1
            self._taken()
        except BaseException as error:
            self._line.leave(failure.outcome_of_error(error), f"{type(error).__name__}: {error}")

    def _refuse(self, why: str) -> NoReturn:
        self._line.leave(Outcome.ERROR, why, contradicted=True)


class GivenDevices:
    """Devices that a rank was given, as its environment names them before the script begins.

    A script that sets the variable in its code trains on that device in every slot, beside the trials
    that were given it, and none of the figures is true.
    """

    def __init__(self, driver: Path = Path("/proc/driver/nvidia")) -> None:
        """Take in the devices, and the driver's folder: without it the node has none to choose."""
        self._given = os.environ.get(VISIBLE_DEVICES)
        self._there = driver.exists()

    def problem(self) -> str:
        """Return why the script may train on other devices; empty if it may not."""
        now = os.environ.get(VISIBLE_DEVICES)
        if not self._there or self._given is None or _names(now) == _names(self._given):
            return ""
        does = f"removes {VISIBLE_DEVICES}" if now is None else f"sets {VISIBLE_DEVICES} to {now!r}"
        return (
            f"the script {does}, and this trial was given {self._given!r}; take that line out of the "
            "script, and set the variable for `autotune` instead"
        )


def _names(value: str | None) -> list[str] | None:
    """Return the devices that a value names; None: all of the node."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    return [] if names[0] in NO_DEVICES else names
