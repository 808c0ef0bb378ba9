"""Planner of runs: whether the next run is paired, what it takes over, and how long it may measure."""

import dataclasses
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.analysis.finalists import ranked
from autotune.analysis.node_speeds import NodeSpeeds
from autotune.measurement.noise import run_noise, total_half_width
from autotune.measurement.step_series import OnsetBound
from autotune.measurement.stop_rule import Limits
from autotune.runs.interleaved import InterleavedSchedule, PairedSchedule, interleaved
from autotune.runs.monitors import RunMonitor, TimedMonitor
from autotune.runs.one_off import Shape, as_timed
from autotune.runs.policy import RUNS
from autotune.runs.request_shapes import (
    as_trajectory,
    few_steps,
    in_short_epochs,
    on_longest,
    profiled,
    under_autocast,
    within,
)
from autotune.study.context import BASELINE, StudyContext
from autotune.study.pairing import PairingPolicy
from autotune.study.policy import STUDY
from autotune.study.slot_pool import SlotPool
from autotune.worker.protocol import TimeLimit, TrialRequest
from launchers import SoloSchedule, TurnSchedule
from storage import COMPARED_RUNS, TRIAL_RUNS, AttemptResult, Attempts, AttemptState, Purpose

_SHAPES: dict[Purpose, Shape] = {
    Purpose.REFERENCE: as_trajectory,
    Purpose.AUTOCAST: under_autocast,
    Purpose.NUMERICS: as_trajectory,
    Purpose.PROFILE: profiled,
    Purpose.FIT: few_steps,
    Purpose.LONGEST: on_longest,
    Purpose.EPOCHS: in_short_epochs,
}
"""Shapes of the requests of runs that are not timed."""


class Mode(StrEnum):
    """Order in which the attempts of a run train."""

    SOLO = "solo"
    INTERLEAVED = "interleaved"
    PAIRED = "paired"


@dataclass(frozen=True)
class PlannedAttempt:
    """Attempt that a run makes.

    Attributes:
        round: of a comparison.
        seed: number of the seed of a run of the numerics gate.
        beside: trial beside which the baseline runs.
    """

    trial: int
    knobs: dict[str, Any]
    purpose: Purpose
    round: int = 0
    seed: int = 0
    beside: int = 0

    @property
    def number(self) -> int:
        """Round, seed or trial, as it is recorded: `StoredAttempt.round`."""
        return self.round or self.seed or self.beside


@dataclass(frozen=True)
class RunPlan:
    """Plan of one run; `TrialExecutor.submit` carries it out.

    Attributes:
        attempts: attempts of the run, in the order in which they train; in a pair the trial first.
        mode: solo with one attempt, else interleaved or paired.
        monitors: monitor of each attempt.
        limit: time limit of each attempt, of which `soft` counts from the first step.
        reuse: True if the run may take over a warm worker.
        stays: True if its ranks stay as a warm worker.
        interleaved_block_seconds: longest block, where several train in turn.
    """

    attempts: tuple[PlannedAttempt, ...]
    mode: Mode
    slot: int
    schedule: TurnSchedule
    monitors: tuple[RunMonitor, ...]
    limit: TimeLimit
    seed: int
    reuse: bool
    stays: bool
    interleaved_block_seconds: float = RUNS.interleaved_block

    @property
    def purpose(self) -> Purpose:
        """Purpose of the first attempt."""
        return self.attempts[0].purpose

    @property
    def searching(self) -> bool:
        """True if warm workers may wait beside the run."""
        return self.purpose in TRIAL_RUNS

    def request(self, timed: TrialRequest) -> TrialRequest:
        """Return the request of an attempt, from one that is timed by itself."""
        if self.mode is Mode.SOLO:
            shaped = _SHAPES.get(self.purpose, as_timed)(timed)
        else:
            shaped = interleaved(timed, self.interleaved_block_seconds)
        shaped = within(shaped, self.limit)
        return dataclasses.replace(shaped, seed=self.seed, stays=self.stays)


