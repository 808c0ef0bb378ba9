"""Behaviours of a replaying launcher that only tests need: failures, full memory, drift, power."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from autotune.worker.protocol import Knobs, Outcome
from launchers.replay import Answer, Behaviour, Launch

_SECONDS_PER_HOUR = 3600.0


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


def where(behaviour: Behaviour, condition: Callable[[Launch], bool], **changes: Any) -> Behaviour:
    """Return a behaviour whose answer differs in these fields for launches that meet the condition.

    Examples: failures, lost agents, a long start-up, another loss.
    """

    def changed(launch: Launch) -> Answer:
        answer = behaviour(launch)
        return dataclasses.replace(answer, **changes) if condition(launch) else answer

    return changed


def drawing(behaviour: Behaviour, watts: Callable[[Knobs], float]) -> Behaviour:
    """Return a behaviour whose devices draw this power together, by the configuration."""

    def changed(launch: Launch) -> Answer:
        return dataclasses.replace(behaviour(launch), watts=watts(launch.knobs))

    return changed


def drifting(behaviour: Behaviour, *, per_hour: float) -> Behaviour:
    """Return a behaviour whose rates all change by this share in an hour of virtual time."""

    def changed(launch: Launch) -> Answer:
        answer = behaviour(launch)
        factor = math.exp(per_hour * launch.at / _SECONDS_PER_HOUR)
        return dataclasses.replace(answer, rate=answer.rate * factor)

    return changed
