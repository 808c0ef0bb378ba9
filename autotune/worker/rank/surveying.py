"""Survey of a training script, as one rank runs it: left after a few steps."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from autotune.worker.files import TrialFiles
from autotune.worker.inject import spawning
from autotune.worker.inject.constructed import Constructed
from autotune.worker.inject.script_survey import Survey
from autotune.worker.inject.settings_copies import SettingsCopies
from autotune.worker.protocol import Outcome, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.execution import execute
from autotune.worker.rank.script_run import Leave
from autotune.worker.survey_result import ENDED, SurveyResult

_OF_STARTUP = 0.9
"""Share of the start-up deadline after which a script without a step is left.

It is below 1 as the agent, which would end it then, does not know what was seen.
"""


def survey(
    request: TrialRequest, context: RankContext, progressed: Callable[[], None], leave: Leave
) -> NoReturn:
    """Run the script for as many optimizer steps as the survey takes; write down what was seen.

    A script that ends before, or takes no step until the start-up deadline, is seen as far as it
    went.
    """
    script, files = request.script, TrialFiles(Path(request.log_dir))
    assert script is not None
    seen = Survey(request.knobs, script.changes, Constructed(script.constructed))
    longest = _OF_STARTUP * request.deadlines.startup
    ending = threading.Lock()

    def done(ended: str = "") -> NoReturn:
        with ending:
            try:
                files.survey(context.rank).write_text(seen.surveyed(ended).to_text())
            except Exception as error:
                leave(Outcome.ERROR, f"{type(error).__name__}: {error}")
            leave(None, "finished")

    def too_late() -> NoReturn:
        # The script is not inspected here, as its own thread goes on.
        with ending:
            how = f"{seen.so_far()} within {longest:.0f} s, and took no optimizer step"
            files.survey(context.rank).write_text(SurveyResult(ended=how).to_text())
            leave(None, "finished")

    late = threading.Timer(longest, too_late)
    late.daemon = True

    def taken(steps: int) -> None:
        late.cancel()
        progressed()
        if steps >= script.survey:
            done()

    def alive() -> None:
        # The first step belongs to the start.
        if seen.steps:
            progressed()

    def refuse(why: str) -> NoReturn:
        leave(Outcome.ERROR, why)

    def starts(ranks: int) -> NoReturn:
        late.cancel()
        files.survey(context.rank).write_text(SurveyResult(spawns=ranks).to_text())
        leave(None, "finished")

    spawning.watch(script, refuse, starts)
    SettingsCopies(request.copies).begin()
    seen.watch(alive, taken, done)
    late.start()
    ended = execute(script, request.import_paths, context.local_rank)
    done(f"{ENDED} {ended}".rstrip())
