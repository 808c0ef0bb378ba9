"""Comparison of a configuration's training with that of the reference. Pure.

There are two criteria. No gradient may deviate from the reference's by more than its limit
(measurement.gradients). The loss curve must follow the reference's, by two one-sided tests
(Schuirmann 1987); the tolerance is a share of the reference's progress, not of the level of its loss.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from scipy import special

from autotune.measurement import gradients
from autotune.measurement.estimate import lag_one
from autotune.measurement.gradients import (
    Deviation,
    FirstSteps,
    GradientLimits,
    RoundingErrors,
    first_problem,
)
from autotune.measurement.policy import GATE, GatePolicy

_TINY = 1e-30
"""Least divisor."""


class Equivalence(Enum):
    """Result of the test."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    OPEN = "open"


@dataclass(frozen=True)
class Distance:
    """Distance of two loss curves, in units of the loss.

    Attributes:
        error: standard error of the mean.
        runs: number of pairs of runs, with a seed each.
    """

    mean: float
    error: float
    df: float
    runs: int = 1

    def within(self, margin: float, looks: int, policy: GatePolicy = GATE) -> Equivalence:
        """Return whether the curves lie within a margin of each other.

        One pair tells nothing about the scatter between seeds, and two or three little: a part of
        the margin is taken for granted.

        Args:
            margin: margin in units of the loss.
            looks: largest number of tests, which share the level (Bonferroni).
            policy: levels, and scatter between seeds.
        """
        if (
            abs(self.mean) + self.half_width(margin, policy.equivalence_level / looks, policy)
            < margin
        ):
            return Equivalence.EQUIVALENT
        if abs(self.mean) - self.half_width(margin, policy.surely_different, policy) > margin:
            return Equivalence.DIFFERENT
        return Equivalence.OPEN

    def half_width(self, margin: float, level: float, policy: GatePolicy = GATE) -> float:
        """Return the half-width of the interval with this one-sided error."""
        error = math.hypot(self.error, policy.seed_scatter * margin / math.sqrt(self.runs))
        return float(special.stdtrit(self.df, 1 - level)) * error


def distance(runs: Sequence[Sequence[float]]) -> Distance:
    """Return the distance of two loss curves, from their step-by-step differences in some runs.

    Neighbouring steps are correlated: the variance of their mean is larger by (1 + r) / (1 - r),
    with the lag-one correlation r of all runs together. Runs may lie further apart than their steps
    tell: the larger of the two errors counts.

    Args:
        runs: differences of each run, at least four.
    """
    means = [statistics.fmean(run) for run in runs]
    r = lag_one(runs)
    within = _pooled_variance(runs, means) * (1 + r) / (1 - r)
    count = sum(map(len, runs))
    error = math.sqrt(within / count)
    df = max(2.0, (count - len(runs)) * (1 - r) / (1 + r))
    if len(runs) > 1:
        error = max(error, statistics.stdev(means) / math.sqrt(len(runs)))
    return Distance(statistics.fmean(means), error, df, len(runs))


def _pooled_variance(runs: Sequence[Sequence[float]], means: Sequence[float]) -> float:
    squares = sum((x - mean) ** 2 for run, mean in zip(runs, means, strict=True) for x in run)
    return squares / (sum(map(len, runs)) - len(runs))


@dataclass(frozen=True)
class Trajectory:
    """Loss and gradient norm of each optimizer step of a run.

    Attributes:
        losses: mean losses over the ranks.
        norms: norms of the gradient before the update; NaN for a step that the loss scaler skipped.
        spread: largest relative difference between the replicas of the model.
        first: gradients of the first steps; None if not observed.
        not_compared: reason why they were not observed, in words; empty if it is not known.
    """

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    spread: float
    first: FirstSteps | None = None
    not_compared: str = ""

    @property
    def progress(self) -> float:
        """Fall of the loss from the first steps to the last quarter."""
        return statistics.fmean(self.losses[: GATE.start_steps]) - statistics.fmean(
            _last(self.losses)
        )

    @property
    def wanted(self) -> float:
        """Progress that suffices."""
        return GATE.least_progress * abs(statistics.fmean(self.losses[: GATE.start_steps]))

    @property
    def fallen(self) -> bool:
        """True if the progress suffices."""
        return self.progress >= self.wanted > 0


class TrajectoryStep(Protocol):
    """A block of one optimizer step, as reported or as stored."""

    @property
    def loss(self) -> float: ...
    @property
    def observed(self) -> Any: ...


