"""Measure of a study: what a block of training does, over what that costs. Pure.

Every rate is work over cost: samples per second, or samples per joule. More is better in both, so
that all comparisons are alike. The energy of a sample is the reciprocal of the latter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

from autotune.measurement.estimate import Estimate, estimate
from autotune.measurement.step_series import CountedBlock, StepSeries, TimedBlock

BlocksOf = TypeVar("BlocksOf")
ENERGY = "energy_joules"
"""Observation of a block that has the energy of all devices of its trial."""


class Objective(Protocol):
    """Settings of a study that name its measure."""

    @property
    def counts(self) -> str:
        """Work: samples, tokens or steps."""

    @property
    def of_energy(self) -> bool:
        """True if the work is divided by energy instead of time."""


@dataclass(frozen=True)
class Measure:
    """Work over cost.

    Attributes:
        counts: work: samples, tokens or steps.
        of_energy: True if the cost is joules; False: seconds.
    """

    counts: str = "samples"
    of_energy: bool = False

    @classmethod
    def of(cls, objective: Objective) -> Self:
        """Return the measure of a study."""
        return cls(objective.counts, objective.of_energy)

    def work(self, block: CountedBlock) -> int:
        """Return the samples, tokens or steps of a block."""
        number: int = getattr(block, self.counts)
        return number

    def cost(self, block: TimedBlock) -> float:
        """Return the seconds or joules of a block; NaN if its energy could not be read, or is 0."""
        return float(block.observed.get(ENERGY) or math.nan) if self.of_energy else block.seconds

    def series(self, blocks: Sequence[TimedBlock]) -> StepSeries | None:
        """Return the steps of a run by their digests; None if they do not tell the cost of a step."""
        return None if self.of_energy else StepSeries.of(blocks)

    def step_blocks(self, blocks: BlocksOf) -> BlocksOf | None:
        """Return a source of blocks whose steps tell the cost of a step; None: they do not."""
        return None if self.of_energy else blocks

    def estimate(self, blocks: Sequence[TimedBlock]) -> Estimate:
        """Return the rate over all blocks with its interval.

        The interval is that of the steps, or of the blocks where steps were not timed one by one.

        Args:
            blocks: blocks that count, at least one.
        """
        by_blocks = estimate([self.work(b) for b in blocks], [self.cost(b) for b in blocks])
        series = self.series(blocks)
        if series is None:
            return by_blocks
        return replace(by_blocks, half_width=series.half_width, df=series.df)

    def lacks(self, blocks: Sequence[TimedBlock]) -> str:
        """Return why these blocks have no rate; empty if they have one, or there are none."""
        if not blocks:
            return ""
        if not any(map(self.work, blocks)):
            if self.counts == "tokens":
                return (
                    "no tokens are reported, which objective.metric counts: give the workload "
                    "tokens_per_sample, or take samples_per_second"
                )
            return "no samples are reported"
        if self.of_energy and not all(self.cost(block) > 0 for block in blocks):
            return (
                "the energy of its blocks could not be read, which objective.metric counts: "
                "`autotune doctor` says why, or take samples_per_second"
            )
        return ""


SAMPLES_PER_SECOND = Measure()


@dataclass(frozen=True)
class PowerLimit:
    """Limit of the power of each device, on average over a run.

    Attributes:
        watts: of a device.
        devices: number of devices of a trial.
    """

    watts: float
    devices: float

    def lacks(self, blocks: Sequence[TimedBlock]) -> str:
        """Return why the power of these blocks is not known; empty if it is, or there are none."""
        if not blocks or mean_power(blocks) is not None:
            return ""
        return (
            "the power of its devices could not be read, which objective.power_limit needs: "
            "`autotune doctor` says why, or leave it out"
        )

    def excess(self, blocks: Sequence[TimedBlock]) -> str:
        """Return by what these blocks exceed the limit; empty if they keep it."""
        each = (mean_power(blocks) or 0.0) / self.devices
        if each <= self.watts:
            return ""
        return f"it took {each:.4g} W a device, and objective.power_limit is {self.watts:g} W"


def energy_per_sample(blocks: Sequence[TimedBlock]) -> float | None:
    """Return the joules of a sample, all devices together; None if they were not read in each block."""
    joules, samples = _joules(blocks), sum(block.samples for block in blocks)
    return joules / samples if joules is not None and samples else None


def mean_power(blocks: Sequence[TimedBlock]) -> float | None:
    """Return the watts of all devices of a trial over these blocks; None if they were not read."""
    joules = _joules(blocks)
    return None if joules is None else joules / math.fsum(block.seconds for block in blocks)


def _joules(blocks: Sequence[TimedBlock]) -> float | None:
    """Return the energy of blocks; None if it was not read in each, or its counter stood still."""
    told = [block.observed.get(ENERGY) for block in blocks]
    return (math.fsum(told) if told and None not in told else 0.0) or None
