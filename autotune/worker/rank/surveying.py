"""Survey of a training script, as one rank runs it: left after a few steps."""

import multiprocessing
import threading
from pathlib import Path
from typing import NoReturn

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from autotune.worker.files import TrialFiles
from autotune.worker.inject.script_survey import Survey
from autotune.worker.protocol import Outcome, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.line import RankLine
from autotune.worker.rank.script_process import ScriptProcess
from autotune.worker.survey_result import ENDED, SurveyResult

_OF_STARTUP = 0.9
"""Share of the start-up timeout after which a script without a step is left.

It is below 1 as the agent, which would end it then, does not know what was seen.
"""


class _Drawing:
    """Ranks that draw batches from loaders, as each tells at its first step.

    Nothing waits for a rank that never tells: it is taken to draw as well.
    """

    def __init__(self, store: Store, context: RankContext) -> None:
        self._store = PrefixStore("drawing", store)
        self._context = context

    def tell(self, *, draws: bool) -> None:
        """Tell the other ranks whether this one draws."""
        self._store.set(str(self._context.rank), str(int(draws)))

    def share(self) -> float:
        """Return the share of a drawn batch that one rank trains on."""
        ranks = map(str, range(self._context.world_size))
        told = [self._store.get(rank) for rank in ranks if self._store.check([rank])]
        drawing = self._context.world_size - told.count(b"0")
        return drawing / self._context.world_size or 1.0


class SurveyRun(ScriptProcess):
    """Survey of one rank: it ends after enough steps, with the script, or too late for a step.

    What was seen is written down, in the last two cases as far as the script went.
    """

    def __init__(
        self, request: TrialRequest, context: RankContext, line: RankLine, store: Store
    ) -> None:
        super().__init__(request, context, line)
        # With changes, passes are not looked at: what looks at them would be compiled as well.
        self._seen = Survey(
            self._changes, self._constructed, looks_at_passes=not self._script.changes
        )
        self._drawing = _Drawing(store, context)
        self._file = TrialFiles(Path(request.log_dir)).survey(context.rank)
        self._longest = _OF_STARTUP * request.timeouts.startup
        self._ending = threading.Lock()
        self._late = threading.Timer(self._longest, self._leave_late)
        self._late.daemon = True

    def watch(self) -> None:
        """Look from now on, and begin to wait for the first step."""
        self._seen.watch(self._goes_on, self._stepped, self._done)
        self._late.start()

    def _done(self, ended: str = "") -> NoReturn:
        """Write down what was seen, and leave."""
        with self._ending:
            try:
                self._seen.share = self._drawing.share()
                self._file.write_text(self._seen.surveyed(ended).to_text())
            except Exception as error:
                self._line.leave(Outcome.ERROR, f"{type(error).__name__}: {error}")
            self._line.leave(None, "finished")

    def _leave_late(self) -> NoReturn:
        # The script is not inspected here, as its own thread goes on.
        with self._ending:
            how = f"{self._seen.so_far()} within {self._longest:.0f} s, and took no optimizer step"
            children = len(multiprocessing.active_children())
            self._file.write_text(SurveyResult(ended=how, children=children).to_text())
            self._line.leave(None, "finished")

    def _taken(self) -> None:
        self._late.cancel()
        self._seen.taken(self._steps_seen)
        if problem := self._devices.problem():
            self._refuse(problem)
        if self._steps_seen == 1:
            self._drawing.tell(draws=self._seen.probe.saw_loader)
        self._line.progressed()
        if self._steps_seen >= self._script.survey:
            self._done()

    def _starts(self, ranks: int) -> NoReturn:
        self._late.cancel()
        self._file.write_text(SurveyResult(spawns=ranks).to_text())
        self._line.leave(None, "finished")

    def _ended(self, how: str) -> NoReturn:
        self._done(f"{ENDED} {how}".rstrip())
