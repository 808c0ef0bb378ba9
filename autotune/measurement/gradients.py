"""Comparison of first steps: gradients of two configurations.

Both start from equal weights and batches. Pure functions over sketches
(autotune.worker.rank.sketch).
"""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.measurement.policy import GATE

NULL = {
    ("precision", "fp32"): GATE.null_fp32,
    ("precision", "tf32"): GATE.null_tf32,
    ("precision", "fp16"): GATE.null_fp16,
    ("precision", "bf16"): GATE.null_bf16,
    ("precision", "pure_bf16"): GATE.null_pure_bf16,
    ("gradient_compression", "fp16"): GATE.null_sent_fp16,
    ("gradient_compression", "bf16"): GATE.null_sent_bf16,
    ("fsdp_reduce_dtype", "bf16"): GATE.null_sent_bf16,
    ("float8", "tensorwise"): GATE.null_float8,
    ("float8", "rowwise"): GATE.null_float8,
}
"""Relative error of the whole gradient that a number format causes where all is well.

Other knobs and values cause no more than fp32, whose convolutions cuDNN may compute in TF32."""
_TINY = 1e-30
_SMALLEST_PERCENTAGE = 1e-4


@dataclass(frozen=True)
class Tensor:
    """Sketch of a tensor."""

    name: str
    size: int
    norm: float
    buckets: tuple[float, ...]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Tensor":
        """Return the tensor in a row that a rank has sent."""
        name, size, norm, *buckets = row
        return cls(str(name), int(size), float(norm), tuple(map(float, buckets)))

    def distance(self, other: "Tensor") -> float:
        """Return an estimate of the norm of the difference."""
        return math.dist(self.buckets, other.buckets)

    def turn(self, other: "Tensor") -> float:
        """Return an estimate of one less the cosine: 0 for the same direction, 2 for its opposite."""
        product = sum(a * b for a, b in zip(self.buckets, other.buckets, strict=True))
        norms = math.hypot(*self.buckets) * math.hypot(*other.buckets)
        return 1.0 - product / max(norms, _TINY)


@dataclass(frozen=True)
class FirstSteps:
    """First steps of a run.

    Attributes:
        start: digest of the weights and rows that they began with; empty where those are known to be
            the same in every run.
    """

    gradients: tuple[tuple[Tensor, ...], ...]
    start: str = ""

    @classmethod
    def seen(cls, observed: Sequence[Mapping[str, Any]]) -> "FirstSteps | None":
        """Return the first steps of a run, from its observations; None without gradients."""
        told = [one for one in observed if "gradient" in one]
        if not told:
            return None
        gradients = tuple(tuple(map(Tensor.of, one["gradient"])) for one in told)
        return cls(gradients, str(told[-1].get("start", "")))


class Deviation(NamedTuple):
    """Distance of a run from its reference in one respect, with the largest allowed one.

    Attributes:
        what: respect, as the subject of a sentence.
        size: relative distance; not a number where it cannot be told.
        limit: largest distance with which the run passes.
        other: what it is compared with.
    """

    what: str
    size: float
    limit: float
    other: str = "the reference's"

    @property
    def problem(self) -> str:
        """Reason for a refusal; empty if the distance is within the limit."""
        if self.size <= self.limit:
            return ""
        return (
            f"{self.what} lies {_share(self.size)} from {self.other} (limit {_share(self.limit)})"
        )


def _share(number: float) -> str:
    return f"{number:.1e}" if 0 < number < _SMALLEST_PERCENTAGE else f"{number:.2%}"


def first_problem(several: Iterable[Deviation]) -> str:
    """Return the problem of the first deviation beyond its limit; empty if there is none."""
    return next((one.problem for one in several if one.problem), "")


class RoundingErrors(NamedTuple):
    """Errors that plain autocast in bf16 causes in a step, relative to the norms in fp32.

    Attributes:
        whole: of the whole gradient.
        tensor: of the tensor that is furthest off.
    """

    whole: float
    tensor: float

    def times(self, factor: float) -> "RoundingErrors":
        """Return multiples of both."""
        return RoundingErrors(factor * self.whole, factor * self.tensor)


class GradientLimits(NamedTuple):
    """Largest allowed deviations of the gradient in a step, each relative to the reference's norm.

    Attributes:
        whole: norm of the difference of the whole gradients.
        tensor: the same of a tensor.
        norm: difference of the norms of the whole gradients.
        norm_of_tensor: the same of a tensor.
        turn: one less the cosine of a tensor's gradient and the reference's.
    """

    whole: float
    tensor: float
    norm: float = math.inf
    norm_of_tensor: float = math.inf
    turn: float = math.inf

    @property
    def blind(self) -> bool:
        """True if the direction of the gradient tells nothing."""
        return math.isinf(self.whole)


