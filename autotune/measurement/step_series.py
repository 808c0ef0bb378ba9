"""Consecutive steps of one run, by the digests of its blocks. Pure.

They tell how exact their mean is, and how far processes of the configuration lie apart.
Steps of a CUDA device that computes scatter by 0.03 to 3 %; those of one that waits for the host by
4 to 13 %, and then its processes differ as well. Neighbouring steps are correlated, so the series
counts for fewer independent steps, and slow waves count for none of the jitter.

The first steps of a run include what happens once: memory is taken, kernels are chosen, buckets are
laid out anew. They bound the speed of the steady steps only by experience: by a prior, and by
earlier runs of the same study.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from autotune.measurement.contrasts import Variance, shrunk
from autotune.measurement.estimate import (
    effective_sample_size,
    student,
    unbiased_correlation,
)
from autotune.measurement.policy import MEASUREMENT
from autotune.worker.protocol import BlockReport


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
        mean: mean seconds of a step.
        correlation: correlation of neighbouring steps, as seen.
        pairs: number of pairs of neighbours that it was seen in.
        local: relative scatter between neighbours in each part of the run, over the square root of two.
    """

    count: float
    mean: float
    variance: float
    correlation: float
    pairs: float
    local: tuple[float, ...] = ()

    @classmethod
    def of(cls, blocks: Iterable[TimedBlock]) -> Self | None:
        """Merge the digests of these blocks.

        None if a block has no digest, there are fewer than three steps, or these scatter by the length
        of their batches.
        """
        blocks = list(blocks)
        if _scatter_by_length(blocks):
            return None
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
        single = _neighbours_of_one_step(counts, [each - mean for each in means])
        neighbours = math.fsum(pairs) + len(single)
        within = math.fsum(products) + _dot(pairs, between)
        lagged = within + math.fsum(one * other for one, other in single)
        correlation = lagged / neighbours / variance if neighbours and variance else 0.0
        local = [_jitter_of_block(*each) for each in zip(counts, squares, products, strict=True)]
        local += [_typical(abs(one - other) / math.sqrt(2), 1) for one, other in single]
        relative = tuple(each / mean for each in local if each is not None)
        return cls(count, mean, variance, correlation, neighbours, relative)

    @property
    def jitter(self) -> float:
        """Relative scatter between neighbouring steps, over the square root of two."""
        return math.sqrt(self.variance * max(0.0, 1.0 - self.correlation)) / self.mean

    def process_sigma(self) -> float:
        """Return the standard deviation that log rates of its processes are taken to have."""
        return process_sigma([self])

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
        seen = unbiased_correlation(self.correlation, self.count)
        return effective_sample_size(int(self.count), _likely_correlation(seen, self.pairs))


def process_sigma(runs: Sequence[StepSeries]) -> float:
    """Return the standard deviation that log rates of a configuration's processes are taken to have.

    A device that waits for its host scatters all the time. One that computes may have waves of slow
    steps, which scatter as much in the mean, but in few places.

    Args:
        runs: steps of every run of the configuration, at least one.
    """
    counts = [run.count for run in runs]
    mean = math.sqrt(_dot(counts, [run.jitter**2 for run in runs]) / math.fsum(counts))
    local = [each for run in runs for each in run.local]
    typical = statistics.median(local) if local else mean
    waits = mean > MEASUREMENT.waiting_jitter and typical > MEASUREMENT.typical_waiting_jitter
    return MEASUREMENT.waiting_processes if waits else MEASUREMENT.computing_processes


def variance_of_mean_step(runs: Sequence[StepSeries], timed: Sequence[float]) -> Variance:
    """Return the mean variance that the scatter of steps leaves of the log rates of runs.

    Runs of one configuration scatter alike. So the variance of a step, that of the mean of many steps
    times their number, is that of all runs together, drawn towards what steps of computing devices
    usually have: a run of a few steps that has missed every slow wave looks far too exact.

    Args:
        runs: steps of every run of the configuration, at least one.
        timed: number of steps of each run whose rate counts.
    """
    freedom = [run.count - 1 for run in runs]
    relative = [run.variance / run.mean**2 for run in runs]
    variance = _dot(freedom, relative) / math.fsum(freedom)
    pairs = math.fsum(run.pairs for run in runs)
    lagged = math.fsum(
        run.pairs * each * run.correlation for run, each in zip(runs, relative, strict=True)
    )
    seen = lagged / pairs / variance if pairs and variance else 0.0
    steps = math.fsum(run.count for run in runs)
    correlation = _likely_correlation(unbiased_correlation(seen, steps / len(runs)), pairs)
    of_step = variance * (1 + correlation) / (1 - correlation)
    df = max(0.0, steps * (1 - correlation) / (1 + correlation) - len(runs))
    usual = Variance(MEASUREMENT.usual_step_scatter**2, MEASUREMENT.usual_step_df)
    found = shrunk(Variance(of_step, df), usual)
    return Variance(found.value * statistics.fmean(1 / each for each in timed), found.df)


