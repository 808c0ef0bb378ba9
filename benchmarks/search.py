"""How many trials until the best configuration is found? Recorded tables, replayed for many samplers.

    python benchmarks/search.py --tables benchmarks/tables [--json] [--seeds N] [--samplers a,b]

A table (`autotune record`) holds a column per knob, then throughput, trial_seconds and state. A
sampler proposes a row, is told what was recorded of it, and the clock goes on by the recorded seconds.
The first trial is a baseline: with seed 0 the row nearest to the defaults of all knobs, with any other
seed a random one that reaches at most 70 % of the best, the same for every sampler. What is not in
the table is outside of the space: a proposal of it, like one that was made before, costs nobody
anything, and after a few in a row a random new row is taken instead. Optuna's samplers see numbers as
ordered. Nobody is told which rows run out of memory before it happens.

Tables named in BUILT_ON were looked at while our sampler was built; all others are held out.

That is the sampler alone. Whole studies, with opening, calibration, racing, stop rule and confirmation,
run over the same tables from the same baselines as `autotune simulate` runs them, noise included: after
how many trials do they end, and how far is what they recommend from the best row?
"""

import argparse
import json
import os
import random
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from autotune.search.performance_model import PerformanceModelSampler
from autotune.search.space import key
from autotune.spec import StudySpec
from autotune.standalone.simulation import Simulation, simulate
from launchers.tables import SECONDS, STATE, THROUGHPUT, read_origin, read_table
from search_spaces import CATALOGUE

BUILT_ON = ("gpt", "mlp", "images", "translation")
OURS = "model"
MOST = 60
LEVELS = {"5": 0.05, "2": 0.02}
_PATIENCE = {"gp": 3}  # it takes a second to answer, and then proposes much the same again
_USUAL_PATIENCE = 20
_ROOM = 0.7


class Table:
    """A recorded table: rows by configuration."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        found = read_table(path)
        self.names, self.values, self.best = found.names, found.values, found.best
        self.rows = {key({name: row[name] for name in self.names}): row for row in found.rows}

    def baseline(self, seed: int) -> dict[str, Any]:
        """What a user may have today: with seed 0 the row nearest to the defaults of all knobs, else a
        random one with room above it."""
        if seed:
            slow = [r for r in self.rows.values() if 0 < (r[THROUGHPUT] or 0) < _ROOM * self.best]
            complete = [r for r in self.rows.values() if r[STATE] == "COMPLETE"]
            drawn = random.Random(seed).choice(slow or complete)
            return {name: drawn[name] for name in self.names}

        def apart(row: Mapping[str, Any]) -> tuple[int, float]:
            if row[STATE] != "COMPLETE":
                return len(self.names) + 1, 0.0
            known = [name for name in self.names if name in CATALOGUE]
            other = [n for n in known if row[n] != CATALOGUE[n].default]
            return len(other), sum(self._rank_distance(n, row[n]) for n in other)

        nearest = min(self.rows.values(), key=apart)
        return {name: nearest[name] for name in self.names}

    def _rank_distance(self, name: str, value: Any) -> float:
        default = CATALOGUE[name].default
        if isinstance(value, bool) or not isinstance(value, int | float):
            return 0.0
        return abs(float(np.log2(max(value, 1e-3)) - np.log2(max(float(default), 1e-3))))


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


# What proposes: a sampler, and how it sees the table.


def _ours(seed: int, table: Table) -> BaseSampler:
    distributions = {name: CategoricalDistribution(v) for name, v in table.values.items()}
    return PerformanceModelSampler(
        seed, distributions, allowed=lambda _: lambda params: key(params) in table.rows
    )


SAMPLERS: dict[str, Callable[[int, Table], BaseSampler]] = {
    OURS: _ours,
    "tpe": lambda seed, _: optuna.samplers.TPESampler(seed=seed),
    "gp": lambda seed, _: optuna.samplers.GPSampler(seed=seed, deterministic_objective=False),
    "cmaes": lambda seed, _: optuna.samplers.CmaEsSampler(seed=seed),
    "random": lambda seed, _: optuna.samplers.RandomSampler(seed=seed),
    "grid": lambda seed, table: optuna.samplers.GridSampler(_indices(table), seed=seed),
}


def _indices(table: Table) -> dict[str, list[Any]]:
    return {
        name: list(range(len(values))) if _numeric(values) else list(values)
        for name, values in table.values.items()
    }


def _distributions(name: str, table: Table) -> dict[str, BaseDistribution]:
    if name == OURS:
        return {knob: CategoricalDistribution(v) for knob, v in table.values.items()}
    return {
        knob: IntDistribution(0, len(v) - 1) if _numeric(v) else CategoricalDistribution(v)
        for knob, v in table.values.items()
    }


def _to_values(table: Table, params: Mapping[str, Any], *, ours: bool) -> dict[str, Any]:
    if ours:
        return dict(params)
    return {n: table.values[n][v] if _numeric(table.values[n]) else v for n, v in params.items()}


def _to_params(table: Table, values: Mapping[str, Any], *, ours: bool) -> dict[str, Any]:
    if ours:
        return dict(values)
    return {
        n: table.values[n].index(v) if _numeric(table.values[n]) else v for n, v in values.items()
    }


@dataclass(frozen=True)
class Course:
    """One replay: trials and seconds to each level (None: missed), failed trials until the last."""

    trials: dict[str, int | None]
    seconds: dict[str, float | None]
    infeasible: int


def replay(path: str, sampler: str, seed: int) -> Course:
    """Until a row within the lowest level of the best, or MOST trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    table, ours = Table(Path(path)), sampler == OURS
    study = optuna.create_study(direction="maximize", sampler=SAMPLERS[sampler](seed, table))
    distributions = _distributions(sampler, table)
    study.enqueue_trial(_to_params(table, table.baseline(seed), ours=ours))
    generator = random.Random(seed)
    seen: set[Any] = set()
    clock, infeasible = 0.0, 0
    trials: dict[str, int | None] = dict.fromkeys(LEVELS)
    seconds: dict[str, float | None] = dict.fromkeys(LEVELS)
    while len(seen) < min(MOST, len(table.rows)) and None in trials.values():
        trial, row = _next(study, distributions, table, seen, sampler, generator)
        clock += row[SECONDS]
        _tell(study, trial, row)
        infeasible += row[STATE] != "COMPLETE"
        for level, share in LEVELS.items():
            if trials[level] is None and (row[THROUGHPUT] or 0.0) >= (1 - share) * table.best:
                trials[level], seconds[level] = len(seen), clock
    return Course(trials, seconds, infeasible)