def limits(
    configurations: Iterable[Mapping[str, Any]], rounding: Sequence[RoundingErrors] = ()
) -> list[GradientLimits]:
    """Return the limits in the first and in the second step.

    They depend on the number formats of both configurations, and on the model, which may amplify
    rounding.

    Args:
        configurations: the two that are compared.
        rounding: errors of plain autocast with the model, in both steps; empty if not known.
    """
    null = math.hypot(NULL["precision", "fp32"], *map(null_of, configurations))
    factors = 1.0, GATE.second_step_limit
    plain = [_by_format(factor * GATE.gradient_limit * null) for factor in factors]
    if not rounding or not rounding[0].whole > GATE.null_bf16:
        return plain
    # Once weights differ, by however little, gradients drift apart: the second step has one limit.
    errors = rounding[0].times(null / GATE.null_bf16), RoundingErrors(*map(max, *rounding))
    each = zip(plain, errors, factors, strict=True)
    first, second = (
        _amplified(one, error, factor * GATE.norm_limit) for one, error, factor in each
    )
    if first.blind:
        return [first._replace(turn=GATE.largest_turn), second]
    # Code that is wrong in bf16 is wrong under plain autocast, too.
    return [first._replace(tensor=min(first.tensor, GATE.largest_of_tensor)), second]


def _by_format(size: float) -> GradientLimits:
    largest = GATE.largest_limit
    return GradientLimits(min(largest, size), min(largest, GATE.tensor_limit * size))


def _amplified(plain: GradientLimits, error: RoundingErrors, norm: float) -> GradientLimits:
    """Return the limits where rounding by itself causes these errors."""
    norms = norm, GATE.tensor_limit * norm
    if error.whole > GATE.largest_limit:
        return GradientLimits(math.inf, math.inf, *norms)
    whole, tensor = error.times(GATE.rounding_limit)
    return GradientLimits(max(plain.whole, whole), max(plain.tensor, tensor), *norms)


def null_of(knobs: Mapping[str, Any]) -> float:
    """Return the relative error that all number formats of a configuration cause together."""
    return math.hypot(*(null for (name, value), null in NULL.items() if knobs.get(name) == value))


def rounding_of(
    autocast: FirstSteps | None, reference: FirstSteps | None
) -> tuple[RoundingErrors, ...]:
    """Return the errors of a run under plain autocast in both steps; empty if nothing is known."""
    if autocast is None or reference is None or not comparable(autocast, reference):
        return ()
    unlimited = [GradientLimits(math.inf, math.inf)] * 2
    found = [one.size for one in deviations(autocast, reference, unlimited)]
    half = len(found) // 2
    return tuple(RoundingErrors(*step[:2]) for step in (found[:half], found[half:]))


def comparable(run: FirstSteps | None, reference: FirstSteps | None) -> bool:
    """Return whether both observe the same tensors, and began with the same weights and rows."""
    if run is None or reference is None or len(run.gradients) != len(reference.gradients):
        return False
    if run.start != reference.start:
        return False
    own, other = run.gradients[0], reference.gradients[0]
    return [t.size for t in own] == [t.size for t in other]


def deviations(
    run: FirstSteps, reference: FirstSteps, limits: Sequence[GradientLimits]
) -> list[Deviation]:
    """Compare the first steps of a run with those of its reference.

    Return, for the first step and for the last, the deviation of the whole gradient and of the
    tensor that is furthest off. A wrong update shows in the gradient of the step after it.
    """
    first, last = limits
    return [
        *_of_gradient("first", run.gradients[0], reference.gradients[0], first),
        *_of_gradient("second", run.gradients[-1], reference.gradients[-1], last),
    ]


def _of_gradient(
    step: str, run: Sequence[Tensor], reference: Sequence[Tensor], limits: GradientLimits
) -> Iterator[Deviation]:
    whole = max(_norm(reference), _TINY)
    sizes = [max(tensor.norm, GATE.negligible_norm * whole) for tensor in reference]
    errors = [a.distance(b) for a, b in zip(run, reference, strict=True)]
    longer = [abs(a.norm - b.norm) for a, b in zip(run, reference, strict=True)]
    place, error = _furthest(errors, sizes)
    its, name = f"gradient in the {step} step", reference[place].name
    of = f"gradient of {name} in the {step} step"
    yield Deviation(f"its {its}, most of all in {name},", math.hypot(*errors) / whole, limits.whole)
    yield Deviation(f"its {of}", error, limits.tensor)
    place, error = _furthest(longer, sizes)
    of = f"gradient of {reference[place].name} in the {step} step"
    yield Deviation(f"the norm of its {its}", abs(_norm(run) - whole) / whole, limits.norm)
    yield Deviation(f"the norm of its {of}", error, limits.norm_of_tensor)
    turns = [_turn(a, b, GATE.negligible_norm * whole) for a, b in zip(run, reference, strict=True)]
    place, turn = max(enumerate(turns), key=operator.itemgetter(1))
    of = f"gradient of {reference[place].name} in the {step} step"
    yield Deviation(f"the direction of its {of}", turn, limits.turn)


def _turn(run: Tensor, reference: Tensor, least: float) -> float:
    """Return the turn of a tensor; 0 where it is too small, or its norm below the least, to tell."""
    if reference.size < GATE.fewest_to_turn or reference.norm < least:
        return 0.0
    return run.turn(reference)


def _furthest(errors: Sequence[float], sizes: Sequence[float]) -> tuple[int, float]:
    """Return the index of the largest relative error, and that; one that is none is infinite."""
    found = [error / size for error, size in zip(errors, sizes, strict=True)]
    place = max(range(len(found)), key=lambda i: math.inf if math.isnan(found[i]) else found[i])
    return place, found[place]


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(tensor.norm for tensor in tensors))
