"""Behaviours of a replaying launcher that only tests need: memory that is full, power by use."""

import dataclasses
from collections.abc import Callable

from autotune.worker.protocol import Knobs, Outcome
from launchers.replay import Answer, Behaviour, Launch


def by_utilisation(
    rate: Callable[[Knobs], float], *, fastest: float, idle: float, full: float
) -> Callable[[Knobs], float]:
    """Return the power of devices that draw more the more they are used.

    Args:
        rate: samples per second of a configuration.
        fastest: rate at full use.
        idle: watts without work.
        full: watts at full use.
    """
    return lambda knobs: idle + (full - idle) * min(1.0, rate(knobs) / fastest)


def within_memory(behaviour: Behaviour, peak: Callable[[Knobs], float], limit: float) -> Behaviour:
    """Return a behaviour on ranks of this many bytes: a configuration with a higher peak is OOM."""

    def changed(launch: Launch) -> Answer:
        answer, needed = behaviour(launch), peak(launch.knobs)
        if needed > limit:
            cause = f"out of memory: {needed:,.0f} of {limit:,.0f} bytes"
            return dataclasses.replace(answer, outcome=Outcome.OOM, cause=cause)
        return dataclasses.replace(answer, peak_bytes=int(needed))

    return changed
