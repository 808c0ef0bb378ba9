"""Courses of samplers over recorded tables, and what figures they give."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.standalone.simulation import Simulation

OURS = "model"
MOST = 60
LEVELS = {"5": 0.05, "2": 0.02}
REGRETS = (10, 20, 30)
_RESAMPLED = 2000


@dataclass
class Course:
    """One replay.

    Attributes:
        trials: to each level; None: missed.
        seconds: the same on the clock of the table.
        infeasible: trials that failed.
        regret: after each trial, how far the row that was seen fastest is from the best.
        stated: ours: after each trial until it stops, what it expects to be left beyond the
            finalists, and what is left.
        stopped: ours: after so many trials it would have stopped; None: not in the trials replayed.
    """

    table: str
    sampler: str
    opening: str
    seed: int
    trials: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(LEVELS))
    seconds: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(LEVELS))
    infeasible: int = 0
    regret: list[float] = field(default_factory=list)
    stated: list[tuple[int, float, float]] = field(default_factory=list)
    stopped: int | None = None

    @property
    def done(self) -> bool:
        """True if everything that is waited for has happened, of ours its stop as well."""
        stops = self.stopped is not None or self.sampler != OURS
        return stops and len(self.regret) >= max(REGRETS) and None not in self.trials.values()

    @property
    def left(self) -> float | None:
        """Ours: what was left when it stopped."""
        return next((true for at, _, true in self.stated if at == self.stopped), None)


def summary(courses: Sequence[Course]) -> dict[str, Any]:
    """Return the figures of a sampler's courses over one table."""
    found: dict[str, Any] = {}
    for level in LEVELS:
        trials = _restricted(courses, level)
        reached = [s for c in courses if (s := c.seconds[level]) is not None]
        found[f"within_{level}_percent"] = {
            "geometric_mean": round(statistics.geometric_mean(trials), 2),
            "median_trials": statistics.median(trials),
            "p90_trials": float(np.quantile(trials, 0.9, method="higher")),
            "median_seconds": statistics.median(reached) if reached else None,
            "misses": sum(course.trials[level] is None for course in courses),
        }
    found["mean_regret"] = {
        str(at): round(statistics.mean(c.regret[min(at, len(c.regret)) - 1] for c in courses), 4)
        for at in REGRETS
    }
    found["infeasible_launched"] = statistics.mean(course.infeasible for course in courses)
    return found


def stops(courses: Sequence[Course]) -> dict[str, Any]:
    """When ours stops, and what is left then."""
    stopped = [c for c in courses if c.stopped is not None]
    left = [c.left or 0.0 for c in stopped]
    if not stopped:
        return {"stopped": 0, "courses": len(courses)}
    return {
        "stopped": len(stopped),
        "courses": len(courses),
        "median_trials": statistics.median(c.stopped or 0 for c in stopped),
        "share_with_more_than_2_percent_left": round(
            statistics.mean(share > LEVELS["2"] for share in left), 3
        ),
        "mean_left": round(statistics.mean(left), 4),
        "worst_left": round(max(left), 4),
    }


_STATED = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, math.inf)


def calibration(courses: Iterable[Course]) -> list[dict[str, float]]:
    """Return the expected and the true gain that is left beyond the finalists."""
    pairs = [(stated, true) for course in courses for _, stated, true in course.stated]
    rows = []
    for low, high in itertools.pairwise(_STATED):
        own = [(stated, true) for stated, true in pairs if low <= stated < high]
        if own:
            rows.append(
                {
                    "stated_from": low,
                    "times": len(own),
                    "mean_stated": round(statistics.mean(stated for stated, _ in own), 4),
                    "mean_true": round(statistics.mean(true for _, true in own), 4),
                    "share_with_more_than_2_percent": round(
                        statistics.mean(true > LEVELS["2"] for _, true in own), 3
                    ),
                }
            )
    return rows


def compare(courses: Sequence[Course], level: str = "2") -> dict[str, Any]:
    """Return how many times the trials of ours each other sampler takes, from the same openings.

    It is the geometric mean over tables and seeds, with its 95 % interval.
    """
    trials = {(c.table, c.sampler, c.opening, c.seed): _restricted([c], level)[0] for c in courses}
    found = {}
    for other in dict.fromkeys(c.sampler for c in courses if c.sampler != OURS):
        ratios: dict[str, list[float]] = {}
        for (table, sampler, opening, seed), own in trials.items():
            if sampler == OURS and (table, other, opening, seed) in trials:
                theirs = trials[table, other, opening, seed]
                ratios.setdefault(table, []).append(math.log(theirs / own))
        if ratios:
            low, high = _bootstrap(list(ratios.values()))
            mean = statistics.mean(map(statistics.mean, ratios.values()))
            found[other] = {
                "times_the_trials": round(math.exp(mean), 2),
                "interval": [round(math.exp(low), 2), round(math.exp(high), 2)],
                "tables": {t: round(math.exp(statistics.mean(r)), 2) for t, r in ratios.items()},
            }
    return found


def by_launch(found: Mapping[tuple[str, str, int, float, bool], float]) -> list[dict[str, Any]]:
    """Return, for each table and launch, the seconds and what not knowing the price of trials costs.

    They are geometric means; the second is a factor with its 95 % interval.
    """
    rows = []
    for table, launch in dict.fromkeys((table, launch) for table, _, _, launch, _ in found):
        own = {case: took for case, took in found.items() if (case[0], case[3]) == (table, launch)}
        pairs = [(took, own[*case[:4], False]) for case, took in own.items() if case[4]]
        ratios = [math.log(without / with_) for with_, without in pairs]
        low, high = _bootstrap([ratios])
        rows.append(
            {
                "table": table,
                "launch": launch,
                "seconds_with_cost": round(statistics.geometric_mean(p[0] for p in pairs), 1),
                "seconds_without": round(statistics.geometric_mean(p[1] for p in pairs), 1),
                "times": round(math.exp(statistics.mean(ratios)), 2),
                "interval": [round(math.exp(low), 2), round(math.exp(high), 2)],
            }
        )
    return rows


def _bootstrap(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % interval of the mean of the groups' means: groups drawn again, and members within them."""
    draw = np.random.default_rng(0)
    arrays = [np.array(group) for group in groups]
    means = []
    for _ in range(_RESAMPLED):
        chosen = [arrays[index] for index in draw.integers(0, len(arrays), len(arrays))]
        means.append(np.mean([draw.choice(one, len(one)).mean() for one in chosen]))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _restricted(courses: Iterable[Course], level: str) -> list[int]:
    return [course.trials[level] or MOST + 1 for course in courses]


def summary_of_studies(found: Sequence[Simulation]) -> dict[str, Any]:
    """Return figures over seeds; a study without a recommendation falls short of everything."""
    shortfalls = [1.0 if s.shortfall is None else s.shortfall for s in found]
    return {
        "median_trials": statistics.median(s.trials for s in found),
        "median_launches": statistics.median(s.launches for s in found),
        "median_seconds": statistics.median(s.seconds for s in found),
        "median_shortfall": statistics.median(shortfalls),
        "mean_shortfall": round(statistics.mean(shortfalls), 4),
        "share_with_more_than_2_percent_left": round(
            statistics.mean(share > LEVELS["2"] for share in shortfalls), 3
        ),
        "worst_shortfall": max(shortfalls),
        "verdicts": dict(Counter(s.verdict for s in found)),
    }
