"""A training script under survey, as one rank runs it: left after a few steps."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from autotune.worker.files import TrialFiles
from autotune.worker.inject import spawning
from autotune.worker.inject.copies import Copies
from autotune.worker.inject.survey import Survey
from autotune.worker.protocol import Outcome, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.execution import execute
from autotune.worker.rank.script import Leave


def survey(
    request: TrialRequest, context: RankContext, progressed: Callable[[], None], leave: Leave
) -> NoReturn:
    """Run the script for as many optimizer steps as the survey takes, write down what was seen.

    A script that ends before is seen as far as it went.
    """
    script, files = request.script, TrialFiles(Path(request.log_dir))
    assert script is not None
    seen = Survey(request.knobs)

    def done(ended: str = "") -> NoReturn:
        try:
            files.survey(context.rank).write_text(seen.surveyed(ended).to_text())
        except Exception as error:
            leave(Outcome.ERROR, f"{type(error).__name__}: {error}")
        leave(None, "finished")

    def taken(steps: int) -> None:
        if steps >= script.survey:
            done()

    spawning.watch(script, lambda why: leave(Outcome.ERROR, why))
    Copies(request.copies).begin()
    seen.watch(progressed, taken, done)
    ended = execute(script, request.import_paths, context.local_rank)
    done(f"the script ended {ended}".rstrip())