def _scatter_by_length(blocks: Sequence[TimedBlock]) -> bool:
    """Return whether steps differ because batches have different lengths, as where each is padded.

    Then blocks tell how exact a rate is: a digest has the seconds of steps, and not their tokens.
    """
    if len(blocks) < MEASUREMENT.fewest_blocks or not all(block.tokens for block in blocks):
        return False
    by_step = _relative_scatter([block.seconds / block.steps for block in blocks])
    by_token = _relative_scatter([block.seconds / block.tokens for block in blocks])
    return by_token < MEASUREMENT.scatter_of_lengths * by_step


def _relative_scatter(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


def _likely_correlation(seen: float, pairs: float) -> float:
    """Return the correlation of neighbouring steps, drawn towards the usual one."""
    weight, usual = MEASUREMENT.correlation_weight, MEASUREMENT.usual_correlation
    likely = (pairs * seen + weight * usual) / (pairs + weight)
    return min(MEASUREMENT.most_correlation, max(0.0, likely))


def _neighbours_of_one_step(
    counts: Sequence[float], around: Sequence[float]
) -> list[tuple[float, float]]:
    """Return the deviations of neighbouring blocks of one step each.

    A digest tells of the neighbours within its block. A block of one step has none, and is a step.
    """
    blocks = zip(counts, around, strict=True)
    return [
        (one, other)
        for (steps, one), (others, other) in itertools.pairwise(blocks)
        if steps == others == 1
    ]


def _jitter_of_block(steps: float, squares: float, products: float) -> float | None:
    """Return the scatter between the neighbours of a block; None for a block of one step."""
    if steps < 2:
        return None
    of_pair = (squares - products * steps / (steps - 1)) / steps
    return _typical(math.sqrt(max(0.0, of_pair)), steps - 1)


def _typical(scatter: float, pairs: float) -> float:
    """Return a scatter that was seen in a few pairs so that the median of many is unbiased.

    By the median of chi-square (Wilson and Hilferty 1931).
    """
    return scatter / math.pow(1 - 2 / (9 * pairs), 1.5)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class Onset:
    """Beginning of a run.

    Attributes:
        first: seconds of the first step.
        steady: seconds of a step in the blocks that count.
    """

    first: float
    steady: float


@dataclass(frozen=True)
class OnsetBound:
    """Bound on how far a first step lies above a steady one.

    Attributes:
        times: bound as a factor.
        seconds: bound in seconds; of the two the one that allows for the faster run counts.
    """

    times: float = MEASUREMENT.first_step
    seconds: float = MEASUREMENT.first_step_seconds

    @classmethod
    def of(cls, earlier: Sequence[Onset]) -> "OnsetBound":
        """Return the bound by earlier runs of the same study; by the prior where there are none."""
        if not earlier:
            return cls()
        times = max(run.first / run.steady for run in earlier)
        seconds = max(run.first - run.steady for run in earlier)
        return cls(
            MEASUREMENT.first_step_margin * max(times, 1.0),
            MEASUREMENT.first_step_margin * max(seconds, 0.0),
        )

    def fastest_step(self, blocks: Sequence[BlockReport]) -> float:
        """Return the least seconds of a steady step; 0 where the blocks tell nothing.

        Args:
            blocks: blocks of the warm-up so far, from the first step on.
        """
        done, bounds = 0, []
        for block in blocks:
            step = block.seconds / block.steps
            if not block.observed.get("compilations"):
                bounds.append(self._bound(step, done))
            done += block.steps
        # The least bound counts: other processes may have disturbed a block.
        return min((bound for bound in bounds if bound > 0), default=0.0)

    def _bound(self, step: float, done: int) -> float:
        """Return the least seconds of a steady step, by a step after this many."""
        if done == 0:
            return min(step / self.times, step - self.seconds)
        return step / (
            MEASUREMENT.early_step if done < MEASUREMENT.early_steps else MEASUREMENT.late_step
        )
