"""Consecutive steps of one run, by the digests of its blocks. Pure.

They tell how exact their mean is, and how far processes of the configuration lie apart.
Steps of a CUDA device that computes scatter by 0.03 to 3 %; those of one that waits for the host by 4 to
13 %, and then its processes differ as well. Neighbouring steps are correlated, so the series counts
for fewer independent steps, and slow waves count for none of the jitter.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from autotune.measurement.estimate import Estimate, effective_sample_size, estimate, student
from autotune.measurement.policy import MEASUREMENT


class CountedBlock(Protocol):
    """Block with everything that a rate may count in it."""

    @property
    def steps(self) -> int:
        """Optimizer steps."""

    @property
    def samples(self) -> int:
        """Samples over all ranks."""

    @property
    def tokens(self) -> int:
        """Tokens over all ranks."""


def units(block: CountedBlock, counts: str) -> int:
    """Return how many samples, tokens or steps a block has; `counts` names which."""
    number: int = getattr(block, counts)
    return number


class TimedBlock(CountedBlock, Protocol):
    """Block, as reported or as stored."""

    @property
    def seconds(self) -> float:
        """Wall time."""

    @property
    def observed(self) -> Any:
        """See autotune.worker.protocol.Observed."""


@dataclass(frozen=True)
class StepSeries:
    """Steps of one run.

    Attributes:
        count: number of steps.
        mean: mean seconds of a step.
        variance: variance of the steps.
        correlation: correlation of neighbouring steps, as seen.
        pairs: number of pairs of neighbours that it was seen in.
    """

    count: float
    mean: float
    variance: float
    correlation: float
    pairs: float

    @classmethod
    def of(cls, blocks: Iterable[TimedBlock]) -> Self | None:
        """Merge the digests of these blocks.

        None if a block has no digest, or there are fewer than three steps.
        """
        told = [block.observed.get("step_moments") for block in blocks]
        if not told or not all(told):
            return None
        counts, means, squares, products = zip(*told, strict=True)
        count = math.fsum(counts)
        if count < 3:
            return None
        mean = _dot(counts, means) / count
        between = [(each - mean) ** 2 for each in means]
        variance = (math.fsum(squares) + _dot(counts, between)) / (count - 1)
        pairs = [each - 1 for each in counts]
        neighbours = math.fsum(pairs)
        lagged = math.fsum(products) + _dot(pairs, between)
        correlation = lagged / neighbours / variance if neighbours and variance else 0.0
        return cls(count, mean, variance, correlation, neighbours)

    @property
    def jitter(self) -> float:
        """Relative scatter between neighbouring steps, over the square root of two."""
        return math.sqrt(self.variance * max(0.0, 1.0 - self.correlation)) / self.mean

    def process_sigma(self) -> float:
        """Return the standard deviation that log rates of its processes are taken to have."""
        waits = self.jitter > MEASUREMENT.waiting_jitter
        return MEASUREMENT.waiting_processes if waits else MEASUREMENT.computing_processes

    @property
    def half_width(self) -> float:
        """Relative half-width of the 95 % interval of the mean step."""
        return student(self.df) * math.sqrt(self.variance / self._effective) / self.mean

    @property
    def df(self) -> float:
        """Degrees of freedom of that interval."""
        return max(MEASUREMENT.least_df, self._effective - 1)

    @property
    def _effective(self) -> float:
        seen = self.correlation + (1 + 4 * self.correlation) / self.count  # Kendall 1954
        weight, usual = MEASUREMENT.correlation_weight, MEASUREMENT.usual_correlation
        likely = (self.pairs * seen + weight * usual) / (self.pairs + weight)
        correlation = min(MEASUREMENT.most_correlation, max(0.0, likely))
        return effective_sample_size(int(self.count), correlation)


def estimate_of_run(blocks: Sequence[TimedBlock], *, counts: str) -> Estimate:
    """Return the rate over all blocks with its interval.

    The interval is that of the steps, or of the blocks where steps were not timed one by one.

    Args:
        blocks: blocks that count, at least one.
        counts: samples, tokens or steps.
    """
    by_blocks = estimate([units(block, counts) for block in blocks], [b.seconds for b in blocks])
    series = StepSeries.of(blocks)
    if series is None:
        return by_blocks
    return replace(by_blocks, half_width=series.half_width, df=series.df)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))
