"""How a configuration ran, in figures, from the blocks of its runs in the confirmation."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.measurement.bottleneck import peak_flops
from autotune.measurement.stop_rule import straggler_ratio
from storage import Attempts, AttemptState, StoredBlock

_HIGH = 0.95
_STEPS_OF_A_PERCENTILE = 20
"""Steps of which the 95th percentile is below the longest."""


@dataclass(frozen=True)
class Running:
    """Medians over blocks unless the name says otherwise; None where it was not observed.

    Attributes:
        step_p50: seconds, of the slowest rank; so are the next two.
        step_p95: within a block; of blocks with few steps, over all steps.
        step_max: of all steps.
        wait_share: of the time, that the slowest-fed rank waited for its loader.
        exposed_share: of the time, that every rank at least waited for communication which the
            backward pass did not hide.
        straggler: own time of the slowest rank over that of the median one.
        peak_bytes: of a rank.
        headroom: share of what a rank has of its device's memory that the peak leaves free.
        flops: of the model, per second and rank.
        utilisation: the same over the device's peak.
        energy_per_sample: joules of all devices.
        clock_mhz: of the slowest device.
        compile_seconds: spent compiling, all runs together.
        in_turn: runs that took turns with what they are compared with, block by block.
        contended_blocks: share of the blocks that count which others disturbed.
    """

    runs: int
    in_turn: int
    blocks: int
    step_p50: float | None
    step_p95: float | None
    step_max: float | None
    wait_share: float
    exposed_share: float | None
    straggler: float | None
    peak_bytes: int
    headroom: float | None
    flops: float | None
    utilisation: float | None
    energy_per_sample: float | None
    clock_mhz: float | None
    compile_seconds: float
    contended_blocks: float


def running(
    confirmed: Attempts,
    reference: Attempts,
    blocks: dict[int, list[StoredBlock]],
    devices: Sequence[dict[str, Any]],
    memory: float | None,
) -> Running | None:
    """Figures of a trial; None if the confirmation did not run it.

    Args:
        confirmed: its runs in the confirmation.
        reference: runs of the numerics gate's reference, which count the arithmetic of a sample.
        blocks: of each attempt, by its id.
        devices: of the environment that it ran in; empty on CPU.
        memory: bytes that a rank has on its device; None on CPU.
    """
    every = [block for a in confirmed for block in blocks[a.id]]
    kept = [block for block in every if block.kept]
    if not kept or confirmed.first is None:
        return None
    knobs = confirmed.first.knobs
    seconds = sum(block.seconds for block in kept)
    peak = max(attempt.result.peak_bytes for attempt in confirmed)
    flops = _flops(reference, blocks, kept) if _has_one_cost(knobs) else None
    limit = _peak_flops(devices, knobs["precision"])
    utilisation = flops / limit if flops and limit else None
    return Running(
        runs=len(confirmed),
        in_turn=sum(any("turn" in block.observed for block in blocks[a.id]) for a in confirmed),
        blocks=len(kept),
        step_p50=_median(kept, "step_p50"),
        step_p95=_high_step(kept),
        step_max=max(
            (b.observed["step_max"] for b in kept if "step_max" in b.observed), default=None
        ),
        wait_share=sum(block.wait_seconds for block in kept) / seconds,
        exposed_share=_median_of([share for b in kept if (share := _exposed(b)) is not None]),
        straggler=_median_of([r for b in kept if (r := straggler_ratio(b)) is not None]),
        peak_bytes=peak,
        headroom=1 - peak / memory if memory else None,
        flops=flops,
        utilisation=utilisation,
        energy_per_sample=_energy(kept),
        clock_mhz=_median(kept, "clock_mhz"),
        compile_seconds=sum(b.observed.get("compile_seconds", 0.0) for b in every),
        contended_blocks=sum(b.contended for b in kept) / len(kept),
    )


def _high_step(blocks: Sequence[StoredBlock]) -> float | None:
    """Return the 95th percentile of the time of a step.

    A block of few steps has no percentile of its own; there it is that of all steps, those of a block
    taken as alike.
    """
    if statistics.median(block.steps for block in blocks) >= _STEPS_OF_A_PERCENTILE:
        return _median(blocks, "step_p95")
    if not any("step_p95" in block.observed for block in blocks):
        return None
    each = sorted((block.seconds / block.steps, block.steps) for block in blocks)
    left = _HIGH * sum(steps for _, steps in each)
    for seconds, steps in each:
        left -= steps
        if left <= 0:
            return seconds
    return each[-1][0]


def _exposed(block: StoredBlock) -> float | None:
    exposed = block.observed.get("exposed_seconds")
    return min(exposed) / (block.seconds / block.steps) if exposed else None


def _energy(blocks: Sequence[StoredBlock]) -> float | None:
    known = [block for block in blocks if "energy_joules" in block.observed]
    if not known:
        return None
    joules = sum(block.observed["energy_joules"] for block in known)
    return float(joules / sum(block.samples for block in known))


def _has_one_cost(knobs: Mapping[str, Any]) -> bool:
    """Return whether a sample takes as much arithmetic in every step."""
    return bool(knobs["layer_keep"] == 1 == knobs["curriculum_start"])


def _flops(
    reference: Attempts, blocks: dict[int, list[StoredBlock]], kept: list[StoredBlock]
) -> float | None:
    """Return FLOP/s of a rank, by what the numerics gate has counted of one sample."""
    counted = [
        block.observed["flops_per_sample"]
        for a in reference
        for block in blocks[a.id]
        if "flops_per_sample" in block.observed
    ]
    if not counted or not counted[0]:
        return None
    rate = sum(b.samples for b in kept) / sum(b.seconds for b in kept)
    return float(counted[0]) * rate / kept[0].world_size


def _peak_flops(devices: Sequence[dict[str, Any]], precision: str) -> float | None:
    return peak_flops(devices[0]["name"], precision) if devices else None


def _median(blocks: Sequence[StoredBlock], name: str) -> float | None:
    return _median_of([block.observed[name] for block in blocks if name in block.observed])


def _median_of(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


@dataclass(frozen=True)
class Racing:
    """Savings by the early end of hopeless trials.

    Attributes:
        stopped: number of trials that were ended early.
        seconds: seconds by which they were shorter than the median complete trial, together.
        share: share of the time that the search would have taken.
    """

    stopped: int
    seconds: float
    share: float


def racing(attempts: Attempts) -> Racing:
    """Return the savings of a study's search."""
    searched = attempts.searched()
    complete = [a.result.wall_seconds for a in searched.complete()]
    stopped = [a.result.wall_seconds for a in searched.ended_in(AttemptState.PRUNED)]
    if not complete or not stopped:
        return Racing(len(stopped), 0.0, 0.0)
    usual = statistics.median(complete)
    saved = sum(max(0.0, usual - seconds) for seconds in stopped)
    return Racing(len(stopped), saved, saved / (saved + sum(complete) + sum(stopped)))
