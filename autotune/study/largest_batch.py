"""`micro_batch: max`: the largest that fits in memory, found by short runs of the baseline.

It doubles until one does not fit, halves what lies between, and keeps some headroom. Its runs are
recorded, so that a study goes on wherever they stand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.config import StudySpec
from autotune.config.mistakes import LARGEST
from autotune.errors import BadInput
from autotune.runs.monitors import FitMonitor
from autotune.runs.policy import RUNS
from autotune.study.context import BASELINE, StudyContext
from autotune.study.executor import TrialExecutor
from autotune.study.policy import STUDY
from autotune.study.run_planner import PlannedAttempt, RunPlanner
from autotune.study.slot_pool import SlotPool
from autotune.study.time_budget import TimeBudget
from search_spaces import CATALOGUE, infeasible
from search_spaces.batch import divisors
from search_spaces.constraints import broken
from search_spaces.knob import Range
from storage import Attempts, AttemptState, Purpose, StoredAttempt

_STEPS = "accumulation_steps"


@dataclass(frozen=True)
class Bracket:
    """Bracket around the largest micro-batch.

    Attributes:
        fits: the largest that ran; 0 if none did.
        fails: the smallest that did not; None if all did.
    """

    fits: int = 0
    fails: int | None = None

    @classmethod
    def of(cls, runs: Sequence[tuple[int, bool]]) -> "Bracket":
        """Return the bracket from micro-batches, each with whether it has run."""
        fits = max((size for size, ran in runs if ran), default=0)
        return cls(fits, min((size for size, ran in runs if not ran), default=None))

    def next(self, first: int, most: int) -> int | None:
        """Return the micro-batch to try next; None when enough is known.

        Args:
            first: micro-batch to begin with.
            most: largest that makes sense.
        """
        if self.fails is None:
            if not self.fits:
                return first
            return min(2 * self.fits, most) if self.fits < most else None
        room = self.fails - self.fits
        return None if room <= max(1, self.fits // STUDY.close_enough) else self.fits + room // 2

    def with_headroom(self, first: int) -> int:
        """Return the micro-batch to train with; at least the first if that fits."""
        kept = int(STUDY.fit_headroom * self.fits)
        kept -= kept % STUDY.batch_granule if kept >= 2 * STUDY.batch_granule else 0
        return max(1, kept, min(first, self.fits))


class LargestBatch:
    """Search for the largest micro-batch of one study."""

    def __init__(self, context: StudyContext, check: Callable[[], None]) -> None:
        """Prepare the search; `check` raises when the study is to stop."""
        self._context = context
        self._check = check
        self._time = TimeBudget(context)
        self._first = int(context.setup.baseline["micro_batch"])
        fixed = context.setup.facts.global_batch_size
        self._share = None if fixed is None else fixed // context.setup.facts.world_size
        """Samples of a rank per step, if they are held: no micro-batch is larger."""

    def resolved(self) -> StudySpec:
        """Return the settings of the study with a number for `max`.

        Raises:
            BadInput: memory has no limit, or does not hold a single sample; or energy is needed and
                cannot be read.
        """
        setup, spec = self._context.setup, self._context.setup.spec
        if not spec.asks_for_largest:
            return spec
        self._check_limit()
        setup.check_energy()
        # Why a baseline cannot run at all, the search says.
        can_run = not infeasible(setup.baseline, setup.facts)
        largest = self._found() if can_run else None
        values = spec.values()
        numbers = [value for value in values["micro_batch"] if value != LARGEST]
        if largest is not None and self._share is not None:
            largest = next(d for d in divisors(self._share) if d <= largest)
        if largest is not None and largest not in numbers:
            numbers.append(largest)
        space = {**values, "micro_batch": numbers or [self._first]}
        return spec.model_copy(update={"search_space": space})

    def _check_limit(self) -> None:
        setup = self._context.setup
        shared = setup.launcher.site.devices_per_rank < 1
        if shared and setup.spec.resources.memory_per_worker is None:
            raise BadInput(
                "search_space.micro_batch: max needs a limit where a rank has no device of its own: it "
                "could take the memory of all; set resources.memory_per_worker, e.g. 8GiB"
            )

    def _found(self) -> int | None:
        """Return the largest micro-batch less some headroom; None if the baseline does not run."""
        attempts = known = self._context.attempts()
        pool = SlotPool(self._context)
        planner = RunPlanner(self._context, pool)
        with TrialExecutor(self._context, pool, self._check) as executor:
            while (size := self._next(attempts)) is not None:
                attempt = PlannedAttempt(BASELINE, self._knobs(size), Purpose.FIT)
                limit, monitor = self._time.for_fit(attempts), FitMonitor(RUNS.blocks_of_fit)
                executor.run(planner.monitored(attempt, limit, monitor))
                attempts = self._context.attempts()
        runs = _runs(attempts)
        bracket = _bracket(runs)
        largest = bracket.with_headroom(self._first) if bracket.fits else None
        if self._share is not None and bracket.fits >= self._share:
            largest = self._share
        if len(runs) > len(_runs(known)):
            self._context.say(_told(bracket, runs, largest))
        return largest

    def _knobs(self, size: int) -> dict[str, Any]:
        """Return the baseline with this micro-batch, and the least accumulation that takes its memory.

        Gradients that wait for one micro-batch take as much as if they waited for many.
        """
        baseline = self._context.setup.baseline
        steps = min(2, baseline["accumulation_steps"])
        if self._share is not None:
            steps = 1 if size >= self._share else 2
        return {**baseline, "micro_batch": size, "accumulation_steps": steps}

    def _next(self, attempts: Attempts) -> int | None:
        runs = _runs(attempts)
        bracket = _bracket(runs)
        # What is searched does not change any more, whatever the budget becomes.
        searching = len(attempts) > len(attempts.of(Purpose.FIT, Purpose.PROFILE))
        if searching or (bracket.fits and self._time.fit_is_spent(attempts)):
            return None
        if runs and not bracket.fits:
            last = runs[-1]
            if last.result.state != AttemptState.OOM:
                return None  # what is wrong with the baseline, its own trial will tell
            if _size(last) == 1:
                raise BadInput(
                    f"search_space.micro_batch: not even 1 fits in memory: {last.result.cause}"
                )
        domain = CATALOGUE["micro_batch"].domain
        assert isinstance(domain, Range)
        size = bracket.next(self._first, self._share or int(domain.high))
        return None if size is None or self._ruled_out(size) else size

    def _ruled_out(self, size: int) -> bool:
        """Return whether the study's own constraints rule a micro-batch out with every accumulation."""
        setup = self._context.setup
        if self._share is not None:
            several = {self._share // size}
        else:
            several = {setup.baseline[_STEPS], *setup.spec.values().get(_STEPS, ())}
        one = self._knobs(size)
        return all(any(broken({**one, _STEPS: steps}, setup.facts)) for steps in several)


def _runs(attempts: Attempts) -> list[StoredAttempt]:
    return list(attempts.of(Purpose.FIT).recorded())


def _bracket(runs: Sequence[StoredAttempt]) -> Bracket:
    return Bracket.of([(_size(run), run.result.state == AttemptState.COMPLETE) for run in runs])


def _told(bracket: Bracket, runs: Sequence[StoredAttempt], taken: int | None) -> str:
    """Return the result in words for the user."""
    if taken is None:
        return f"micro_batch: max is not known, the baseline fails: {runs[-1].result.cause}."
    text = f"micro_batch: {bracket.fits} fits"
    for beyond in (run for run in runs if _size(run) == bracket.fails):
        why = "" if beyond.result.state == AttemptState.OOM else f": {beyond.result.cause}"
        text += f", {bracket.fails} does not ({beyond.result.state}{why})"
    if bracket.fails is None:
        text += ", more was not tried"
    return f"{text}; max is taken to be {taken}."


def _size(attempt: StoredAttempt) -> int:
    return int(attempt.knobs["micro_batch"])
