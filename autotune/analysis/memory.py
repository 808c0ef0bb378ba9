"""Memory of a rank, also with the longest samples of the data. Pure.

A run of a minute sees few of the longest samples, a month sees all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.config.sections import ResourcesSpec
from storage import Attempts, AttemptState, Blocks, Purpose


@dataclass(frozen=True)
class Memory:
    """Memory of a rank, in bytes.

    Attributes:
        peak: peak of its timed runs.
        longest: peak with the longest samples; None if it was not run with them.
        limit: what a rank has; None if unknown, or not comparable (on the CPU, the limit counts what a
            rank has asked for, and the peak what it has touched).
        untold: reason why it was not run with the longest samples, or not to the end; empty if it was.
    """

    peak: int
    longest: int | None = None
    limit: int | None = None
    untold: str = ""


@dataclass(frozen=True)
class Outgrown:
    """Trials refused because they run out of memory with the longest samples.

    Attributes:
        knobs: configuration of the first.
    """

    count: int
    knobs: dict[str, Any]

    @classmethod
    def of(cls, attempts: Attempts) -> "Outgrown | None":
        """Return what is recorded; None if there are none."""
        several = list(outgrown(attempts).values())
        return cls(len(several), several[0]) if several else None


def limit_of_rank(environment: Mapping[str, Any], resources: ResourcesSpec) -> float | None:
    """Return the bytes that a rank has on a device; None on the CPU.

    Args:
        environment: machine of the measurements.
        resources: what the study may use.
    """
    devices = [int(device["memory_bytes"]) for device in environment.get("devices", ())]
    if not devices:
        return None
    share = 1.0 if resources.gpus_per_worker is None else min(1.0, resources.gpus_per_worker)
    own = min(devices) * share
    return min(own, resources.memory_per_worker or own)


def memory_of(
    attempts: Attempts, trial: int, knobs: Mapping[str, Any], limit: float | None, *, told: bool
) -> Memory:
    """Return what is recorded of a configuration.

    Args:
        knobs: the configuration as it is recommended.
        limit: bytes that a rank has; None if unknown.
        told: True if the workload says which samples are the longest.
    """
    own = attempts.of_trial(trial).with_knobs(knobs)
    peak = timed_peak(own)
    run = own.of(Purpose.LONGEST).recorded().last
    room = None if limit is None else int(limit)
    if run is None:
        why = "there was no time" if told else "the workload does not say which they are"
        return Memory(peak, None, room, why)
    if run.result.state != AttemptState.COMPLETE:
        return Memory(peak, None, room, f"{run.result.state}: {run.result.cause}")
    return Memory(peak, max(peak, run.result.peak_bytes), room)


def timed_peak(own: Attempts) -> int:
    """Return the peak memory of a rank in the timed runs of a configuration, bytes.

    A run of the search counts as well: interleaved ones share their devices, where only an allowance
    is known of what a rank takes beside its allocator.

    Args:
        own: attempts of the configuration.
    """
    timed = own.of(Purpose.SEARCH, Purpose.CONFIRM).recorded()
    return max((run.result.peak_bytes for run in timed), default=0)


def tells_longest(attempts: Attempts, trial: int, blocks: Blocks) -> bool:
    """Return whether the workload of this trial has said that it knows its longest samples."""
    searched = attempts.of(Purpose.SEARCH).of_trial(trial).recorded()
    return any(block.observed.get("tells_longest") for run in searched for block in blocks(run.id))


def outgrown(attempts: Attempts) -> dict[int, dict[str, Any]]:
    """Return trials that run out of memory with the longest samples, and their knobs.

    A reduced winner counts once a round has measured it: before, the trial can stay as it was.
    """
    runs = attempts.of(Purpose.LONGEST).recorded().ended_in(AttemptState.OOM)
    timed = attempts.of(Purpose.SEARCH, Purpose.CONFIRM)
    return {run.trial: run.knobs for run in runs if timed.of_trial(run.trial).with_knobs(run.knobs)}
