"""Run outside a study, on one slot, recorded nowhere."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.config import StudySpec
from autotune.runs.monitors import RunMonitor
from autotune.runs.study_setup import StudySetup
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import TrialRequest
from storage import AttemptResult, AttemptState

Shape = Callable[[TrialRequest], TrialRequest]
"""Function from a timed trial to the wanted trial."""


def as_timed(asked: TrialRequest) -> TrialRequest:
    """Return the timed trial itself."""
    return asked


@dataclass(frozen=True)
class OneOffRuns:
    """Runner of configurations on the first slot of a launcher, one after another.

    Attributes:
        folder: folder for output and traces of the ranks, with a folder per run.
        workdir: folder in which the ranks run.
    """

    setup: StudySetup
    folder: Path
    workdir: Path

    def run(
        self, name: str, knobs: dict[str, Any], monitor: RunMonitor, shape: Shape = as_timed
    ) -> AttemptResult:
        """Run a configuration and return its result.

        Args:
            name: name of the run, unique for this launcher.
            shape: function that turns a timed trial into the wanted one.
        """
        slot = self.setup.launcher.slots[0]
        asked = self.setup.request(
            slot, knobs, name=name, workdir=self.workdir, log_dir=self.folder / name
        )
        return monitor.result(slot.run_solo(shape(asked), monitor))

    def of(self, spec: StudySpec) -> "OneOffRuns":
        """Return these runs with other settings."""
        return replace(self, setup=self.setup.with_settings(spec))

    def files(self, name: str) -> TrialFiles:
        """Return the files of a run's ranks."""
        return TrialFiles(self.folder / name)


def why_not(result: AttemptResult) -> str:
    """Return why a run is not complete, with the end of its output; empty if it is."""
    if result.state == AttemptState.COMPLETE:
        return ""
    return f"{result.state}: {result.cause}\n{result.log_tail}".rstrip()
