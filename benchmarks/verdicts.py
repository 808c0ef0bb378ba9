"""Is the sentence of a verdict true? The finals of many studies whose truth is known.

    python benchmarks/verdicts.py [--json] [--studies 2000] [--rounds 10] [--only NAME ...]

Each study has searched the twelve configurations of two knobs, each seen once. From there on it goes
through the classes that every study goes through: `analysis.confirmation` draws the finalists from
the records of the search, says what each round measures and when that is enough, and
`analysis.verdict` concludes. Only the runs are made up: logarithms of rates are normal around the
truth, with a part that all runs of a round share, which says nothing. No launcher stands between, as
a study over the replaying one takes half a second, and these are tens of thousands. One thing is left
out: before the chosen one is measured alone, a study takes changes back that bring nothing, which takes
runs that are not counted here, and gives away less than 0.5 % with a chance of 10 %.

`false_better` is the share of studies that recommend as better what is not. An interval covers if the
true ratio of the two configurations that it compares lies within. `near_best`: the share whose
recommendation is within 2 % of the fastest configuration there is. `denied`: the share that says that no
finalist is more than 2 % faster than the baseline, where one is. With each share comes its 95 %
interval (Clopper and Pearson 1934). At the end `better` of cells with a gain is pooled by power, the
share of their studies that say it: where that is rare, it is said of runs that were lucky, and fewer
intervals hold the truth.
"""

import argparse
import functools
import itertools
import json
import math
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from autotune.analysis.conclusion import conclude
from autotune.analysis.confirmation import Confirmation
from autotune.analysis.confirmation_result import result_of
from autotune.analysis.finalists import Selection
from autotune.analysis.gate import GateRecord
from autotune.analysis.policy import PROOF
from autotune.analysis.rounds import replay
from autotune.analysis.verdict import Kind
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt

STUDIES = 2000
NEAR = 0.02
_SECONDS_PER_RUN = 20.0
_BLOCKS = 30
_SHARED = 2.0
"""Scatter that all runs of a round share, as a multiple of that between runs."""
_WITHIN = 0.2
"""Noise that the blocks of a run show, as a multiple of that between runs."""

BUCKETS, LOGGING = (25, 50, 100, 5), (10, 50, 1)
"""Values of `bucket_cap_mb` and `log_interval`; the baseline has the first of each."""


@dataclass(frozen=True)
class World:
    """Truth of a study, and how well it shows.

    Attributes:
        name: of the cell.
        gain: of the best configuration over the baseline, logarithm.
        sigma: relative standard deviation of equal runs.
        drift: change of all rates from one run to the next.
        hiccups: share of blocks that take 1.6 times as long.
        uneven: the noise of each configuration is half, once or twice sigma.
        redundant: each of two knobs brings the whole gain, and both no more.
    """

    name: str
    gain: float
    sigma: float
    drift: float = 0.0
    hiccups: float = 0.0
    uneven: bool = False
    redundant: bool = False

    def truth(self, bucket: int, logging: int) -> float:
        """Logarithm of the rate of a configuration over the baseline's."""
        if not self.gain:
            return 0.0
        best = {25: 0.0, 50: self.gain, 100: self.gain - 0.01, 5: -0.03}
        if self.redundant:
            return max(best[bucket], {10: 0.0, 50: self.gain, 1: -0.01}[logging])
        return best[bucket] + {10: 0.0, 50: 0.0, 1: -0.01}[logging]


_POWERS = (0, 5, 50, 100)
"""Shares of studies that say `better`, in per cent, by which cells are pooled."""
SIGMAS, GAINS = (0.003, 0.01, 0.03, 0.08), (0.005, 0.01, 0.02, 0.05)
_EVENTS: dict[str, dict[str, Any]] = {
    "drift": {"drift": -0.001},
    "hiccups": {"hiccups": 0.1},
    "uneven": {"uneven": True},
}
WORLDS = [
    *(World(f"equal, sigma {s:.1%}", 0.0, s) for s in SIGMAS),
    *(World(f"gain {g:.1%}, sigma {s:.1%}", g, s) for g, s in itertools.product(GAINS, SIGMAS)),
    *(
        World(f"{name}, gain {gain:.0%}, sigma 1.0%", gain, 0.01, **event)
        for name, event in _EVENTS.items()
        for gain in (0.0, 0.02)
    ),
    *(
        World(f"redundant, gain {gain:.0%}, sigma 1.0%", gain, 0.01, redundant=True)
        for gain in (0.02, 0.05)
    ),
    World("drift and hiccups, gain 2%, sigma 1.0%", 0.02, 0.01, drift=-0.001, hiccups=0.1),
]


