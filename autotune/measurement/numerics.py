"""Whether a configuration still computes what the reference computes. Pure functions."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

STEPS = 16
"""Optimizer steps of a trajectory."""
LOSS_TOLERANCE = 0.03
"""Largest relative distance of the loss from the reference, mean over three steps."""
NORM_TOLERANCE = 0.25
"""Largest relative distance of the median gradient norm."""
SPREAD_TOLERANCE = 1e-9
_WINDOW = 3


@dataclass(frozen=True)
class Trajectory:
    """What each optimizer step of a run computed.

    Attributes:
        losses: mean over the ranks.
        norms: of the gradient, before the update; NaN for a step that the loss scaler skipped.
        spread: largest relative difference between the replicas of the model.
    """

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    spread: float


class Step(Protocol):
    """A block of one optimizer step, as reported or as stored."""

    @property
    def loss(self) -> float: ...
    @property
    def observed(self) -> Any: ...


def trajectory(steps: Sequence[Step]) -> Trajectory:
    """The trajectory that these blocks of one step each describe."""
    return Trajectory(
        losses=tuple(step.loss for step in steps),
        norms=tuple(step.observed.get("gradient_norm", math.nan) for step in steps),
        spread=max(step.observed.get("replica_spread", 0.0) for step in steps),
    )


@dataclass(frozen=True)
class Agreement:
    """How a trajectory compares with its reference.

    Attributes:
        problem: why the configuration is refused, in words; empty if it is not.
        loss_distance: the largest relative one.
        norm_ratio: median gradient norm over that of the reference.
    """

    problem: str
    loss_distance: float
    norm_ratio: float


def agreement(run: Trajectory, reference: Trajectory) -> Agreement:
    """Hold a trajectory against the reference with the same seed and data.

    Both must have STEPS steps; a run that ended earlier is a failed one and not to be compared.
    """
    distances = _distances(run.losses, reference.losses)
    furthest = max(range(len(distances)), key=lambda step: distances[step])
    ratio = _median_norm(run) / _median_norm(reference)
    problem = ""
    if run.spread > SPREAD_TOLERANCE:
        problem = (
            f"the ranks' models drift apart (relative difference {run.spread:.1e}): gradients are "
            "not exchanged"
        )
    elif not distances[furthest] <= LOSS_TOLERANCE:
        problem = (
            f"its loss leaves the reference by {distances[furthest]:.1%} around step {furthest + 1} "
            f"(more than {LOSS_TOLERANCE:.0%})"
        )
    elif not abs(ratio - 1) <= NORM_TOLERANCE:
        problem = (
            f"its gradients have {ratio:.2f} times the norm of the reference's (more than "
            f"{NORM_TOLERANCE:.0%} off)"
        )
    return Agreement(problem, distances[furthest], ratio)


def _distances(losses: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Relative distance step by step, of means over a few steps: single batches jump."""
    size = statistics.fmean(map(abs, reference))
    both = list(zip(losses, reference, strict=True))
    windows = [both[max(0, end - _WINDOW) : end] for end in range(1, len(both) + 1)]
    return [
        abs(statistics.fmean(a - b for a, b in window)) / size if _finite(window) else math.inf
        for window in windows
    ]


def _finite(window: Sequence[tuple[float, float]]) -> bool:
    return all(math.isfinite(a) and math.isfinite(b) for a, b in window)


def _median_norm(trajectory: Trajectory) -> float:
    known = [norm for norm in trajectory.norms if math.isfinite(norm)]
    return max(statistics.median(known), 1e-30) if known else math.nan
