"""A run outside a study: made on one slot, judged, and recorded nowhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.runs.monitors import RunMonitor
from autotune.runs.plan import Plan
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import TrialRequest
from storage import AttemptResult, AttemptState

Shape = Callable[[TrialRequest], TrialRequest]
"""A timed trial -> the trial that is wanted."""


def as_timed(asked: TrialRequest) -> TrialRequest:
    """Return the timed trial itself."""
    return asked


class Probe:
    """Runs configurations on the first slot of a launcher, one after another.

    Attributes:
        plan: the study on its launcher.
        folder: for output and traces of the ranks; each run has a folder in it.
    """

    def __init__(self, plan: Plan, folder: Path, workdir: Path) -> None:
        """Take in what to run.

        Args:
            plan: the study on its launcher.
            folder: for output and traces of the ranks; each run has a folder in it.
            workdir: where the ranks run.
        """
        self.plan = plan
        self.folder = folder
        self._workdir = workdir

    def run(
        self, name: str, knobs: dict[str, Any], monitor: RunMonitor, shape: Shape = as_timed
    ) -> AttemptResult:
        """What became of one run.

        Args:
            name: of the run, unique for this launcher.
            monitor: what it is watched for.
            shape: makes another run of a timed one.
        """
        slot = self.plan.launcher.slots[0]
        asked = self.plan.request(
            slot, knobs, name=name, workdir=self._workdir, log_dir=self.folder / name
        )
        return monitor.result(slot.run(shape(asked), monitor))

    def files(self, name: str) -> TrialFiles:
        """What the ranks of a run have left."""
        return TrialFiles(self.folder / name)


def why_not(result: AttemptResult) -> str:
    """Return why a run is not complete, with the end of what it printed; empty if it is."""
    if result.state == AttemptState.COMPLETE:
        return ""
    return f"{result.state}: {result.cause}\n{result.log_tail}".rstrip()