@dataclass(frozen=True)
class Found:
    """Conclusion of one study.

    Attributes:
        better: it recommends another configuration than the baseline, as faster.
        true: and that is so.
        covers: whether the interval that it prints holds the truth; None where it prints none.
        width: of that interval, half of it, in logarithms.
        near: what it recommends is within 2 % of the best.
        denied: it says that no finalist is more than 2 % faster, and one is.
        rounds: that it took.
        runs: in all of them.
    """

    better: bool
    true: bool
    covers: bool | None
    width: float
    near: bool
    denied: bool
    rounds: int
    runs: int


class Machine:
    """Runs configurations of a world."""

    def __init__(self, world: World, generator: np.random.Generator) -> None:
        self._world = world
        self.generator = generator
        self.spread = {
            pair: world.sigma * (generator.choice([0.5, 1.0, 2.0]) if world.uneven else 1.0)
            for pair in itertools.product(BUCKETS, LOGGING)
        }
        self.runs = 0

    def rate(self, pair: tuple[int, int], shared: float = 0.0) -> float:
        """Return the rate of one more run."""
        world, draw = self._world, self.generator
        self.runs += 1
        slow = 0.6 * draw.binomial(_BLOCKS, world.hiccups) / _BLOCKS
        level = world.truth(*pair) + world.drift * self.runs + shared
        return 100.0 * math.exp(level + draw.normal(0.0, self.spread[pair])) / (1.0 + slow)

    def shared(self) -> float:
        """Draw the deviation that all runs of a round share."""
        return float(self.generator.normal(0.0, _SHARED * self._world.sigma))


def study(world: World, seed: int, *, finalists: int, rounds: int) -> Found:
    """One study, from what its search has seen to its verdict."""
    machine = Machine(world, np.random.default_rng([zlib.crc32(world.name.encode()), seed]))
    attempts = searched(machine, world)
    before = machine.runs
    confirmation = replay(attempts, Selection(finalists), rounds)
    assert confirmation is not None
    pairs = {trial: _pair(c.knobs) for trial, c in confirmation.candidates.items()}
    taken = 0
    while not confirmation.decided():
        shared = machine.shared()
        members = list(confirmation.members())
        machine.generator.shuffle(members)
        confirmation.close_round({t: machine.rate(pairs[t], shared) for t in members})
        taken += 1
    return _judged(world, confirmation, pairs, taken, machine.runs - before)


def searched(machine: Machine, world: World) -> Attempts:
    """Every configuration once, the baseline three times."""
    blocks, runs = _WITHIN * world.sigma * 1.96, world.sigma * 1.96
    several = [*itertools.product(BUCKETS, LOGGING)]
    order = [(0, several[0], Purpose.SEARCH), *[(0, several[0], Purpose.CALIBRATE)] * 2]
    order += [(trial, pair, Purpose.SEARCH) for trial, pair in enumerate(several) if trial]
    attempts = [
        StoredAttempt(
            number,
            trial,
            purpose,
            0,
            1,
            _knobs(pair),
            number * _SECONDS_PER_RUN,
            (number + 1) * _SECONDS_PER_RUN,
            AttemptResult(
                AttemptState.COMPLETE,
                throughput=machine.rate(pair),
                half_width=math.hypot(blocks, runs),
                block_half_width=blocks,
                sigma_run=world.sigma,
                peak_bytes=1 << 30,
            ),
        )
        for number, (trial, pair, purpose) in enumerate(order, 1)
    ]
    return Attempts(attempts, _knobs(several[0]))


def _knobs(pair: tuple[int, int]) -> dict[str, Any]:
    return {**defaults(), "bucket_cap_mb": pair[0], "log_interval": pair[1]}


def _pair(knobs: dict[str, Any]) -> tuple[int, int]:
    return knobs["bucket_cap_mb"], knobs["log_interval"]


