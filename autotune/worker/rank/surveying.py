"""Survey of a training script, as one rank runs it: left after a few steps."""

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from autotune.worker.files import TrialFiles
from autotune.worker.inject import spawning
from autotune.worker.inject.constructed import Constructed
from autotune.worker.inject.script_survey import Survey
from autotune.worker.inject.settings_copies import SettingsCopies
from autotune.worker.protocol import Outcome, TrialRequest
from autotune.worker.rank.context import Leave, RankContext
from autotune.worker.rank.execution import execute
from autotune.worker.rank.own_devices import GivenDevices
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


class _SurveyRun:
    """Survey of one rank: it ends after enough steps, with the script, or too late for a step."""

    def __init__(
        self,
        request: TrialRequest,
        context: RankContext,
        store: Store,
        progressed: Callable[[], None],
        leave: Leave,
    ) -> None:
        assert request.script is not None
        self._request, self._script = request, request.script
        self._seen = Survey(
            request.knobs, self._script.changes, Constructed(self._script.constructed)
        )
        self._drawing = _Drawing(store, context)
        self._file = TrialFiles(Path(request.log_dir)).survey(context.rank)
        self._progressed = progressed
        self._leave = leave
        self._longest = _OF_STARTUP * request.timeouts.startup
        self._devices = GivenDevices()
        self._ending = threading.Lock()
        self._late = threading.Timer(self._longest, self._leave_late)
        self._late.daemon = True

    def watch(self) -> None:
        """Look from now on, and begin to wait for the first step."""
        spawning.watch(self._script, self._refuse, self._starts)
        SettingsCopies(self._request.copies).begin()
        self._seen.watch(self._alive, self._taken, self.done)
        self._late.start()

    def done(self, ended: str = "") -> NoReturn:
        """Write down what was seen, and leave."""
        with self._ending:
            try:
                self._seen.share = self._drawing.share()
                self._file.write_text(self._seen.surveyed(ended).to_text())
            except Exception as error:
                self._leave(Outcome.ERROR, f"{type(error).__name__}: {error}")
            self._leave(None, "finished")

    def _leave_late(self) -> NoReturn:
        # The script is not inspected here, as its own thread goes on.
        with self._ending:
            how = f"{self._seen.so_far()} within {self._longest:.0f} s, and took no optimizer step"
            children = len(multiprocessing.active_children())
            self._file.write_text(SurveyResult(ended=how, children=children).to_text())
            self._leave(None, "finished")

    def _taken(self, steps: int) -> None:
        self._late.cancel()
        if problem := self._devices.problem():
            self._refuse(problem)
        if steps == 1:
            self._drawing.tell(draws=self._seen.probe.saw_loader)
        self._progressed()
        if steps >= self._script.survey:
            self.done()

    def _alive(self) -> None:
        # The first step belongs to the start.
        if self._seen.steps:
            self._progressed()

    def _refuse(self, why: str) -> NoReturn:
        self._leave(Outcome.ERROR, why)

    def _starts(self, ranks: int) -> NoReturn:
        self._late.cancel()
        self._file.write_text(SurveyResult(spawns=ranks).to_text())
        self._leave(None, "finished")


def survey(
    request: TrialRequest,
    context: RankContext,
    store: Store,
    progressed: Callable[[], None],
    leave: Leave,
) -> NoReturn:
    """Run the script for as many optimizer steps as the survey takes; write down what was seen.

    A script that ends before, or takes no step until the start-up timeout, is seen as far as it
    went.
    """
    assert request.script is not None
    run = _SurveyRun(request, context, store, progressed, leave)
    run.watch()
    ended = execute(request.script, request.import_paths, context.local_rank)
    run.done(f"{ENDED} {ended}".rstrip())
