"""Comparison of first steps: gradients of two configurations.

Both start from equal weights and batches. Pure functions over sketches
(autotune.worker.rank.sketch).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.measurement.policy import PROOF

NULL = {
    ("precision", "fp32"): PROOF.null_fp32,
    ("precision", "tf32"): PROOF.null_tf32,
    ("precision", "fp16"): PROOF.null_fp16,
    ("precision", "bf16"): PROOF.null_bf16,
    ("precision", "pure_bf16"): PROOF.null_pure_bf16,
    ("gradient_compression", "fp16"): PROOF.null_sent_fp16,
    ("gradient_compression", "bf16"): PROOF.null_sent_bf16,
    ("fsdp_reduce_dtype", "bf16"): PROOF.null_sent_bf16,
    ("float8", "tensorwise"): PROOF.null_float8,
    ("float8", "rowwise"): PROOF.null_float8,
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


@dataclass(frozen=True)
class FirstSteps:
    """First steps of a run.

    Attributes:
        gradients: gradients of each of the first steps.
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


def tolerance(*configurations: Mapping[str, Any]) -> float:
    """Return the largest allowed relative error of the whole gradient.

    It depends on the number formats of both configurations.
    """
    nulls = [
        NULL.get((name, value), 0.0)
        for knobs in configurations
        for name, value in knobs.items()
        if isinstance(value, str)
    ]
    return min(PROOF.largest_limit, PROOF.limit * math.hypot(NULL["precision", "fp32"], *nulls))


def comparable(run: FirstSteps | None, reference: FirstSteps | None) -> bool:
    """Return whether both observe the same tensors, and began with the same weights and rows."""
    if run is None or reference is None or len(run.gradients) != len(reference.gradients):
        return False
    if run.start != reference.start:
        return False
    own, other = run.gradients[0], reference.gradients[0]
    return [t.size for t in own] == [t.size for t in other]


def deviations(run: FirstSteps, reference: FirstSteps, limit: float) -> list[Deviation]:
    """Compare the first steps of a run with those of its reference.

    Return, for the first step and for the last, the deviation of the whole gradient and of the
    tensor that is furthest off. A wrong update shows in the gradient of the step after it.

    Args:
        limit: largest relative error of the whole gradient.
    """
    last = PROOF.limit_of_second * limit
    return [
        *_of_gradient("first", run.gradients[0], reference.gradients[0], limit),
        *_of_gradient("second", run.gradients[-1], reference.gradients[-1], last),
    ]


def _of_gradient(
    step: str, run: Sequence[Tensor], reference: Sequence[Tensor], limit: float
) -> Iterator[Deviation]:
    whole = max(_norm(reference), _TINY)
    errors = [a.distance(b) for a, b in zip(run, reference, strict=True)]
    relative = [
        error / max(tensor.norm, PROOF.negligible * whole)
        for error, tensor in zip(errors, reference, strict=True)
    ]
    place = _furthest(relative)
    name = reference[place].name
    what = f"its gradient in the {step} step, most of all in {name},"
    yield Deviation(what, math.hypot(*errors) / whole, min(PROOF.largest_limit, limit))
    what = f"its gradient of {name} in the {step} step"
    yield Deviation(what, relative[place], min(PROOF.largest_limit, PROOF.limit_of_tensor * limit))


def _furthest(sizes: Sequence[float]) -> int:
    """Return the index of the largest number; one that is none counts as infinite."""
    return max(range(len(sizes)), key=lambda i: math.inf if math.isnan(sizes[i]) else sizes[i])


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(tensor.norm for tensor in tensors))
