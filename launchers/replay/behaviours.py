"""Behaviours of a replaying launcher: functions that make them, and functions that modify them."""

import dataclasses
import math
import statistics
from collections.abc import Callable

from autotune.worker.protocol import Knobs, Outcome
from launchers.replay.answers import Answer, Behaviour, Launch
from launchers.replay.tables import COMPLETE, SECONDS, STATE, THROUGHPUT, Row, Table
from search_spaces import CATALOGUE

_COMPILE = CATALOGUE["compile"]
_UNCOMPILED = {name: CATALOGUE[name].default for name in ("compile", "compile_scope")}

# Makers


def running_at(rate: Callable[[Knobs], float]) -> Behaviour:
    """Return a behaviour by which every configuration runs at this many samples per second."""
    return lambda launch: Answer(rate=rate(launch.knobs))


def recorded(table: Table, *, timed: float) -> Behaviour:
    """Return a behaviour that plays the rows of a table, without noise.

    What a table does not record is made up: a loss that falls alike for all, no peak memory; the
    parts of a step are unknown. A warm worker that compiles takes what the row's start-up is longer
    than that of the same configuration uncompiled; all of it where the table does not hold that. A
    configuration without a row is an ERROR, unless its speed does not matter, as for the reference
    of a loss trajectory: that takes the slowest rate and the median start-up.

    Args:
        table: table whose throughput is taken for samples and for tokens per second.
        timed: seconds for which each trial was timed when the table was recorded; the rest of its
            time is taken for its start-up.
    """

    def behaviour(launch: Launch) -> Answer:
        row = table.row(launch.knobs)
        if row is None:
            untimed = launch.request.trajectory or launch.request.profile
            problem = None if untimed else Outcome.ERROR
            return Answer(
                rate=table.slowest,
                startup=statistics.median(_startup(one, timed) for one in table.complete),
                outcome=problem,
                cause=table.lacks(launch.knobs),
                parts={},
            )
        if row[STATE] != COMPLETE:
            cause = f"recorded as {row[STATE]}"
            return Answer(startup=row[SECONDS], outcome=Outcome(row[STATE]), cause=cause)
        return Answer(
            rate=row[THROUGHPUT],
            startup=_startup(row, timed),
            switch=_compilation(table, row, launch.knobs, timed) if _compiles_anew(launch) else 0.0,
            tokens_per_sample=1,
            parts={},
        )

    return behaviour


def _startup(row: Row, timed: float) -> float:
    """Return the seconds of a COMPLETE row before it was timed."""
    seconds: float = row[SECONDS]
    return max(0.0, seconds - timed)


def _compilation(table: Table, row: Row, knobs: Knobs, timed: float) -> float:
    """Return the seconds for which the model of a row was compiled, at most its start-up."""
    plain = table.row({**knobs, **_UNCOMPILED})
    if plain is None or plain is row or plain[STATE] != COMPLETE:
        return _startup(row, timed)
    return max(0.0, _startup(row, timed) - _startup(plain, timed))


def _compiles_anew(launch: Launch) -> bool:
    """Return whether a warm worker compiles another graph than that of the trial before."""
    if launch.before is None or launch.knobs[_COMPILE.name] == _COMPILE.default:
        return False
    of_graph = (_COMPILE.name, *_COMPILE.made_for)
    return any(launch.knobs[name] != launch.before[name] for name in of_graph)


# Modifiers


def noisy(
    behaviour: Behaviour,
    *,
    run: float = 0.0,
    block: float = 0.0,
    interleaved: float | None = None,
) -> Behaviour:
    """Return a behaviour with run-to-run noise and block noise.

    Args:
        run: relative standard deviation between launches of one configuration.
        block: relative standard deviation between blocks within a launch.
        interleaved: like `run`, for interleaved launches; None: the same value.
    """
    beside = run if interleaved is None else interleaved

    def changed(launch: Launch) -> Answer:
        answer = behaviour(launch)
        sigma = beside if launch.request.interleaved else run
        rate = answer.rate * math.exp(launch.draw.gauss(0.0, sigma))
        return dataclasses.replace(answer, rate=rate, block_sigma=block)

    return changed
