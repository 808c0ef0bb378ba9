"""Number of trials until the best configuration is found, on recorded tables, for many samplers.

    python benchmarks/search.py [--tables DIR] [--anonymous] [--json] [--seeds N] [--samplers a,b]

A table (`autotune record`) holds a column per knob, then throughput, trial_seconds and state; beside it
lie all runs. What a row is worth is told by partial pooling (benchmarks/denoised.py), and that is what
counts; what a sampler is told of it is that and the deviation of one of the table's runs, drawn anew
in every course, as a live trial is one run. The clock goes on by the row's seconds. The first trial is
a baseline: with seed 0 the row nearest to the defaults of all knobs, with any other seed a random one
that reaches at most 70 % of the best.
The second is, in one half of the replays (`expert`), what our sampler suggests once it has seen the
baseline, in the other (`random`) a random row: both are the same for every sampler. What is not in the
table is outside of the space: a proposal of it, like one that was made before, costs nothing,
and after a few in a row a random new row is taken instead. Optuna's samplers see numbers as ordered.
No sampler is told which rows run out of memory before it happens. With --anonymous every knob but
micro_batch and accumulation_steps has a name that means nothing; with --noise 0.01 the deviations are
those of 1 %, as on a machine that is not shared.

Counted are the trials until a row within 2 % (5 %) of the best is tried, and how far the row that was
seen fastest is from the best after 10, 20 and 30 trials. Ours says as well when to stop, and how much it
expects to be left beyond the three rows that would be measured again then: how much is?

With --launch 0.1 10 120 ours goes over the tables on one slot as well, on which a trial takes a launch
of so many seconds, unless it can live in the processes of the one before: how many seconds until a row
within 2 % is tried, if it knows what the next trial costs, and if it does not?

Averages are geometric; their 95 % intervals come from a bootstrap over tables, and seeds within tables.
A miss counts as one trial more than the most. Tables named in BUILT_ON were looked at while our sampler
was built; all others are held out.

That is the sampler alone. Whole studies, with opening, calibration, racing, stop rule and confirmation,
run over the same tables from the same baselines as `autotune simulate` runs them, every run drawn
around what the row is worth: after how many trials do they end, and how far is what they recommend from
the best?
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from clock import Clock
from courses import (
    LEVELS,
    MOST,
    OURS,
    REGRETS,
    Course,
    by_launch,
    calibration,
    compare,
    stops,
    summary,
    summary_of_studies,
)
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from recorded import Table

from autotune.config import StudySpec
from autotune.search.performance_model import PerformanceModelSampler
from autotune.search.space import key
from autotune.search.trial_attributes import attributes_of, constraints_of
from autotune.standalone.simulation import Simulation, simulate
from autotune.study.stopping import ExpectedGainStopping, TrialEconomics
from launchers.replay.tables import (
    SECONDS,
    STATE,
    Row,
    read_origin,
)
from search_spaces import CATALOGUE

BUILT_ON = ("gpt", "mlp", "images", "translation")
OPENINGS = ("expert", "random")
_MOST_PRICED = 200
_PATIENCE = {"gp": 3}  # it takes a second to answer, and then proposes much the same again
_USUAL_PATIENCE = 20
_NORMAL_95 = 1.96
_STAKES = TrialEconomics(expected_job_hours=168.0, rounds=10)
"""Economics of a study that says nothing of them."""


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


# What proposes: a sampler, and how it sees the table.


def _ours(seed: int, table: Table) -> PerformanceModelSampler:
    distributions = {name: CategoricalDistribution(v) for name, v in table.values.items()}
    return PerformanceModelSampler(seed, distributions, partial(_new, table))


def _new(table: Table, trials: list[FrozenTrial]) -> Callable[[Mapping[str, Any]], bool]:
    """Return the filter of parameters that are in a table and were not tried, as in a study."""
    tried = {key(trial.params) for trial in trials if trial.state != TrialState.WAITING}
    new = table.rows.keys() - tried
    return lambda params: key(params) in new


SAMPLERS: dict[str, Callable[[int, Table], BaseSampler]] = {
    OURS: _ours,
    "tpe": lambda seed, _: optuna.samplers.TPESampler(seed=seed),
    "gp": lambda seed, _: optuna.samplers.GPSampler(seed=seed, deterministic_objective=False),
    "random": lambda seed, _: optuna.samplers.RandomSampler(seed=seed),
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


class _Replay:
    def __init__(self, table: Table, sampler: str, opening: str, seed: int) -> None:
        self._table, self._ours, self._seed = table, sampler == OURS, seed
        self._course = Course(table.name, sampler, opening, seed)
        self._study = optuna.create_study(
            direction="maximize", sampler=SAMPLERS[sampler](seed, table)
        )
        self._distributions = _distributions(sampler, table)
        self._draw = random.Random(seed)
        self._seen: set[Any] = set()
        self._seconds: list[float] = []
        self._model = _ours(seed, table) if self._ours else None
        for params in _opening(table, opening, seed):
            self._study.enqueue_trial(_to_params(table, params, ours=self._ours))

    def run(self) -> Course:
        """Until all has happened that is waited for, or MOST trials."""
        table, course, clock, fastest = self._table, self._course, 0.0, (0.0, 0.0)
        while len(self._seen) < min(MOST, len(table.rows)) and not course.done:
            trial, row = self._next()
            clock += row[SECONDS]
            self._seconds.append(row[SECONDS])
            served = self._tell(trial, row)
            course.infeasible += served is None
            worth = table.worth(row)
            fastest = max(fastest, (served or 0.0, worth))
            course.regret.append(1 - fastest[1])
            for level, share in LEVELS.items():
                if course.trials[level] is None and worth >= 1 - share:
                    course.trials[level], course.seconds[level] = len(self._seen), clock
            if self._model and course.stopped is None:
                self._look(self._model)
        return course

    def _look(self, model: PerformanceModelSampler) -> None:
        trials = self._study.get_trials(deepcopy=False)
        found = model.predict(trials, self._distributions)
        if found is None:
            return
        measured = len(self._seen)
        table = self._table
        left = 1 - max(table.worth(table.rows[key(params)]) for params in found.finalists)
        self._course.stated.append((measured, found.left, left))
        worth = ExpectedGainStopping(_STAKES, lambda some: model.predict(some, self._distributions))
        if worth.why_enough(trials, statistics.median(self._seconds), self._table.noise):
            self._course.stopped = measured

    def _next(self) -> tuple[optuna.Trial, Row]:
        table, ours = self._table, self._ours
        for _ in range(_PATIENCE.get(self._course.sampler, _USUAL_PATIENCE)):
            trial = self._study.ask(self._distributions)
            values = _to_values(table, trial.params, ours=ours)
            if key(values) in table.rows and key(values) not in self._seen:
                break
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            left = [
                configuration for configuration in table.rows if configuration not in self._seen
            ]
            values = dict(self._draw.choice(left))
            self._study.enqueue_trial(_to_params(table, values, ours=ours))
            trial = self._study.ask(self._distributions)
        self._seen.add(key(values))
        return trial, table.rows[key(values)]

    def _tell(self, trial: optuna.Trial, row: Row) -> float | None:
        """Tell the sampler the result of a row; return the rate that it is told."""
        ran = self._table.ran(row)
        noise = _NORMAL_95 * self._table.noise if ran else None
        for name, attribute in attributes_of(row[STATE], half_width=noise).items():
            trial.set_user_attr(name, attribute)
        for name, constraint in constraints_of(row[STATE]).items():
            trial.set_constraint(name, constraint)
        if ran:
            # The run that a row shows in a replay depends on the seed alone, not on the sampler.
            served = self._table.served(row, random.Random(f"{self._seed}/{self._names(row)}"))
            self._study.tell(trial, served)
            return served
        pruned = row[STATE] == "OOM"
        self._study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        return None

    def _names(self, row: Row) -> str:
        return "/".join(str(value) for name, value in sorted(row.items()) if name in CATALOGUE)


class _OneSlot(_Replay):
    """Replay of our sampler by the clock of a slot."""

    def __init__(self, table: Table, opening: str, seed: int, launch: float, priced: bool) -> None:
        super().__init__(table, OURS, opening, seed)
        self._clock = Clock(launch, table.known_as)
        if priced:
            self._study.sampler.price(self._clock.expected)

    def seconds(self) -> float:
        """Return the seconds until a row within 2 % is tried, or all of very many are."""
        while len(self._seen) < min(_MOST_PRICED, len(self._table.rows)):
            trial, row = self._next()
            worked = self._tell(trial, row) is not None
            self._clock.ran(self._table.shown(row), row[SECONDS], worked=worked)
            if self._table.worth(row) >= 1 - LEVELS["2"]:
                break
        return self._clock.spent


def _opening(table: Table, opening: str, seed: int) -> Iterable[dict[str, Any]]:
    """Return the first two trials."""
    baseline = table.baseline(seed)
    yield baseline
    if opening == "random":
        others = [c for c in table.rows if c != key(baseline)]
        yield dict(random.Random(f"second/{seed}").choice(others))
        return
    expert = optuna.create_study(direction="maximize", sampler=_ours(seed, table))
    distributions = _distributions(OURS, table)
    expert.add_trial(
        optuna.trial.create_trial(params=baseline, distributions=distributions, value=1.0)
    )
    yield expert.ask(distributions).params


_TABLES: dict[str, Table] = {}
"""Tables that each process knows."""


def _know(tables: Sequence[Table]) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    _TABLES.update({table.name: table for table in tables})


def replay(table: str, sampler: str, opening: str, seed: int) -> Course:
    """Return one course over a table that the process knows."""
    return _Replay(_TABLES[table], sampler, opening, seed).run()


def seconds(table: str, opening: str, seed: int, launch: float, priced: bool) -> float:
    """Return the seconds of ours on one slot until a row within 2 % is tried, with or without prices."""
    return _OneSlot(_TABLES[table], opening, seed, launch, priced).seconds()


# Whole studies


def study(table: str, seed: int) -> Simulation:
    """One of MOST trials at most, from the baseline of that seed, with its finals."""
    known = _TABLES[table]
    own = read_origin(known.path).study
    baseline = {**own.get("baseline", {}), **known.recorded_baseline(seed)}
    changes = {"baseline": baseline, "budget": {"trials": MOST}}
    with tempfile.TemporaryDirectory() as folder:
        path = known.write(Path(folder))
        return simulate(path, StudySpec.model_validate({**own, **changes}), seed)


# The command


def _tables(folder: Path, anonymous: bool, noise: float | None) -> list[Table]:
    paths = [p for p in sorted(folder.glob("*.csv")) if not p.stem.endswith(".runs")]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(partial(Table, anonymous=anonymous, noise=noise), paths))


def _of_table(
    table: Table, courses: Sequence[Course], studies: Sequence[Simulation]
) -> dict[str, Any]:
    ours = [c for c in courses if c.sampler == OURS]
    kinds = dict.fromkeys((c.sampler, c.opening) for c in courses)
    return {
        "held_out": table.name not in BUILT_ON,
        "noise": round(table.noise, 4),
        "chance_that_best_is_within_2_percent": round(table.denoised.chance_of_best(0.02), 2),
        "rows_within_2_percent": sum(
            table.worth(row) >= 1 - LEVELS["2"] for row in table.rows.values()
        ),
        "samplers": {
            f"{sampler}, {opening}": summary(
                [c for c in courses if (c.sampler, c.opening) == (sampler, opening)]
            )
            for sampler, opening in kinds
        },
        "stop": stops(ours) if ours else None,
        "whole_studies": summary_of_studies(studies) if studies else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=Path, default=Path(__file__).parent / "tables")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--studies", type=int, default=0, help="seeds of whole studies; 0: none")
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--anonymous", action="store_true", help="names that mean nothing")
    parser.add_argument("--noise", type=float, help="of a run, instead of the recorded one")
    parser.add_argument("--launch", type=float, nargs="*", default=[], help="seconds of a launch")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.anonymous and arguments.studies:
        parser.error(
            "whole studies have the names of their tables: leave --anonymous or --studies out"
        )
    names = arguments.samplers.split(",") if arguments.samplers else []
    if not set(names) <= set(SAMPLERS):
        parser.error(f"not a sampler: {arguments.samplers}")
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    tables = _tables(arguments.tables, arguments.anonymous, arguments.noise)
    if not tables:
        parser.error(f"no table in {arguments.tables}")
    jobs = [
        (table.name, sampler, opening, seed)
        for sampler in names
        for seed in range(arguments.seeds)
        for table in tables
        for opening in OPENINGS
    ]
    slots = [
        (table.name, opening, seed, launch, priced)
        for launch in arguments.launch
        for seed in range(arguments.seeds)
        for table in tables
        for opening in OPENINGS
        for priced in (True, False)
    ]
    whole = [(table.name, seed) for table in tables for seed in range(arguments.studies)]
    with ProcessPoolExecutor(initializer=_know, initargs=(tables,)) as pool:
        courses = list(pool.map(replay, *zip(*jobs, strict=True))) if jobs else []
        took = list(pool.map(seconds, *zip(*slots, strict=True))) if slots else []
        studies = list(pool.map(study, *zip(*whole, strict=True))) if whole else []
    report = _report(tables, courses, dict(zip(whole, studies, strict=True)))
    report = {
        "seeds": arguments.seeds,
        "anonymous": arguments.anonymous,
        "noise": arguments.noise,
        "by_launch": by_launch(dict(zip(slots, took, strict=True))),
        **report,
    }
    print(json.dumps(report, indent=1) if arguments.json else _shown(report))


def _report(
    tables: Sequence[Table],
    courses: Sequence[Course],
    studies: Mapping[tuple[str, int], Simulation],
) -> dict[str, Any]:
    ours = [c for c in courses if c.sampler == OURS]
    groups = {
        "built_on": [c for c in courses if c.table in BUILT_ON],
        "held_out": [c for c in courses if c.table not in BUILT_ON],
    }
    return {
        "tables": {
            table.name: _of_table(
                table,
                [c for c in courses if c.table == table.name],
                [s for (name, _), s in studies.items() if name == table.name],
            )
            for table in tables
        },
        "against_ours": {name: compare(own) for name, own in groups.items()},
        "stop": stops(ours) if ours else None,
        "calibration": calibration(ours),
        "courses": [_told(course) for course in courses],
    }


def _told(course: Course) -> dict[str, Any]:
    told = asdict(course)
    del told["stated"], told["seconds"]  # the calibration has all that was stated
    regret = [course.regret[min(at, len(course.regret)) - 1] for at in REGRETS]
    return {**told, "left": course.left, "regret": [round(share, 4) for share in regret]}


def _shown(report: Mapping[str, Any]) -> str:
    lines = [
        f"{'table':12} {'sampler':14} {'trials to 5 %':>14} {'to 2 %':>14} {'missed':>7} {'failed':>7}"
        f"   left after {', '.join(map(str, REGRETS))} trials"
    ]
    for name, table in report["tables"].items():
        for sampler, figures in table["samplers"].items():
            five, two = figures["within_5_percent"], figures["within_2_percent"]
            lines.append(
                f"{name:12} {sampler:14} "
                + " ".join(
                    f"{f['median_trials']:6.1f} p90 {f['p90_trials']:3.0f}" for f in (five, two)
                )
                + f" {two['misses']:7d} {figures['infeasible_launched']:7.1f}   "
                + " ".join(f"{share:6.1%}" for share in figures["mean_regret"].values())
            )
    for name, table in report["tables"].items():
        lines.append(f"{name:12} stop: {table['stop']}")
        if figures := table["whole_studies"]:
            lines.append(
                f"{name:12} whole studies: {figures['median_trials']:g} trials, "
                f"{figures['median_seconds']:.0f} s, {figures['median_shortfall']:.1%} below the best "
                f"row (mean {figures['mean_shortfall']:.1%}, worst {figures['worst_shortfall']:.1%}, "
                f"more than 2 % in {figures['share_with_more_than_2_percent_left']:.0%}), "
                f"{figures['verdicts']}"
            )
    lines += [f"{name}: {json.dumps(own)}" for name, own in report["against_ours"].items()]
    lines += map(json.dumps, report["by_launch"])
    lines += [f"all: {report['stop']}", *map(json.dumps, report["calibration"])]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