def trajectory(steps: Sequence[TrajectoryStep]) -> Trajectory:
    """Return the trajectory of these blocks of one step each."""
    return Trajectory(
        losses=tuple(step.loss for step in steps),
        norms=tuple(step.observed.get("gradient_norm", math.nan) for step in steps),
        spread=max(step.observed.get("replica_spread", 0.0) for step in steps),
        first=FirstSteps.seen([step.observed for step in steps]),
        not_compared=next(filter(None, (step.observed.get("not_compared") for step in steps)), ""),
    )


def long_enough(losses: Sequence[float]) -> bool:
    """Return whether a reference may end after these steps."""
    if len(losses) < GATE.fewest_steps or len(losses) % GATE.look_every:
        return False
    return Trajectory(tuple(losses), (), 0.0).fallen


def not_to_compare(reference: Trajectory) -> str:
    """Return why nothing can be compared with a reference; empty if something can."""
    if reference.fallen or reference.first is not None:
        return ""
    why = f": {reference.not_compared}" if reference.not_compared else ""
    return f"{_hardly_fallen(reference)}, and its gradients cannot be compared{why}"


def _hardly_fallen(reference: Trajectory) -> str:
    start, steps = (
        abs(statistics.fmean(reference.losses[: GATE.start_steps])),
        len(reference.losses),
    )
    wanted = f"{GATE.least_progress:.0%}"
    if reference.progress < 0 or not start:
        return f"the loss of the reference did not fall by {wanted} in {steps} steps"
    share = reference.progress / start
    return f"the loss of the reference fell by {share:.1%} in {steps} steps, less than {wanted}"


@dataclass(frozen=True)
class Agreement:
    """Comparison of a trajectory with its reference.

    Attributes:
        problem: reason for a refusal; empty if there is none.
        loss_distance: distance of the mean losses in the last quarter of all pairs, relative to the
            reference's; None where the run ended early.
        norm_ratio: median gradient norm over that of the reference.
        open: True if another pair of runs is needed.
        gradient_error: relative error in the first step; None where gradients were not compared.
        share_of_progress: the same with its sign, in units of the reference's progress; None also
            where that had not fallen.
        unproven: why the comparison proves nothing either way, in words; empty if it does.
        whatever_start: True if it would prove nothing with other weights and rows either.
    """

    problem: str
    loss_distance: float | None
    norm_ratio: float
    open: bool = False
    steps: int = 0
    gradient_error: float | None = None
    share_of_progress: float | None = None
    unproven: str = ""
    whatever_start: bool = False


Pair = tuple[Trajectory, Trajectory]
"""A run and its reference, with the same seed and data."""


def agreement(
    run: Trajectory,
    reference: Trajectory,
    *,
    formats: Sequence[Mapping[str, Any]] = (),
    earlier: Sequence[Pair] = (),
    rounding: Sequence[RoundingErrors] = (),
) -> Agreement:
    """Compare a trajectory with the reference of the same seed and data.

    Both must have the same number of steps, except for a run that its first steps have refuted.

    Args:
        formats: configurations of both; the tolerance of gradients depends on their number formats.
        earlier: pairs of runs of the same configurations with other seeds.
        rounding: errors of gradients under plain autocast, see measurement.gradients.
    """
    run = _cut(run, len(reference.losses))
    whole = len(run.losses) == len(reference.losses) and _finite(run.losses)
    limits = gradients.limits(formats, rounding)
    early = _of_first_steps(run, reference, limits)
    ratio = _median_norm(run) / _median_norm(reference)
    curve = _LossComparison([*earlier, (run, reference)]) if whole else None
    blind = bool(early) and limits[0].blind
    problem = first_problem([_of_replicas(run), *early]) or (
        curve.problem(comparable=bool(early)) if curve else "its loss does not stay finite"
    )
    return Agreement(
        problem,
        curve.relative if curve else None,
        ratio,
        open=not problem and curve is not None and curve.open,
        steps=len(run.losses),
        gradient_error=early[0].size if early else None,
        share_of_progress=curve.share if curve else None,
        unproven=_unproven(reference, blind=blind)
        if not reference.fallen and (not early or blind)
        else "",
        whatever_start=blind or reference.first is None,
    )


def _unproven(reference: Trajectory, *, blind: bool) -> str:
    why = (
        "the checked run began with other weights or rows than the reference (a seed at the beginning "
        "of a script makes them alike)"
    )
    if blind:
        why = f"plain autocast deviates its gradient by more than {GATE.largest_limit:.0%}"
    return f"{_hardly_fallen(reference)}, and {why}"


def refuted(run: Trajectory, reference: Trajectory, limits: Sequence[GradientLimits]) -> str:
    """Return why a run need not go on, by its first steps; empty if it must."""
    return first_problem([_of_replicas(run), *_of_first_steps(run, reference, limits)])


