"""Findings of studies of minutes on a device where a process takes seconds and compilation more.

    python benchmarks/gpu_policy.py [--json] [--seeds N] [--only h200 7b tiny] [--budgets 60 120]

Whole studies in virtual time over a recorded device (recorded_device.py): one H200 training
GPT-2 124M, and two synthetic devices made from the same record, with a model of 7B parameters and with
a tiny one. The true speed-up is that of typical processes. Truth, budgets and seeds are the same for
every version of autotune: run it in two checkouts to compare policies, with --policy naming each.
"""

import argparse
import dataclasses
import functools
import json
import logging
import math
import multiprocessing
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune.config import StudySpec, secrets_withheld
from autotune.runs.study_setup import StudySetup
from autotune.search.space import Space
from autotune.study.context import StudyContext
from autotune.study.tuner import Signals, Tuner
from benchmarks.recorded_device import RecordedDevice, read_device
from launchers.replay import ReplayLauncher
from storage import Database, LeaseHolder, Repository

TABLE = Path(__file__).parent / "tables" / "h200-gpt2-124m.jsonl"
TOKENS = 1024
"""Tokens of a sample, which the rates of the studies count."""
BASELINES = {
    "mb4": {"micro_batch": 4, "accumulation_steps": 8, "precision": "bf16"},
    "mb16": {"micro_batch": 16, "accumulation_steps": 2, "precision": "bf16"},
}
SPACE: dict[str, list[Any]] = {
    "micro_batch": [1, 2, 4, 8, 16, 32],
    "accumulation_steps": [32, 16, 8, 4, 2, 1],
    "compile": ["none", "default"],
    "float8": ["none", "tensorwise"],
    "optimizer_kernels": ["default", "fused"],
    "pin_memory": [False, True],
    "log_interval": [1, 10, 50],
}
BUDGETS = {"h200": (60, 120, 300, 900), "7b": (3600,), "tiny": (60,)}
KINDS = ("factory", "script")
_LEASE_SECONDS = 1e6


def devices() -> dict[str, RecordedDevice]:
    """Return the recorded device and two synthetic ones.

    One has a launch of 60 s, a compilation of 180 s and steps of 3 s, the other a launch of 5 s and
    steps of 5 ms.
    """
    h200 = read_device(TABLE)
    step = h200.step(_knobs(BASELINES["mb16"]))
    cold = h200.first_step(_knobs(BASELINES["mb16"] | {"compile": "default"}))
    return {
        "h200": h200,
        "7b": dataclasses.replace(
            h200, launch=60.0, step_scale=3.0 / step, compile_scale=180.0 / cold
        ),
        "tiny": dataclasses.replace(h200, launch=5.0, step_scale=0.005 / step),
    }


def _knobs(changes: Mapping[str, Any]) -> dict[str, Any]:
    return _spec("mb4", 60, 0).full_baseline() | dict(changes)


@dataclass(frozen=True)
class Studied:
    """Result of one study.

    Attributes:
        kind: kind of the verdict.
        speedup: true speed-up of its recommendation; 1 where it recommends nothing.
        lower: bound of the confidence interval that it states; None without one. Where it recommends
            nothing that is 1, as is the other bound.
        upper: the other bound.
        gap: how far the recommendation lies below the best configuration, relative to it.
        elapsed: virtual seconds.
        own_low: lower bound of the interval of the recommendation's own rate, over its true rate; None
            without a recommendation.
        own_high: the other bound.
    """

    kind: str
    speedup: float
    lower: float | None
    upper: float | None
    gap: float
    elapsed: float
    own_low: float | None = None
    own_high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the recommendation's speed-up; None without a recommendation."""
        if self.lower is None or self.upper is None or self.lower == self.upper:
            return None
        return self.lower, self.upper


def _spec(baseline: str, budget: float, seed: int) -> StudySpec:
    return StudySpec.model_validate(
        {
            "name": "policy",
            "workload": {"name": "gpt"},
            "resources": {"workers": 1},
            "baseline": BASELINES[baseline],
            "search_space": SPACE,
            "budget": {"trials": None, "wall_time": budget},
            "objective": {"metric": "tokens_per_second"},
            "seed": seed,
            "export": "best.yaml",
        }
    )