def _next(
    study: optuna.Study,
    distributions: dict[str, BaseDistribution],
    table: Table,
    seen: set[Any],
    sampler: str,
    generator: random.Random,
) -> tuple[optuna.Trial, Mapping[str, Any]]:
    ours = sampler == OURS
    for _ in range(_PATIENCE.get(sampler, _USUAL_PATIENCE)):
        trial = study.ask(distributions)
        values = _to_values(table, trial.params, ours=ours)
        if key(values) in table.rows and key(values) not in seen:
            break
        study.tell(trial, state=TrialState.FAIL)
    else:
        left = [row for known, row in table.rows.items() if known not in seen]
        drawn = generator.choice(left)
        values = {name: drawn[name] for name in table.names}
        study.enqueue_trial(_to_params(table, values, ours=ours))
        trial = study.ask(distributions)
    seen.add(key(values))
    return trial, table.rows[key(values)]


def _tell(study: optuna.Study, trial: optuna.Trial, row: Mapping[str, Any]) -> None:
    trial.set_constraint("out_of_memory", 1.0 if row[STATE] == "OOM" else -1.0)
    if row[STATE] == "COMPLETE":
        study.tell(trial, row[THROUGHPUT])
    else:
        study.tell(trial, state=TrialState.PRUNED if row[STATE] == "OOM" else TrialState.FAIL)


# Whole studies


def study(path: str, seed: int) -> Simulation:
    """One of MOST trials at most, from the baseline of that seed, with its finals."""
    warnings.simplefilter("ignore")
    own = read_origin(Path(path)).study
    baseline = {**own.get("baseline", {}), **Table(Path(path)).baseline(seed)}
    changes = {"baseline": baseline, "budget": {"trials": MOST}}
    return simulate(Path(path), StudySpec.model_validate({**own, **changes}), seed)


def summary_of_studies(found: Sequence[Simulation]) -> dict[str, Any]:
    """Medians over seeds; a study without a recommendation falls short of everything."""
    shortfalls = [1.0 if s.shortfall is None else s.shortfall for s in found]
    return {
        "median_trials": statistics.median(s.trials for s in found),
        "median_launches": statistics.median(s.launches for s in found),
        "median_seconds": statistics.median(s.seconds for s in found),
        "median_shortfall": statistics.median(shortfalls),
        "worst_shortfall": max(shortfalls),
        "verdicts": dict(Counter(s.verdict for s in found)),
    }


