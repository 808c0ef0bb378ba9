"""How a configuration ran, in figures, from the blocks of its runs in the confirmation."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.analysis.memory import timed_peak
from autotune.analysis.run_digest import run_digest
from autotune.measurement.bottleneck import peak_flops
from autotune.measurement.measure import energy_per_sample, mean_power
from autotune.measurement.stop_rule import straggler_ratio
from storage import Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock


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
        watts: of all devices together, on average.
        clock_mhz: of the slowest device.
        compile_seconds: spent compiling, all runs together.
        interleaved: runs that took turns with what they are compared with, block by block.
    """

    runs: int
    interleaved: int
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
    watts: float | None
    clock_mhz: float | None
    compile_seconds: float


def running(
    own: Attempts,
    reference: Attempts,
    blocks: dict[int, list[StoredBlock]],
    devices: Sequence[dict[str, Any]],
    memory: float | None,
) -> Running | None:
    """Return the figures of a trial; None if the confirmation did not run it.

    Args:
        own: its attempts; its memory is that of all of them, the other figures of the confirmation.
        reference: runs of the numerics gate's reference, which count the arithmetic of a sample.
        blocks: of each attempt, by its id.
        devices: of the environment that it ran in; empty on CPU.
        memory: bytes that a rank has on its device; None on CPU.
    """
    confirmed = own.of(Purpose.CONFIRM).measured()
    every = [block for a in confirmed for block in blocks[a.id]]
    kept = [block for block in every if block.kept]
    if not kept or confirmed.first is None:
        return None
    knobs, digest = confirmed.first.knobs, run_digest(every)
    seconds = sum(block.seconds for block in kept)
    peak = timed_peak(own)
    # Else a sample takes more arithmetic in some steps than in others.
    has_one_cost = knobs["layer_keep"] == 1 == knobs["curriculum_start"]
    flops = _flops(reference, blocks, kept) if has_one_cost else None
    limit = peak_flops(devices[0]["name"], knobs["precision"]) if devices else None
    utilisation = flops / limit if flops and limit else None
    return Running(
        runs=len(confirmed),
        interleaved=sum(any("turn" in block.observed for block in blocks[a.id]) for a in confirmed),
        blocks=len(kept),
        step_p50=digest.step_median,
        step_p95=digest.step_p95,
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
        energy_per_sample=digest.sample_joules,
        watts=digest.watts,
        clock_mhz=digest.clock_mhz,
        compile_seconds=sum(b.observed.get("compile_seconds", 0.0) for b in every),
    )


@dataclass(frozen=True)
class Conditions:
    """State of the machine during the timed runs; None where it was not observed.

    Attributes:
        foreign_cpu: share of a node's processors that other processes took, mean of the runs.
        most_foreign_cpu: the same of the run with the most.
        disturbed_share: share of the blocks of a run that others disturbed, mean of the runs.
        clock_mhz: lowest and highest clock of the slowest device.
    """

    foreign_cpu: float | None
    most_foreign_cpu: float | None
    disturbed_share: float | None
    clock_mhz: tuple[float, float] | None

    @classmethod
    def of(cls, timed: Sequence[StoredAttempt]) -> Self:
        """Return the conditions of timed runs."""
        digests = [attempt.digest for attempt in timed]
        foreign = [one.foreign_cpu for one in digests if one.foreign_cpu is not None]
        disturbed = [one.disturbed_share for one in digests if one.disturbed_share is not None]
        clocks = [one.clock_mhz for one in digests if one.clock_mhz is not None]
        return cls(
            foreign_cpu=statistics.fmean(foreign) if foreign else None,
            most_foreign_cpu=max(foreign, default=None),
            disturbed_share=statistics.fmean(disturbed) if disturbed else None,
            clock_mhz=(min(clocks), max(clocks)) if clocks else None,
        )


@dataclass(frozen=True)
class EnergyUse:
    """Energy and power of the baseline and of the recommended configuration in the rounds.

    Attributes:
        joules_per_sample: of all devices together, before and after.
        watts: of a device on average, before and after; on the CPU of the processors of a node.
        limit: watts that a device may take; None: there is no limit.
        speed: samples per second, after over before.
    """

    joules_per_sample: tuple[float, float]
    watts: tuple[float, float]
    limit: float | None
    devices: int
    speed: float

    @classmethod
    def of(
        cls,
        before: Sequence[StoredBlock],
        after: Sequence[StoredBlock],
        devices: int,
        limit: float | None,
    ) -> Self | None:
        """Return the figures of two configurations by their blocks; None if they were not read.

        Args:
            after: those of the recommended configuration.
            devices: number of devices.
            limit: watts that a device may take; None: there is no limit.
        """
        energy = [energy_per_sample(blocks) for blocks in (before, after)]
        watts = [mean_power(blocks) for blocks in (before, after)]
        if energy[0] is None or energy[1] is None or watts[0] is None or watts[1] is None:
            return None
        each = watts[0] / devices, watts[1] / devices
        speed = (watts[1] / energy[1]) / (watts[0] / energy[0])
        return cls((energy[0], energy[1]), each, limit, devices, speed)


def _exposed(block: StoredBlock) -> float | None:
    exposed = block.observed.get("exposed_seconds")
    return min(exposed) / (block.seconds / block.steps) if exposed else None


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


def _median_of(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


@dataclass(frozen=True)
class Racing:
    """Savings by the early end of hopeless trials.

    Attributes:
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