class RunPlanner:
    """Planner of the runs of one study.

    Attributes:
        noise: run-to-run noise as far as known.
        pairing: policy of what is interleaved.
    """

    def __init__(self, context: StudyContext, pool: SlotPool) -> None:
        self._context = context
        self._pool = pool
        self.noise = run_noise([])
        self.pairing = PairingPolicy(context, pool)

    def search(
        self,
        trial: int,
        knobs: dict[str, Any],
        limit: TimeLimit,
        barred: Container[int] = (),
    ) -> RunPlan:
        """Plan a trial of the search: paired where trials by themselves would not compare.

        Args:
            limit: time limit from the launch, as for all plans; in a pair that of both together.
            barred: trials that may not be recommended: the trial need not be as fast.
        """
        attempts = self._context.attempts()
        # The baseline is never stopped early: everything is compared with it.
        racing = knobs != self._context.setup.baseline
        low = _incumbent_low(attempts, barred, self.noise.df) if racing else 0.0
        rate = self.pairing.baseline_rate(trial, knobs, self.noise, limit)
        if rate:
            return self._paired(trial, knobs, rate, low, limit)
        attempt = PlannedAttempt(trial, knobs, Purpose.SEARCH)
        slot = self._choose(attempt)
        low = NodeSpeeds.of(attempts).at(self._pool.environment_of(slot)).least(low)
        return self._timed(attempt, slot, limit, low)

    def calibration(
        self, trial: int, limit: TimeLimit, among: Collection[int] | None = None
    ) -> RunPlan:
        """Plan another run of the baseline in the search.

        Args:
            among: numbers of free slots to choose from; None: all of them.
        """
        attempt = PlannedAttempt(trial, self._context.setup.baseline, Purpose.CALIBRATE)
        return self._timed(attempt, self._choose(attempt, among), limit)

    def timed(self, attempt: PlannedAttempt, limit: TimeLimit) -> RunPlan:
        """Plan a timed run by itself in new processes."""
        return self._timed(attempt, self._choose(attempt), limit)

    def monitored(self, attempt: PlannedAttempt, limit: TimeLimit, monitor: RunMonitor) -> RunPlan:
        """Plan a run by itself in new processes, with a monitor of its own."""
        slot = self._choose(attempt)
        return self._solo(attempt, slot, self._after_launch(limit, taken_over=False), monitor)

    def interleaved(
        self, attempts: Sequence[PlannedAttempt], limit: TimeLimit, peak_bytes: int
    ) -> RunPlan | None:
        """Plan the runs of a round as one interleaved run; None if they have to run one by one.

        Args:
            limit: time limit of all of them together.
            peak_bytes: bytes of the largest rank of each, added up; 0: not known.
        """
        knobs = [attempt.knobs for attempt in attempts]
        if not self.pairing.can_interleave(knobs, peak_bytes, limit, self.noise):
            return None
        each = self._shared(limit, len(attempts), taken_over=False)
        limits = [self._limits(one, each) for one in attempts]
        group = InterleavedSchedule(limits, at_once=self._context.on_device)
        return RunPlan(
            attempts=tuple(attempts),
            mode=Mode.INTERLEAVED,
            slot=self._choose(attempts[0]),
            schedule=group,
            monitors=tuple(group.monitors),
            limit=each,
            seed=self._seed(attempts[0]),
            reuse=False,
            stays=False,
            interleaved_block_seconds=self._context.setup.interleaved_block_seconds,
        )

    def _paired(
        self, trial: int, knobs: dict[str, Any], rate: float, low: float, limit: TimeLimit
    ) -> RunPlan:
        """Plan a trial of the search with the baseline beside it.

        Args:
            rate: rate of the baseline at which trials compare, in units per second.
            low: lower bound of the best rate so far.
        """
        attempt = PlannedAttempt(trial, knobs, Purpose.SEARCH)
        beside = PlannedAttempt(
            BASELINE, self._context.setup.baseline, Purpose.PAIRED, beside=trial
        )
        slot = self._choose(attempt)
        taken_over = self._pool.can_take_over(slot, knobs, interleaved=True)
        each = self._shared(limit, 2, taken_over=taken_over)
        own, its = self._limits(attempt, each, low), self._limits(beside, each)
        pair = PairedSchedule(own, its, rate, at_once=self._context.on_device)
        return RunPlan(
            attempts=(attempt, beside),
            mode=Mode.PAIRED,
            slot=slot,
            schedule=pair,
            monitors=tuple(pair.monitors),
            limit=each,
            seed=self._context.setup.spec.seed,
            reuse=True,
            stays=self._stays(Purpose.SEARCH),
            interleaved_block_seconds=self._context.setup.interleaved_block_seconds,
        )

    def _timed(
        self, attempt: PlannedAttempt, slot: int, limit: TimeLimit, low: float = 0.0
    ) -> RunPlan:
        """Plan a timed run by itself.

        Args:
            low: lower bound of the best rate so far; 0 switches racing off.
        """
        reuse = self._may_reuse(attempt)
        taken_over = reuse and self._pool.can_take_over(slot, attempt.knobs, interleaved=False)
        left = self._after_launch(limit, taken_over=taken_over)
        monitor = TimedMonitor(self._limits(attempt, left, low))
        return self._solo(attempt, slot, left, monitor, reuse=reuse)

    def _solo(
        self,
        attempt: PlannedAttempt,
        slot: int,
        limit: TimeLimit,
        monitor: RunMonitor,
        *,
        reuse: bool = False,
    ) -> RunPlan:
        return RunPlan(
            attempts=(attempt,),
            mode=Mode.SOLO,
            slot=slot,
            schedule=SoloSchedule(monitor),
            monitors=(monitor,),
            limit=limit,
            seed=self._seed(attempt),
            reuse=reuse,
            stays=self._stays(attempt.purpose),
        )

    def _seed(self, attempt: PlannedAttempt) -> int:
        """Return the seed of a run, the same for all members of a round.

        Rounds draw other rows: of the same ones, however long, all rounds would tell the same.
        """
        return self._context.setup.spec.seed + attempt.round + attempt.seed

    def _choose(self, attempt: PlannedAttempt, among: Collection[int] | None = None) -> int:
        free = self._pool.free if among is None else among
        return self._pool.choose(attempt.purpose, attempt.knobs, free)

    def _may_reuse(self, attempt: PlannedAttempt) -> bool:
        """Return whether an attempt may take over a warm worker, in which it has not failed before."""
        if attempt.purpose not in TRIAL_RUNS:
            return False
        own = self._context.attempts().of(attempt.purpose).of_trial(attempt.trial)
        lost = own.ended_in(AttemptState.LOST)
        return all(one.result.resident_of is None for one in lost)

    def _stays(self, purpose: Purpose) -> bool:
        """Return whether the ranks of a run stay as a warm worker."""
        if purpose == Purpose.PROFILE:
            searched = self._context.attempts().of(Purpose.SEARCH)
            return self._context.profile_stays and not searched
        return self._context.setup.spec.workload.reusable and purpose in TRIAL_RUNS

    def _after_launch(self, limit: TimeLimit, *, taken_over: bool) -> TimeLimit:
        """Return a limit whose soft part is for the steps alone; the launch may be a slow one.

        Args:
            taken_over: True if the run takes over a warm worker.
        """
        costs = self._context.costs()
        return limit.after_launch(costs.switch if taken_over else costs.slow_startup)

    def _shared(self, limit: TimeLimit, members: int, *, taken_over: bool) -> TimeLimit:
        """Return the limit of each of several interleaved runs, whose soft part is for the steps.

        On CUDA devices they are launched at once, and elsewhere one after another.
        """
        if self._context.on_device:
            return self._after_launch(limit, taken_over=taken_over).shared(members)
        return self._after_launch(limit.shared(members), taken_over=taken_over)

    def _limits(self, attempt: PlannedAttempt, limit: TimeLimit, low: float = 0.0) -> Limits:
        """Return how long to measure, and what power the attempt may take.

        The baseline may take any: it runs today.

        Args:
            attempt: timed one.
            limit: time limit whose soft part counts from the first step.
            low: lower bound of the best rate so far; 0 switches racing off.
        """
        setup, noise = self._context.setup, self.noise
        if attempt.purpose in COMPARED_RUNS:
            limits = setup.confirm_limits(sigma_run=noise.sigma_run)
        else:
            limits = setup.search_limits(
                incumbent_low=low,
                sigma_run=noise.sigma_run,
                run_df=noise.df,
                settling=self._context.costs().settling if low else OnsetBound(),
            )
        power = None if attempt.knobs == setup.baseline else setup.power_limit
        return dataclasses.replace(limits, time_limit=limit, power=power)


def _incumbent_low(attempts: Attempts, barred: Container[int], df: float) -> float:
    """Return the lower bound of the best rate so far; 0 without any.

    Args:
        barred: trials that do not count.
        df: degrees of freedom of the run-to-run noise.
    """
    low = 0.0
    for result in (trial.result for trial in ranked(attempts) if trial.trial not in barred):
        rate = result.throughput or 0.0
        if rate <= low:
            break  # all that follow are slower still
        low = max(low, rate * (1 - min(_half_width(result, df), STUDY.widest_rate)))
    return low


def _half_width(result: AttemptResult, df: float) -> float:
    own = STUDY.widest_rate if result.block_half_width is None else result.block_half_width
    return total_half_width(own, result.sigma_run or 0.0, df)