# Figures


def summary(courses: Sequence[Course]) -> dict[str, Any]:
    """Median and 90th percentile over seeds; a miss counts as one trial more than the most."""
    found: dict[str, Any] = {}
    for level in LEVELS:
        trials = [course.trials[level] or MOST + 1 for course in courses]
        reached = [s for c in courses if (s := c.seconds[level]) is not None]
        found[f"within_{level}_percent"] = {
            "median_trials": statistics.median(trials),
            "p90_trials": float(np.quantile(trials, 0.9, method="higher")),
            "median_seconds": statistics.median(reached) if reached else None,
            "misses": sum(course.trials[level] is None for course in courses),
        }
    found["infeasible_launched"] = statistics.mean(course.infeasible for course in courses)
    return found


def compare(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Ours against the best of the others: median trials to within 2 %, and failures against TPE's."""
    ratios, failures = [], []
    for samplers in tables.values():
        medians = {n: found["within_2_percent"]["median_trials"] for n, found in samplers.items()}
        others = [median for name, median in medians.items() if name != OURS]
        if OURS in medians and others:
            ratios.append(min(others) / medians[OURS])
        if {OURS, "tpe"} <= set(samplers) and samplers["tpe"]["infeasible_launched"]:
            ours, theirs = (samplers[n]["infeasible_launched"] for n in (OURS, "tpe"))
            failures.append(ours / theirs)
    return {
        "times_fewer_trials_than_best_of_optuna": statistics.mean(ratios) if ratios else None,
        "infeasible_launched_over_tpe": statistics.mean(failures) if failures else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=Path, default=Path(__file__).parent / "tables")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--studies", type=int, default=3, help="seeds of whole studies; 0: none")
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    paths = [p for p in sorted(arguments.tables.glob("*.csv")) if not p.stem.endswith(".runs")]
    names = arguments.samplers.split(",")
    if not paths or not set(names) <= set(SAMPLERS):
        parser.error(f"no table in {arguments.tables}, or not a sampler: {arguments.samplers}")
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = [
        (str(p), name, seed) for p in paths for name in names for seed in range(arguments.seeds)
    ]
    whole = [(str(p), seed) for p in paths for seed in range(arguments.studies)]
    with ProcessPoolExecutor() as pool:
        courses = list(pool.map(replay, *zip(*jobs, strict=True)))
        studies = list(pool.map(study, *zip(*whole, strict=True))) if whole else []
    found: dict[str, dict[str, Any]] = {path.stem: {} for path in paths}
    for path in paths:
        for name in names:
            own = [c for c, job in zip(courses, jobs, strict=True) if job[:2] == (str(path), name)]
            found[path.stem][name] = summary(own)
    of_studies = {
        path.stem: summary_of_studies(
            [s for s, job in zip(studies, whole, strict=True) if job[0] == str(path)]
        )
        for path in paths
        if whole
    }
    report = {
        "seeds": arguments.seeds,
        "built_on": {n: found[n] for n in found if n in BUILT_ON},
        "held_out": {n: found[n] for n in found if n not in BUILT_ON},
        "comparison": {
            "built_on": compare({n: found[n] for n in found if n in BUILT_ON}),
            "held_out": compare({n: found[n] for n in found if n not in BUILT_ON}),
        },
        "whole_studies": of_studies,
    }
    print(json.dumps(report, indent=2) if arguments.json else _shown(found, report))


def _shown(found: Mapping[str, Mapping[str, Any]], report: Mapping[str, Any]) -> str:
    lines = [
        f"{'table':12} {'sampler':18} {'trials to 5 %':>14} {'to 2 %':>14} {'missed':>7} {'failed':>7}"
    ]
    for table, samplers in found.items():
        for sampler, figures in samplers.items():
            five, two = figures["within_5_percent"], figures["within_2_percent"]
            lines.append(
                f"{table:12} {sampler:18} "
                + " ".join(
                    f"{f['median_trials']:6.1f} p90 {f['p90_trials']:3.0f}" for f in (five, two)
                )
                + f" {two['misses']:7d} {figures['infeasible_launched']:7.1f}"
            )
    lines.append(json.dumps(report["comparison"]))
    for table, figures in report["whole_studies"].items():
        lines.append(
            f"{table:12} whole studies: {figures['median_trials']:g} trials, "
            f"{figures['median_seconds']:.0f} s, {figures['median_shortfall']:.1%} below the best row "
            f"(worst {figures['worst_shortfall']:.1%}), {figures['verdicts']}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
