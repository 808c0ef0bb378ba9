"""Monitors of runs: when a run may end early, and what its report means."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from autotune.measurement import gradients
from autotune.measurement.gradients import RoundingErrors
from autotune.measurement.noise import interval_of_blocks, total_half_width
from autotune.measurement.numerics import (
    Pair,
    Trajectory,
    agreement,
    long_enough,
    not_to_compare,
    refuted,
    trajectory,
)
from autotune.measurement.policy import GATE, MEASUREMENT
from autotune.measurement.stop_rule import Limits, ObservedBlock, StopRule
from autotune.worker.protocol import (
    STEPS_WITHOUT_DROPOUT,
    BlockReport,
    Knobs,
    Outcome,
    TrialReport,
)
from storage import AttemptResult, AttemptState, Fault

NOT_ITS_OWN = "not of its own making: "
"""First words of the cause of a failure that counts against no configuration."""


class RunMonitor(Protocol):
    """Monitor of one run, which also judges its report."""

    seen: list[ObservedBlock]

    def __call__(self, block: BlockReport) -> bool:
        """Take in a block; return True if the run may end."""

    def result(self, report: TrialReport) -> AttemptResult:
        """Return the result of the run. A figure that is no positive finite number is an ERROR."""


class TimedMonitor:
    """Monitor of a run whose rate is measured."""

    def __init__(self, limits: Limits, rule: StopRule | None = None) -> None:
        """Use these limits, or a stop rule that another object calls."""
        self._rule = rule or StopRule(limits)
        self._hurried = math.isfinite(limits.time_limit.soft)
        self.seen = self._rule.seen

    def __call__(self, block: BlockReport) -> bool:
        return self._rule(block)

    def result(self, report: TrialReport) -> AttemptResult:
        """Return COMPLETE or PRUNED with the throughput, POWER, or the failure.

        A script or command that came to its end counts by its blocks, if there are enough.
        """
        rule, common = self._rule, _common(report)
        failed = _failure(report)
        if failed and not (
            _came_to_its_end(report) and len(rule.kept) >= MEASUREMENT.fewest_blocks
        ):
            return failed
        if rule.problem:
            return AttemptResult(AttemptState.ERROR, rule.problem, **common)
        rule.close()
        if not rule.kept and self._hurried:
            reached = "get past its first steps" if rule.seen else "finish its first step"
            cause = f"did not {reached} within {math.ceil(report.wall_seconds)} s"
            return AttemptResult(AttemptState.PRUNED, cause, **common)
        if not rule.kept:
            return AttemptResult(
                AttemptState.ERROR, "ended before a block could be timed", **common
            )
        if rule.uncounted:
            return AttemptResult(AttemptState.ERROR, rule.uncounted, **common)
        if excess := rule.excess_power:
            return AttemptResult(AttemptState.POWER, excess, **common)
        timed, sigma_run = rule.estimate(), rule.sigma_run
        half_width, freedom = interval_of_blocks(timed)
        return AttemptResult(
            state=AttemptState.PRUNED if rule.hopeless else AttemptState.COMPLETE,
            cause="cannot catch up with the best" if rule.hopeless else "",
            throughput=timed.rate,
            half_width=total_half_width(half_width, sigma_run),
            block_half_width=half_width,
            block_freedom=freedom,
            sigma_run=sigma_run,
            steady=rule.steady,
            contended=rule.contended,
            **common,
        )


class _FullRunMonitor(ABC):
    """Monitor of a run that is never ended early."""

    def __init__(self) -> None:
        self.seen: list[ObservedBlock] = []

    def __call__(self, block: BlockReport) -> bool:
        self.seen.append(ObservedBlock(block, kept=False))
        return False

    def result(self, report: TrialReport) -> AttemptResult:
        """Return COMPLETE, the failure, or PRUNED with what the run does not show."""
        if failed := _failure(report):
            return failed
        lack = self._lack()
        state = AttemptState.PRUNED if lack else AttemptState.COMPLETE
        return AttemptResult(state, lack, **_common(report))

    @abstractmethod
    def _lack(self) -> str:
        """Return why the blocks do not show what the run was made for; empty if they do."""


class TrajectoryMonitor:
    """Monitor of a run whose loss and gradients are compared with a reference."""

    def __init__(
        self,
        reference: Trajectory | None,
        *,
        formats: Sequence[Knobs],
        earlier: Sequence[Pair],
        rounding: Sequence[RoundingErrors],
    ) -> None:
        """Take in the reference; without one the run becomes a reference itself.

        Args:
            formats: configurations of both runs.
            earlier: pairs of runs with other seeds.
            rounding: errors of gradients under plain autocast.
        """
        self.seen: list[ObservedBlock] = []
        self._reference = reference
        self._formats = formats
        self._earlier = earlier
        self._rounding = rounding
        self._limits = gradients.limits(formats, rounding)
        self._has_fallen = False

    def __call__(self, block: BlockReport) -> bool:
        self.seen.append(ObservedBlock(block, kept=False))
        if self._reference is None:
            self._has_fallen |= long_enough([seen.block.loss for seen in self.seen])
            return self._has_fallen
        if len(self.seen) == STEPS_WITHOUT_DROPOUT and refuted(
            self._run, self._reference, self._limits
        ):
            return True
        return len(self.seen) >= len(self._reference.losses)

    def result(self, report: TrialReport) -> AttemptResult:
        """Return COMPLETE, REFUSED with the reason, or the failure.

        PRUNED if its time was over too soon: then it says nothing about its configuration. A script
        that came to its end is judged by its steps, if they suffice.
        """
        ended = _came_to_its_end(report) and self._suffices_at_end()
        failed = _failure(report)
        if failed and not ended:
            return failed
        common = _common(report)
        if not ended and (too_short := self._too_short()):
            return AttemptResult(AttemptState.PRUNED, too_short, **common)
        if self._reference is None:
            finite = self._is_finite()
            problem = not_to_compare(self._run) if finite else "its loss is not finite"
            state = AttemptState.REFUSED if problem else AttemptState.COMPLETE
            return AttemptResult(state, problem, **common)
        found = agreement(
            self._run,
            self._reference,
            formats=self._formats,
            earlier=self._earlier,
            rounding=self._rounding,
        )
        state = AttemptState.REFUSED if found.problem else AttemptState.COMPLETE
        return AttemptResult(state, found.problem, **common)

    @property
    def _run(self) -> Trajectory:
        return trajectory([seen.block for seen in self.seen])

    def _too_short(self) -> str:
        """Return why the steps do not suffice, in words; empty if they do."""
        needed = len(self._reference.losses) if self._reference else GATE.most_steps
        if len(self.seen) >= needed or self._shows_enough():
            return ""
        return f"ended after {len(self.seen)} of {needed} steps"

    def _suffices_at_end(self) -> bool:
        """Return whether the steps of a script that has come to its end suffice.

        A reference has its gradients as well, which tell more than a short fall of the loss.
        """
        if self._reference is not None:
            return len(self.seen) >= len(self._reference.losses)
        compared = len(self.seen) >= GATE.start_steps and self._run.first is not None
        return compared or len(self.seen) >= GATE.fewest_steps

    def _shows_enough(self) -> bool:
        """Return whether a run with fewer steps than planned is judged all the same."""
        if self._reference is None:
            return self._has_fallen or not self._is_finite()
        return bool(self.seen) and bool(refuted(self._run, self._reference, self._limits))

    def _is_finite(self) -> bool:
        return all(math.isfinite(seen.block.loss) for seen in self.seen)


class FirstStepsMonitor(_FullRunMonitor):
    """Monitor of a run whose gradients in the first steps are wanted."""

    def _lack(self) -> str:
        if len(self.seen) >= STEPS_WITHOUT_DROPOUT:
            return ""
        return f"ended after {len(self.seen)} of {STEPS_WITHOUT_DROPOUT} steps"


class ProfileMonitor(_FullRunMonitor):
    """Monitor of a run under the profiler."""

    def _lack(self) -> str:
        if any("peaks" in seen.block.observed for seen in self.seen):
            return ""
        return "its steps are too long to be profiled in the time that is left"


class FitMonitor(_FullRunMonitor):
    """Monitor of a run that only shows whether it fits in memory."""

    def __init__(self, blocks: int = 0) -> None:
        """Take in the number of blocks below which the run shows nothing."""
        super().__init__()
        self._blocks = blocks

    def _lack(self) -> str:
        if len(self.seen) >= self._blocks:
            return ""
        return "ended before everything that training keeps in memory was allocated"


def _came_to_its_end(report: TrialReport) -> bool:
    """Return whether the script or command trained to its end, without an error."""
    return report.outcome == Outcome.ERROR and report.ended_after is not None


def _failure(report: TrialReport) -> AttemptResult | None:
    if report.not_its_own:
        cause = f"{NOT_ITS_OWN}{report.not_its_own}"
        return AttemptResult(AttemptState.LOST, cause, fault=Fault.NODE, **_common(report))
    if report.lost_agent:
        return AttemptResult(AttemptState.LOST, report.cause, **_common(report))
    if report.outcome is not None:
        fault = Fault.STUDY if report.contradicted else Fault.TRIAL
        state = AttemptState(report.outcome)
        return AttemptResult(state, report.cause, fault=fault, **_common(report))
    return None


def _common(report: TrialReport) -> dict[str, Any]:
    return {
        "peak_bytes": max((block.peak_bytes for block in report.blocks), default=0),
        "wall_seconds": report.wall_seconds,
        "log_tail": report.log_tail,
    }
