"""Comparison of first steps: gradients and weight updates of two configurations.

Both start from equal weights and batches. Pure functions over sketches
(autotune.worker.rank.sketch).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NULL = {
    ("precision", "fp32"): 1e-3,
    ("precision", "tf32"): 2e-3,
    ("precision", "fp16"): 0.015,
    ("precision", "bf16"): 0.05,
    ("precision", "pure_bf16"): 0.06,
    ("gradient_compression", "fp16"): 0.003,
    ("gradient_compression", "bf16"): 0.01,
    ("fsdp_reduce_dtype", "bf16"): 0.01,
    ("float8", "tensorwise"): 0.10,
    ("float8", "rowwise"): 0.10,
}
"""Relative error of the whole gradient that a number format causes where all is well.

It is the largest that benchmarks/gate.py has seen or, where no device was at hand, what follows
from the format. Other knobs and values cause no more than fp32, whose convolutions cuDNN may
compute in TF32."""
FACTOR = 3.0
"""Factor above that error at which a configuration is refused."""
_TENSOR_FACTOR = 3.0
"""Ratio of the largest allowed error of a single tensor, relative to its own norm, to that of the
whole."""
_NEGLIGIBLE = 0.02
"""Least norm for the error of a tensor, as a share of the norm of the whole gradient."""
_SECOND_FACTOR = 3.0
"""Factor of the allowed error in the second step, whose weights differ by the first step's."""
_MOVE_TOLERANCE = 0.15
"""Largest relative difference of the distance by which the weights are moved."""
_TENSOR_MOVE_TOLERANCE = 0.35
"""Largest such difference of a single tensor, whose sketch tells its norm to within 12 %."""
_KNOWN_DIRECTION = 0.5
"""Largest relative error of a tensor's gradient with which its move is compared.

An optimizer that divides by the gradient's own size moves a tensor by its noise where there is
nothing else."""
_MOST_TOLERANCE = 0.5
_TINY = 1e-30
_BF16_STEP = 2.0**-8
"""Relative distance of neighbouring bf16 numbers: weights in that format move in such steps."""


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
        moved: change of the weights over these steps.
        weights: norm of every tensor before them.
        start: digest of the weights and rows that they began with; empty where those are known to be
            the same in every run.
    """

    gradients: tuple[tuple[Tensor, ...], ...]
    moved: tuple[Tensor, ...]
    weights: tuple[float, ...]
    start: str = ""

    @classmethod
    def seen(cls, observed: Sequence[Mapping[str, Any]]) -> "FirstSteps | None":
        """Return the first steps of a run, from its observations; None without gradients."""
        told = [one for one in observed if "gradient" in one]
        if not told or "moved" not in told[-1]:
            return None
        return cls(
            tuple(tuple(map(Tensor.of, one["gradient"])) for one in told),
            tuple(map(Tensor.of, told[-1]["moved"])),
            tuple(told[-1]["weights"]),
            str(told[-1].get("start", "")),
        )


@dataclass(frozen=True)
class Compared:
    """Comparison of a run's first steps with those of its reference.

    Attributes:
        problem: reason for a refusal; empty if there is none.
        error: relative error of the whole first gradient.
        limit: limit of `error`.
        tensor_error: largest relative error of a relevant tensor.
        second_error: relative error of the whole last gradient.
        moved: distance by which the weights are moved, over that of the reference.
    """

    problem: str
    error: float
    limit: float
    tensor_error: float = math.nan
    second_error: float = math.nan
    moved: float = math.nan


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
    return min(_MOST_TOLERANCE, FACTOR * math.hypot(NULL["precision", "fp32"], *nulls))


def comparable(run: FirstSteps | None, reference: FirstSteps | None) -> bool:
    """Return whether both observe the same tensors, and began with the same weights and rows."""
    if run is None or reference is None or len(run.gradients) != len(reference.gradients):
        return False
    if run.start != reference.start:
        return False
    return [t.size for t in run.moved] == [t.size for t in reference.moved]


def compared(
    run: FirstSteps, reference: FirstSteps, limit: float, *, weights_in_bf16: bool = False
) -> Compared:
    """Compare the first steps of a run with those of its reference.

    Args:
        limit: largest relative error of the whole gradient.
        weights_in_bf16: ignore weights that move by less than the resolution of bf16.
    """
    first, last = (_Errors(run.gradients[step], reference.gradients[step]) for step in (0, -1))
    moved = _Moves(run, reference, first, weights_in_bf16)
    problem = (
        first.problem("first", limit)
        or last.problem("second", min(_MOST_TOLERANCE, _SECOND_FACTOR * limit))
        or moved.problem()
    )
    return Compared(problem, first.whole, limit, first.worst, last.whole, moved.whole)


class _Errors:
    """Errors of the gradient of a step."""

    def __init__(self, run: Sequence[Tensor], reference: Sequence[Tensor]) -> None:
        self._reference = reference
        self._size = max(_norm(reference), _TINY)
        self._of_tensors = [a.distance(b) for a, b in zip(run, reference, strict=True)]
        self.whole = math.hypot(*self._of_tensors) / self._size
        self._worst = max(range(len(reference)), key=self._rank)

    @property
    def worst(self) -> float:
        """Largest relative error of a tensor."""
        return self._relative(self._worst)

    def direction_known(self, place: int) -> bool:
        """Return whether the gradient of a tensor is more than noise."""
        own = self._reference[place].norm
        return own > 0 and self._of_tensors[place] <= _KNOWN_DIRECTION * own

    def problem(self, which: str, limit: float) -> str:
        """Return the reason for a refusal; empty if there is none."""
        most = min(_MOST_TOLERANCE, _TENSOR_FACTOR * limit)
        name = self._reference[self._worst].name
        if not self.whole <= limit:
            return (
                f"its gradient in the {which} step lies {self.whole:.2%} of its norm from the "
                f"reference's (limit {limit:.2%} for these number formats; most in {name}: "
                f"{self.worst:.2%})"
            )
        if not self.worst <= most:
            return (
                f"its gradient of {name} in the {which} step lies {self.worst:.2%} of its norm from "
                f"the reference's (limit {most:.2%} for these number formats)"
            )
        return ""

    def _relative(self, place: int) -> float:
        own = max(self._reference[place].norm, _NEGLIGIBLE * self._size)
        return self._of_tensors[place] / own

    def _rank(self, place: int) -> float:
        found = self._relative(place)
        return math.inf if math.isnan(found) else found


class _Moves:
    """Moves of the weights over the first steps."""

    def __init__(
        self, run: FirstSteps, reference: FirstSteps, first: _Errors, weights_in_bf16: bool
    ) -> None:
        self._run, self._reference = run.moved, reference.moved
        finest = _BF16_STEP if weights_in_bf16 else 0.0
        self._told = [
            place
            for place, moved in enumerate(reference.moved)
            if first.direction_known(place) and moved.norm > finest * reference.weights[place]
        ]
        sizes = [_norm([of[place] for place in self._told]) for of in (run.moved, reference.moved)]
        self.whole = sizes[0] / sizes[1] if self._told and sizes[1] else math.nan

    def problem(self) -> str:
        """Return the reason for a refusal; empty if there is none."""
        if not self._told:
            return ""
        if not abs(self.whole - 1) <= _MOVE_TOLERANCE:
            return (
                f"its first steps move the weights {self.whole:.2f} times as far as the reference's "
                f"(limit {_MOVE_TOLERANCE:.0%} off)"
            )
        place = max(self._told, key=lambda place: abs(self._ratio(place) - 1))
        if abs(self._ratio(place) - 1) <= _TENSOR_MOVE_TOLERANCE:
            return ""
        return (
            f"its first steps move {self._reference[place].name} {self._ratio(place):.2f} times as far "
            f"as the reference's (limit {_TENSOR_MOVE_TOLERANCE:.0%} off)"
        )

    def _ratio(self, place: int) -> float:
        return self._run[place].norm / max(self._reference[place].norm, _TINY)


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(tensor.norm for tensor in tensors))
