"""Digest of a run: its steps, the clocks and power of its devices, disturbance by others. Pure."""

import math
import statistics
from collections.abc import Sequence

from autotune.measurement.measure import energy_per_sample, mean_power
from autotune.measurement.step_series import StepSeries
from storage import RunDigest, StoredBlock

_HIGH = 0.95
_STEPS_OF_A_PERCENTILE = 20
"""Steps of a block of which the 95th percentile is below the longest."""


def run_digest(blocks: Sequence[StoredBlock]) -> RunDigest:
    """Return the digest of a run, or of several, by the blocks that count."""
    kept = [block for block in blocks if block.kept]
    if not kept:
        return RunDigest()
    timed = [block for block in blocks if block.kept or block.contended]
    steps = sum(block.steps for block in kept)
    series = StepSeries.of(kept)
    return RunDigest(
        steps=steps,
        disturbed_share=sum(block.contended for block in timed) / len(timed),
        foreign_cpu=_mean_of(kept, "foreign_cpu"),
        clock_mhz=_median_of(kept, "clock_mhz"),
        watts=mean_power(kept),
        sample_joules=energy_per_sample(kept),
        step_mean=sum(block.seconds for block in kept) / steps,
        step_median=_median_of(kept, "step_p50"),
        step_p95=_high_step(kept),
        step_correlation=series.correlation if series else None,
    )


def _high_step(kept: Sequence[StoredBlock]) -> float | None:
    """Return the 95th percentile of the time of a step.

    A block of few steps has no percentile of its own; there it is that of all steps: of each block the
    longest step once, and its median for the others.
    """
    timed = [block for block in kept if "step_p95" in block.observed]
    if not timed:
        return None
    if statistics.median(block.steps for block in timed) >= _STEPS_OF_A_PERCENTILE:
        return _median_of(timed, "step_p95")
    every = sorted(seconds for block in timed for seconds in _steps_of(block))
    return float(every[math.ceil(_HIGH * len(every)) - 1])


def _steps_of(block: StoredBlock) -> list[float]:
    others = [block.observed["step_p50"]] * (block.steps - 1)
    return [*others, block.observed["step_p95"]]


def _observed(kept: Sequence[StoredBlock], name: str) -> list[float]:
    return [float(block.observed[name]) for block in kept if name in block.observed]


def _mean_of(kept: Sequence[StoredBlock], name: str) -> float | None:
    known = _observed(kept, name)
    return statistics.fmean(known) if known else None


def _median_of(kept: Sequence[StoredBlock], name: str) -> float | None:
    known = _observed(kept, name)
    return statistics.median(known) if known else None
