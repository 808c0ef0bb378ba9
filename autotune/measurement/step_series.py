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
from autotune.measurement.units import Counted, units

_MOST_CORRELATION = 0.9
_USUAL_CORRELATION, _WEIGHT = 0.4, 8.0
"""Correlation of neighbouring steps before any was seen (measured, one H200: median 0.4 of 35 series),
and the pairs of steps for which it counts (judgement)."""
_LEAST_DF = 2.0
"""Least degrees of freedom, as for blocks: with one, intervals are too wide to use, and hold no more
often."""


@dataclass(frozen=True)
class ProcessPolicy:
    """Numbers of the spread between processes of one configuration on a CUDA device.

    Attributes:
        jitter: relative scatter between neighbouring steps from which on a device waits for its host
            (measured, one H200: at most 0.019 in configurations that compute, at least 0.030 in those
            that wait).
        waiting: standard deviation of the log rate between processes that wait for the host (measured,
            one H200: 113, 126 and 185 ms in three processes).
        computing: the same of processes that compute (measured, one H200: 79.4 to 80.4 ms).
        df: degrees of freedom that these priors count for beside measured runs (judgement).
    """

    jitter: float = 0.025
    waiting: float = 0.2
    computing: float = 0.005
    df: float = 2.0


PROCESSES = ProcessPolicy()


class TimedBlock(Counted, Protocol):
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

    def process_sigma(self, policy: ProcessPolicy = PROCESSES) -> float:
        """Return how far the log rates of processes of this configuration are taken to lie apart."""
        return policy.waiting if self.jitter > policy.jitter else policy.computing

    @property
    def half_width(self) -> float:
        """Relative half-width of the 95 % interval of the mean step."""
        return student(self.df) * math.sqrt(self.variance / self._effective) / self.mean

    @property
    def df(self) -> float:
        """Degrees of freedom of that interval."""
        return max(_LEAST_DF, self._effective - 1)

    @property
    def _effective(self) -> float:
        seen = self.correlation + (1 + 4 * self.correlation) / self.count  # Kendall 1954
        likely = (self.pairs * seen + _WEIGHT * _USUAL_CORRELATION) / (self.pairs + _WEIGHT)
        correlation = min(_MOST_CORRELATION, max(0.0, likely))
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