def _judged(
    world: World,
    confirmation: Confirmation,
    pairs: dict[int, tuple[int, int]],
    rounds: int,
    runs: int,
) -> Found:
    verdict = conclude(result_of(confirmation), 2, GateRecord())
    best = max(world.truth(*pair) for pair in itertools.product(BUCKETS, LOGGING))
    assert verdict.trial is not None
    chosen = world.truth(*pairs[verdict.trial])
    shown, compared = verdict.speedup, chosen
    if verdict.contender is not None:
        shown, compared = verdict.contender.gain, world.truth(*pairs[verdict.contender.trial])
    better = verdict.kind == Kind.BETTER
    printed = shown if shown and shown.low < shown.high else None
    return Found(
        better=better,
        true=better and chosen > 0,
        covers=None if printed is None else printed.low <= math.exp(compared) <= printed.high,
        width=math.log(printed.high / printed.low) / 2 if printed and printed.low > 0 else math.nan,
        near=chosen >= best - NEAR,
        denied=verdict.kind == Kind.NOTHING_BETTER
        and max(world.truth(*pair) for pair in pairs.values()) > math.log1p(PROOF.alike_distance),
        rounds=rounds,
        runs=runs,
    )


def cell(world: World, studies: int, *, finalists: int, rounds: int) -> dict[str, Any]:
    """So many studies of a world."""
    return summary(
        world,
        [study(world, seed, finalists=finalists, rounds=rounds) for seed in range(studies)],
    )


def summary(world: World, found: Sequence[Found]) -> dict[str, Any]:
    """Return the shares, in per cent, of what studies of a world have found."""
    better = [one for one in found if one.better]
    printed = [one for one in found if one.covers is not None]
    return {
        "world": world.name,
        "studies": len(found),
        "better": _share([one.better for one in found]),
        "false_better": _share([one.better and not one.true for one in found]),
        "coverage": _share([bool(one.covers) for one in printed]),
        "coverage_given_better": _share([bool(one.covers) for one in better]),
        "half_width": _percent(_median([one.width for one in better])),
        "near_best": _share([one.near for one in found]),
        "denied": _share([one.denied for one in found]),
        "rounds": _mean([one.rounds for one in found]),
        "runs": _mean([one.runs for one in found]),
    }


def by_power(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many intervals of `better` hold the truth where there is a gain, by cells' power."""
    gains = {world.name: world.gain for world in WORLDS}
    rows = []
    for low, high in itertools.pairwise(_POWERS):
        own = [c for c in cells if gains[c["world"]] and low < c["better"]["share"] <= high]
        counts = [(c, round(c["better"]["share"] / 100 * c["studies"])) for c in own]
        better = sum(count for _, count in counts)
        hold = sum(round(c["coverage_given_better"]["share"] / 100 * n) for c, n in counts)
        rows.append({"power": [low, high], "cells": len(own), "better": better, "hold": hold})
    return rows


def _share(several: Sequence[bool]) -> dict[str, float | None] | None:
    """With its interval; None where there is nothing to count."""
    if not several:
        return None
    low, high = interval(sum(several), len(several))
    return {
        "share": _percent(sum(several) / len(several)),
        "low": _percent(low),
        "high": _percent(high),
    }


def interval(hits: int, count: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a probability (Clopper and Pearson 1934)."""
    low = float(special.betaincinv(hits, count - hits + 1, 0.025)) if hits else 0.0
    high = float(special.betaincinv(hits + 1, count - hits, 0.975)) if hits < count else 1.0
    return low, high


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def _mean(several: Sequence[float]) -> float:
    return round(sum(several) / len(several), 2)


def _median(several: Sequence[float]) -> float | None:
    return float(np.median(several)) if several else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=STUDIES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--finalists", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names of cells")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    worlds = [world for world in WORLDS if world.name.startswith(tuple(given.only))]
    measure = functools.partial(
        cell, studies=given.studies, finalists=given.finalists, rounds=given.rounds
    )
    with ProcessPoolExecutor(given.processes) as pool:
        cells = list(pool.map(measure, worlds))
    if given.json:
        settings = {"rounds": given.rounds, "finalists": given.finalists}
        print(json.dumps({**settings, "cells": cells, "by_power": by_power(cells)}, indent=2))
        return
    for one in cells:
        print("  ".join(f"{name} {_written(value)}" for name, value in one.items()))
    for row in by_power(cells):
        low, high = row["power"]
        print(
            f"`better` in over {low} to {high} % of studies of a gain, {row['cells']} cells: "
            f"{row['hold']} of {row['better']} intervals hold the truth"
        )


def _written(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return f"{value['share']} ({value['low']} to {value['high']})"


if __name__ == "__main__":
    main()