class EmptyStorage:
    """Storage that is emptied for each study: to create all tables takes longer than a study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "policy.db"
        self._database = Database(f"sqlite:///{self._file}")
        self._close()
        self._empty = self._file.read_bytes()

    def emptied(self) -> Repository:
        """Return the repository without any study."""
        self._close()
        self._file.write_bytes(self._empty)
        return Repository(self._database)

    def _close(self) -> None:
        # With its last connection SQLite's write-ahead log goes into the file.
        self._database.engine.dispose()
        self._database.optuna().engine.dispose()


def study(
    storage: EmptyStorage,
    device: RecordedDevice,
    baseline: str,
    kind: str,
    budget: float,
    seed: int,
) -> Studied:
    """Run one study in virtual time."""
    spec = _spec(baseline, budget, seed)
    launcher = ReplayLauncher(
        device.behaviour(script=kind == "script"),
        workers=1,
        environment=device.environment,
        seed=seed,
    )
    return replayed(storage, spec, launcher, lambda knobs: TOKENS * device.rate(knobs))


def replayed(
    storage: EmptyStorage,
    spec: StudySpec,
    launcher: ReplayLauncher,
    rate: Callable[[Mapping[str, Any]], float],
) -> Studied:
    """Run one study in virtual time.

    Args:
        rate: rate of a typical process of a configuration, in units of the metric per second.
    """
    repository = storage.emptied()
    repository.studies.submit(spec.name, "policy", secrets_withheld.kept(spec), str(storage.folder))
    claim = repository.claims.take("policy", LeaseHolder("policy", 0, _LEASE_SECONDS))
    assert claim is not None
    stored, lease = claim.study, claim.lease
    environment = repository.environments.record(lease, launcher.slots[0].environment)
    setup = StudySetup(spec, launcher)
    context = StudyContext(stored, setup, lease, repository, environment)
    verdict = Tuner(context, Signals()).run()
    best = max(map(rate, _configurations(spec, setup)))
    reference = rate(spec.full_baseline())
    recommended = rate(verdict.knobs) if verdict.knobs else reference
    own = verdict.throughput if recommended != reference else None
    return Studied(
        kind=verdict.kind,
        speedup=recommended / reference,
        lower=_finite(verdict.speedup and verdict.speedup.low),
        upper=_finite(verdict.speedup and verdict.speedup.high),
        gap=1 - recommended / best,
        elapsed=launcher.clock(),
        own_low=own and own.low / recommended,
        own_high=own and own.high / recommended,
    )


def _configurations(spec: StudySpec, setup: StudySetup) -> Iterator[dict[str, Any]]:
    space = Space(spec.values(), spec.full_baseline(), setup.facts)
    return map(space.complete, space.feasible(random.Random(0)))


def _finite(bound: float | None) -> float | None:
    return bound if bound is not None and math.isfinite(bound) else None


@dataclass(frozen=True)
class Cell:
    """Studies of one kind.

    Attributes:
        within_3: share whose recommendation is at most 3 % slower than the best configuration.
        speedup_p05: 5th percentile of the true speed-up.
        lower_p05: 5th percentile of the lower confidence bound; 0 stands for no interval.
        half_width_median: of the confidence interval, relative to its middle.
        coverage: share of the intervals that hold the true speed-up, of studies that recommend
            something.
        false_better: share that call something better that is not faster by half a percent.
        nothing: share that recommend nothing.
        own_half_width_median: of the interval of the recommendation's own rate.
        own_coverage: share of these intervals that hold the true rate.
        over: share that took more than a tenth longer than the budget.
    """

    device: str
    baseline: str
    kind: str
    budget: float
    policy: str
    seeds: int
    within_3: float
    within_5: float
    within_10: float
    speedup_p05: float
    speedup_median: float
    lower_p05: float
    half_width_median: float | None
    half_width_p95: float | None
    coverage: float | None
    false_better: float
    nothing: float
    over: float
    own_half_width_median: float | None
    own_coverage: float | None


def summary(found: Sequence[Studied], **names: Any) -> Cell:
    """Summarise the studies of one cell."""
    told = [(one.speedup, *one.interval) for one in found if one.interval]
    widths = [(high - low) / (high + low) for _, low, high in told]
    own = [
        (one.own_low, one.own_high)
        for one in found
        if one.own_low is not None and one.own_high is not None
    ]
    budget = names["budget"]
    return Cell(
        **names,
        seeds=len(found),
        within_3=_share(one.gap <= 0.03 for one in found),
        within_5=_share(one.gap <= 0.05 for one in found),
        within_10=_share(one.gap <= 0.10 for one in found),
        speedup_p05=_quantile([one.speedup for one in found], 0.05),
        speedup_median=statistics.median(one.speedup for one in found),
        lower_p05=_quantile([one.lower or 0.0 for one in found], 0.05),
        half_width_median=statistics.median(widths) if widths else None,
        half_width_p95=_quantile(widths, 0.95) if widths else None,
        coverage=_share(low <= true <= high for true, low, high in told) if told else None,
        false_better=_share(one.kind == "better" and one.speedup < 1.005 for one in found),
        nothing=_share(one.speedup == 1.0 for one in found),
        over=_share(one.elapsed > 1.1 * budget for one in found),
        own_half_width_median=statistics.median((high - low) / 2 for low, high in own)
        if own
        else None,
        own_coverage=_share(low <= 1 <= high for low, high in own) if own else None,
    )


def _share(found: Iterable[bool]) -> float:
    return statistics.fmean(map(float, found))


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@functools.cache
def storage_of(folder: str) -> EmptyStorage:
    """Return the storage of this process, in a folder of its own within that of the benchmark."""
    return EmptyStorage(Path(tempfile.mkdtemp(dir=folder)))


@functools.cache
def _device(name: str) -> RecordedDevice:
    return devices()[name]


def _one(task: tuple[str, str, str, str, float, int]) -> Studied:
    folder, name, *rest = task
    return study(storage_of(folder), _device(name), *rest)


def _cells(only: Sequence[str], budgets: Sequence[float] | None) -> Iterator[tuple[Any, ...]]:
    for name in only:
        for budget in budgets or BUDGETS[name]:
            for baseline in BASELINES:
                for kind in KINDS:
                    yield name, baseline, kind, budget


def parsed(text: str, groups: Iterable[str], budgets: Sequence[float] | None) -> argparse.Namespace:
    """Return the options of a benchmark of studies of minutes.

    Args:
        text: its docstring.
        groups: choices of --only.
        budgets: default of --budgets.
    """
    parser = argparse.ArgumentParser(description=text.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=list(groups), default=list(groups))
    parser.add_argument("--budgets", nargs="+", type=float, default=budgets)
    parser.add_argument("--policy", default="after", help="name of this version in the output")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    arguments = parsed(str(__doc__), BUDGETS, None)
    logging.disable()
    cells = []
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool() as pool:
        for cell in _cells(arguments.only, arguments.budgets):
            names = dict(zip(("device", "baseline", "kind", "budget"), cell, strict=True))
            tasks = [(folder, *cell, seed) for seed in range(arguments.seeds)]
            found = pool.map(_one, tasks, chunksize=1)
            cells.append(summary(found, policy=arguments.policy, **names))
            if not arguments.json:
                print(line(cells[-1]), flush=True)
    if arguments.json:
        print(json.dumps({"cells": [asdict(cell) for cell in cells]}, indent=2))


def line(cell: Cell) -> str:
    width = "-" if cell.half_width_median is None else f"{cell.half_width_median:.1%}"
    coverage = "-" if cell.coverage is None else f"{cell.coverage:.0%}"
    return (
        f"{cell.device:5} {cell.baseline:5} {cell.kind:8} {cell.budget:5g} s: true speed-up "
        f"{cell.speedup_median:.2f} (5 % below {cell.speedup_p05:.2f}), within 3 % of the best "
        f"{cell.within_3:.0%}, lower bound {cell.lower_p05:.2f}, half-width {width}, "
        f"coverage {coverage}, nothing {cell.nothing:.0%}, over the budget {cell.over:.0%}"
    )


if __name__ == "__main__":
    main()