def _cut(run: Trajectory, steps: int) -> Trajectory:
    """Return the run without the steps that it reported after its end was requested."""
    return dataclasses.replace(run, losses=run.losses[:steps], norms=run.norms[:steps])


def _of_first_steps(
    run: Trajectory, reference: Trajectory, limits: Sequence[GradientLimits]
) -> list[Deviation]:
    """Return the deviations of gradients; none where they cannot be compared."""
    if run.first is None or reference.first is None:
        return []
    if not gradients.comparable(run.first, reference.first):
        return []
    return gradients.deviations(run.first, reference.first, limits)


def _of_replicas(run: Trajectory) -> Deviation:
    other = "another rank's, as if gradients were not exchanged"
    return Deviation("the model of one rank", run.spread, GATE.replica_difference, other)


class _LossComparison:
    """Comparison of loss curves in one or several pairs of runs."""

    def __init__(self, every: Sequence[Pair]) -> None:
        pairs = _different(every)
        self._references = [reference for _, reference in pairs]
        self._fallen = all(reference.fallen for reference in self._references)
        self._last = len(every) >= GATE.most_seeds
        self._scale = self._progress() if self._fallen else self._spread()
        self._distance: Distance = distance(
            [
                _last([a - b for a, b in zip(run.losses, reference.losses, strict=False)])
                for run, reference in pairs
            ]
        )
        self._margin = GATE.loss_margin * self._scale
        self._answer = self._distance.within(self._margin, GATE.most_seeds)

    def _progress(self) -> float:
        return statistics.fmean(one.progress for one in self._references)

    def _spread(self) -> float:
        """Return what stands for the progress of references that have hardly fallen; 0 if nothing does.

        A loss near zero, or one that rises, is told apart by no less than its own scatter.
        """
        wanted = statistics.fmean(one.wanted for one in self._references)
        scatter = statistics.fmean(statistics.pstdev(one.losses) for one in self._references)
        return max(self._progress(), wanted, scatter)

    def _level(self) -> float:
        """Return the quadratic mean of the losses of the references."""
        losses = [x for one in self._references for x in one.losses]
        return math.hypot(*losses) / math.sqrt(len(losses))

    @property
    def share(self) -> float | None:
        """Distance in units of the progress."""
        return self._distance.mean / self._scale if self._fallen else None

    @property
    def relative(self) -> float:
        """Size of the distance, relative to the loss of the references in the same steps."""
        level = statistics.fmean(abs(x) for one in self._references for x in _last(one.losses))
        return abs(self._distance.mean) / max(level, _TINY)

    @property
    def open(self) -> bool:
        """True if another pair would tell more."""
        return self._fallen and self._answer is Equivalence.OPEN and not self._last

    def problem(self, *, comparable: bool) -> str:
        """Return the reason for a refusal; empty if there is none.

        Where the reference has hardly fallen, only what is certain counts, of runs that began alike.

        Args:
            comparable: True if the run began with the weights and rows of the reference.
        """
        if not self._fallen:
            certain = self._answer is Equivalence.DIFFERENT and comparable and self._scale > 0
            return self._told("leaves", self._level(), "its level") if certain else ""
        progress = "the reference's progress"
        if self._answer is Equivalence.DIFFERENT:
            return self._told("leaves", self._scale, progress)
        if self._answer is Equivalence.OPEN and self._last:
            return self._told("cannot be shown to follow", self._scale, progress)
        return ""

    def _told(self, what: str, unit: float, named: str) -> str:
        """Return the distance in words.

        Args:
            what: what the loss does, with the reference as its object.
            unit: unit of the distance.
            named: the unit, in words.
        """
        share = self._distance.mean / unit
        about = (
            self._distance.half_width(self._margin, GATE.equivalence_level / GATE.most_seeds) / unit
        )
        return (
            f"its loss {what} the reference: in the last quarter it is {abs(share):.1%} "
            f"(+-{about:.1%}) of {named} {'above' if share > 0 else 'below'} "
            f"(limit {100 * self._margin / unit:.2g}%)"
        )


def _different(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs without those that repeat an earlier one.

    A training that ignores the seed shows nothing new.
    """
    found: dict[tuple[tuple[float, ...], tuple[float, ...]], Pair] = {}
    for pair in pairs:
        found.setdefault((pair[0].losses, pair[1].losses), pair)
    return list(found.values())


def _last(losses: Sequence[float]) -> Sequence[float]:
    """Return the last quarter."""
    return losses[-max(GATE.start_steps, len(losses) // 4) :]


def _finite(numbers: Sequence[float]) -> bool:
    return all(map(math.isfinite, numbers))


def _median_norm(trajectory: Trajectory) -> float:
    known = [norm for norm in trajectory.norms if math.isfinite(norm)]
    return max(statistics.median(known), _TINY) if known else math.nan
