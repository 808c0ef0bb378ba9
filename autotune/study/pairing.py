"""Policy of pairing and interleaving: which runs are resident at once and train in turn."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.analysis.costs import Costs
from autotune.analysis.policy import ANALYSIS
from autotune.analysis.wording import duration
from autotune.measurement.noise import RunNoise, standard_error
from autotune.runs.policy import RUNS
from autotune.study.context import StudyContext
from autotune.study.policy import STUDY
from autotune.study.slot_pool import SlotPool
from autotune.worker.protocol import TimeLimit
from launchers import untimed_steps
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Fault,
    Purpose,
    StoredAttempt,
)

_GIB = 2**30


class Residency:
    """Room for runs of one study that are resident at once on one slot."""

    def __init__(self, context: StudyContext) -> None:
        self._context = context

    def obstacle(self, knobs: Sequence[Mapping[str, Any]], peak_bytes: int, slots: int = 1) -> str:
        """Return why runs may not be resident at once, whatever time there is; empty if they may.

        Args:
            knobs: configuration of each run.
            peak_bytes: bytes of the largest rank of each, added up; 0: not known.
            slots: number of slots with such runs at a time.
        """
        workload = self._context.setup.spec.workload
        if not workload.observable:
            return f"a {workload.noun} that starts its own ranks cannot be paused"
        if len(knobs) < 2:
            return "there is only one"
        longest = max(map(self._context.costs().step, knobs))
        if longest > STUDY.longest_turn_step:
            return f"a step of {longest:.1f} s is too long for turns"
        return self._shortage(peak_bytes, slots)

    def _shortage(self, needed: int, slots: int) -> str:
        """Return what memory is missing for runs that are resident at once; empty if none is.

        On processors the runs of all slots may be on one node.
        """
        setup = self._context.setup
        there = setup.memory_of_rank()
        if there is None:
            there = setup.launcher.site.bytes_of_rank / slots
        elif not needed:
            return "how much memory they need is not known"
        if needed <= STUDY.resident_share * there:
            return ""
        shares = f"{needed / _GIB:.2f} of the {there / _GIB:.2f} GiB"
        return f"by their peaks they need {shares} that a rank has"


class PairingPolicy:
    """Policy of one study; it decides from the records, so that a resumed study goes on as it began."""

    def __init__(self, context: StudyContext, pool: SlotPool) -> None:
        self._context = context
        self._residency = Residency(context)
        self._pool = pool
        self._baseline = context.setup.baseline
        self._paired: bool | None = None
        """True if the latest message said that trials are paired; None: there was none."""
        self._said = ""

    def baseline_rate(
        self, trial: int, knobs: Mapping[str, Any], noise: RunNoise, limit: TimeLimit
    ) -> float | None:
        """Return the rate of the baseline beside which a trial is to run, in units per second.

        None: the trial runs by itself, as the machine is quiet enough or the two do not fit.

        Args:
            noise: run-to-run noise as far as known.
            limit: time limit of the trial.
        """
        attempts = self._context.attempts()
        own = attempts.baseline()
        if own is None or own.result.throughput is None or knobs == self._baseline:
            return None
        if self._context.setup.spec.measurement.baseline_runs < 2:
            return None  # it is not to run again
        if self._is_unsteady(own):
            return None  # its processes lie further apart than trials that follow each other
        why = why_not_comparable(noise, attempts)
        if not why or not self.on_one_environment() or _in_vain(attempts):
            return None
        if _failed_before(trial, attempts) or not self._fits(knobs, own, attempts, limit):
            return None
        if not attempts.of(Purpose.PAIRED) and (dear := self._too_dear()):
            self._say_paired(f"Trials run by themselves, though {why}: {dear}", paired=False)
            return None
        self._say_paired(
            f"Each trial takes turns with the baseline from now on, block by block, and its rate is "
            f"told by their ratio: {why}, so trials that follow each other would not compare.",
            paired=True,
        )
        return own.result.throughput

    def _is_unsteady(self, own: StoredAttempt) -> bool:
        """Return whether the processes of the baseline lie far apart on its CUDA device."""
        return self._context.on_device and (own.result.sigma_run or 0.0) > ANALYSIS.unsteady_spread

    def on_one_environment(self) -> bool:
        """Return whether all slots are where the baseline's own trial ran.

        On nodes that differ, rates are scaled by the baseline's rate on each instead.
        """
        own = self._context.attempts().baseline()
        return own is not None and {*self._pool.environments} == {own.environment}

    def can_interleave(
        self,
        knobs: Sequence[Mapping[str, Any]],
        peak_bytes: int,
        limit: TimeLimit,
        noise: RunNoise,
    ) -> bool:
        """Return whether the runs of a round may be resident at once; say so when that changes.

        Args:
            knobs: configuration of each run.
            peak_bytes: bytes of the largest rank of each, added up; 0: not known.
            limit: time limit of all of them together.
            noise: run-to-run noise as far as known.
        """
        # Where the machine disturbs runs that follow each other, a few turns of each tell more than
        # the same time one by one: only what proves the result besides is left alone.
        restless = not self._context.on_device and why_not_comparable(
            noise, self._context.attempts()
        )
        seconds = limit.hard if restless else limit.soft
        if lost := lost_interleaved(self._context.attempts()):
            obstacle = f"a run in turn was lost: {lost.result.cause}"
        else:
            obstacle = self._obstacle(knobs, peak_bytes, seconds)
        said = (
            f"each runs by itself, one configuration after the other, because {obstacle}"
            if obstacle
            else "all are loaded at the same time and train in turn, a block of steps each"
        )
        if said != self._said and len(knobs) > 1:
            self._said = said
            self._context.say(f"How the runs of a round are compared: {said}.")
        return not obstacle

    def _fits(
        self,
        knobs: Mapping[str, Any],
        own: StoredAttempt,
        attempts: Attempts,
        limit: TimeLimit,
    ) -> bool:
        """Return whether a trial and the baseline may be resident at once."""
        if not self._context.setup.spec.workload.reusable:
            return False  # it would be launched anew for each trial, and the baseline with it
        peaks = [
            one.result.peak_bytes
            for one in attempts.searched()
            if one.knobs["micro_batch"] <= knobs["micro_batch"]
        ]
        both = own.result.peak_bytes + max(peaks, default=own.result.peak_bytes)
        # Time as if both were the baseline: the step of a new trial is not known.
        slots = len(self._context.setup.launcher.slots)
        return not self._obstacle([self._baseline, self._baseline], both, limit.soft, slots)

    def _obstacle(
        self,
        knobs: Sequence[Mapping[str, Any]],
        peak_bytes: int,
        seconds: float,
        slots: int = 1,
    ) -> str:
        """Return why runs may not be resident at once within this time; empty if they may."""
        if obstacle := self._residency.obstacle(knobs, peak_bytes, slots):
            return obstacle
        return "there is no time for more" if self._shortest(knobs) > seconds else ""

    def _shortest(self, knobs: Sequence[Mapping[str, Any]]) -> float:
        """Return seconds of the shortest interleaved runs, their warm-up as long as what counts."""
        costs = self._context.costs()
        launches = 1 if self._context.on_device else len(knobs)
        return launches * costs.slow_startup + sum(_in_turn(costs, one) for one in knobs)

    def _too_dear(self) -> str:
        """Return why the first pair is not worth its launch; empty if it is."""
        costs = self._context.costs()
        launches, trials = 2 * costs.startup, STUDY.pair_worth * costs.trained
        if launches <= trials:
            return ""
        return (
            f"to launch one and the baseline beside it would take {duration(launches)}, in which "
            f"processes that are there train {launches / costs.trained:.0f} trials."
        )

    def _say_paired(self, message: str, *, paired: bool) -> None:
        """Say how trials run from now on, unless that was said last."""
        if self._paired is not paired:
            self._paired = paired
            self._context.say(message)


def why_not_comparable(noise: RunNoise, attempts: Attempts) -> str:
    """Return why trials that follow each other do not compare; empty if they do.

    One run of the baseline may show it: the sooner trials are paired, the fewer are unpaired.
    """
    runs = [attempt.result for attempt in attempts.baseline_runs().measured()]
    if not runs:
        return ""
    error = math.hypot(noise.sigma_run, statistics.median(map(_error_of_blocks, runs)))
    if error > STUDY.restless_error:
        return f"by the runs of the baseline one of them is off by {error:.1%} (standard error)"
    if abs(noise.drift_per_hour or 0.0) > STUDY.pairing_drift:
        return f"the machine's speed drifts by {noise.drift_per_hour:+.1%} an hour"
    disturbed = sum(run.contended for run in runs)
    if 2 * disturbed > len(runs):
        return f"others disturbed {disturbed} of {len(runs)} runs of the baseline"
    return ""


def _error_of_blocks(run: AttemptResult) -> float:
    """Return the relative standard error of a run by its blocks; 0 if they tell nothing."""
    if run.block_half_width is None or run.block_freedom is None:
        return 0.0
    return standard_error(run.block_half_width, run.block_freedom)


def lost_interleaved(attempts: Attempts) -> StoredAttempt | None:
    """Return the first run of a round that was lost as it took turns with others; None if none was.

    All rounds are measured one by one from then on: the others of that round as well, as they might
    fail again, and a run alone has other blocks than one in turn.
    """
    rounds = attempts.of(Purpose.CONFIRM, Purpose.ABLATION)
    lost = rounds.ended_in(AttemptState.LOST)
    return next((one for one in lost if one.result.fault is Fault.INTERLEAVED), None)


def _in_turn(costs: Costs, knobs: Mapping[str, Any]) -> float:
    """Return seconds of the shortest interleaved run after its launch."""
    step = costs.step(knobs)
    turn = max(RUNS.interleaved_block, step) + untimed_steps(step) * step
    return costs.first_step(knobs) + 2 * STUDY.fewest_turns * turn


def _in_vain(attempts: Attempts) -> bool:
    """Return whether the latest paired trials were all lost: two may not fit at once."""
    newest_first = reversed(list(attempts.of(Purpose.SEARCH)))
    paired = (one.result.state for one in newest_first if attempts.paired_baseline_of(one))
    vain = STUDY.pairs_in_vain
    return list(itertools.islice(paired, vain)) == [AttemptState.LOST] * vain


def _failed_before(trial: int, attempts: Attempts) -> bool:
    """Return whether a trial has failed before, maybe because of the run beside it."""
    launches = [one.result for one in attempts.of(Purpose.SEARCH).of_trial(trial)]
    lost = (r for r in launches if r.state == AttemptState.LOST)
    own_fault = any(not result.fault.excuses for result in lost)
    return own_fault or any(result.fault == Fault.DAEMON for result in launches)
