"""Can one bet on a trial? Short trials against long runs, planted slow-downs, and what looking costs.

    python benchmarks/fidelity.py [--json] [--full] [--only WORKLOAD] [--turns | --pairs]

For a compute-bound, a communication-bound and a loader-bound workload, two ranks each:

- agreement: 20 configurations (40 with --full), each as a trial and as a run ten times longer, in turn
  and in random order: relative error of the trial, and how often the 95 % intervals of the two agree;
- finalists: rounds of the same configuration, twice as it is and with 3 % of slow-down planted in all
  ranks, one rank or the loader: how often a paired t test at 95 % calls equals different, and finds the
  planted ones, after so many rounds;
- observers: what a trial loses when everything is observed;
- turns: see benchmarks/turns.py: rounds whose runs take turns against rounds of runs one by one;
- time: device seconds of the 20 trials with racing and adaptive stop, over those of the same trials at
  their full length, in turn.

Everything is compared within one run and in turn. `noise` is the standard deviation of equal runs in new
processes (A/A) on this machine while it ran: no figure can be better than that allows. The intervals of
the agreement are those of a study: sigma_run is what such runs show beyond their blocks, as the
baseline's would.
"""

import argparse
import functools
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import turns
from scipy import stats

from autotune.measurement.estimate import Ratio, paired_ratio
from autotune.measurement.noise import RepeatedRun, RunNoise, run_noise, total_half_width
from autotune.measurement.stop_rule import Limits
from autotune.runs.interleaved import InterleavedSchedule, interleaved
from autotune.runs.monitors import TimedMonitor
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Launcher, Resources, section_of
from search_spaces import defaults
from storage import AttemptResult

WORKERS = 2
KINDS: dict[str, dict[str, Any]] = {
    "compute: gpt": {
        "factory": "autotune.workloads.gpt:build",
        "args": {"layers": 2, "d_model": 128, "heads": 4, "length": 64},
    },
    "communication: mlp": {
        "factory": "autotune.workloads.mlp:build",
        "args": {"layers": 4, "width": 512},
    },
    "loader: images": {
        "factory": "autotune.workloads.images:build",
        "args": {"size": 48, "width": 4},
    },
}
SPACE = {
    "micro_batch": [8, 16, 32],
    "accumulation_steps": [1, 2],
    "precision": ["fp32", "bf16"],
    "log_interval": [1, 10],
    "bucket_cap_mb": [1, 25],
}
USUAL = {"micro_batch": 16}
PLANTED = 0.03
"""Share of the time of a usual step.

It is a constant number of seconds: a share of the time since the last step would include turns of
the other runs."""
TRIAL = Limits(warmup=0.5, longest=0.9, precision=0.02)
BLOCKS = BlockPlan(seconds=0.1, min_steps=2)
LONGER = 10
SECONDS = dict.fromkeys(KINDS, turns.SECONDS) | {"loader: images": 3 * turns.SECONDS}
"""Seconds of training of an interleaved run; one that waits for its loader tells less in a second."""


@dataclass(frozen=True)
class Measured:
    """A run, in short."""

    rate: float
    block_half_width: float
    block_freedom: float
    at: float
    seconds: float
    lost: bool
    contended: bool


class Bench:
    """Runs trials of the workloads on one slot."""

    def __init__(self, launcher: Launcher, folder: str, kind: dict[str, Any]) -> None:
        self._slot = launcher.slots[0]
        self._folder = folder
        self._kind = kind
        self._count = 0

    def run(self, knobs: dict[str, Any], limits: Limits, **planted: Any) -> Measured:
        """One trial in new processes."""
        request, at = self._request(knobs, planted), time.time()
        judge = TimedMonitor(limits)
        result = checked(judge.result(self._slot.run_solo(request, judge)))
        assert result.throughput is not None and result.block_half_width is not None
        return Measured(
            rate=result.throughput,
            block_half_width=result.block_half_width,
            block_freedom=math.inf if result.block_freedom is None else result.block_freedom,
            at=at,
            seconds=result.wall_seconds,
            lost=result.state == "PRUNED",
            contended=result.contended,
        )

    def rate(self, limits: Limits, planted: Mapping[str, Any]) -> float:
        """Return the rate of a solo run of the usual configuration."""
        return self.run(USUAL, limits, **planted).rate

    def rates(self, limits: Limits, planted: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the rates of interleaved runs of the usual configuration."""
        group = InterleavedSchedule([limits] * len(planted))
        requests = [interleaved(self._request(USUAL, one)) for one in planted]
        reports = self._slot.run(requests, group)
        judged = zip(group.monitors, reports, strict=True)
        return [checked(judge.result(report)).throughput or 0.0 for judge, report in judged]

    @functools.cached_property
    def _step_seconds(self) -> float:
        """Seconds of a step of the usual configuration, from three interleaved runs."""
        rates = self.rates(turns.LIMITS, [{}] * 3)
        return USUAL["micro_batch"] * WORKERS / statistics.geometric_mean(rates)

    def _request(self, knobs: Mapping[str, Any], planted: Mapping[str, Any]) -> TrialRequest:
        if "idle" in planted:
            planted = {**planted, "idle": planted["idle"] * self._step_seconds}
        self._count += 1
        name = f"{self._kind['factory']}-{self._count}"
        return TrialRequest(
            trial=name,
            factory="planted:build",
            args={**self._kind, **planted},
            knobs={**defaults(), **knobs},
            world_size=WORKERS,
            seed=0,
            device=self._slot.device,
            devices_per_rank=self._slot.devices_per_rank,
            blocks=BLOCKS,
            import_paths=(str(Path(__file__).parent),),
            log_dir=f"{self._folder}/{name}",
        )


def checked(result: AttemptResult) -> AttemptResult:
    """Return the result of a run; exit if it has not shown its speed."""
    if result.throughput is None or result.block_half_width is None:
        raise SystemExit(f"{result.state} {result.cause}\n{result.log_tail}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true", help="twice the counts")
    parser.add_argument("--only", choices=KINDS, help="one workload")
    parser.add_argument("--turns", action="store_true", help="only what takes turns")
    parser.add_argument("--pairs", action="store_true", help="the same, and no run by itself")
    arguments = parser.parse_args()
    many = 2 if arguments.full else 1
    report = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        launcher = stack.enter_context(
            section_of("local").open(Resources(WORKERS, None, 1, 1), folder)
        )
        for name, kind in KINDS.items():
            if arguments.only in (None, name):
                bench = Bench(launcher, folder, kind)
                whole = {} if arguments.turns or arguments.pairs else fidelity(bench, many)
                pairs = in_turn(bench, 8 * many, SECONDS[name], alone=not arguments.pairs)
                report[name] = {**whole, "turns": pairs}
    print(json.dumps(report, indent=2) if arguments.json else table(report))


def fidelity(bench: Bench, many: int) -> dict[str, Any]:
    """All figures of one workload."""
    draw = random.Random(0)
    configurations = [
        dict(zip(SPACE, values, strict=True))
        for values in draw.sample(list(combinations(SPACE)), 20 * many)
    ]
    rounds = finalists(bench, 16 * many, draw)
    known = known_of(rounds)
    return {
        "noise": noise_of(rounds),
        "sigma_run": known.sigma_run,
        "agreement": agreement(bench, configurations, known, draw),
        "finalists": judged(rounds),
        "observers": observers(rounds),
        "time": device_time(bench, configurations, known, draw),
    }


def in_turn(bench: Bench, count: int, seconds: float, *, alone: bool) -> dict[str, Any]:
    """Compare interleaved rounds with rounds one by one."""
    variants = {name: VARIANTS[name] for name in ("a", "a again", *turns.PLANTED)}
    draw = random.Random(0)
    return turns.compared(bench, variants, count, draw, seconds=seconds, alone=alone)


def combinations(space: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Run the full factorial."""
    found: list[tuple[Any, ...]] = [()]
    for values in space.values():
        found = [(*before, value) for before in found for value in values]
    return found


def agreement(
    bench: Bench, configurations: Sequence[dict[str, Any]], known: RunNoise, draw: random.Random
) -> dict[str, Any]:
    """Trials against runs ten times longer."""
    errors, covered, settled = [], 0, []
    for knobs in configurations:
        runs: dict[bool, Measured] = {}
        for long in draw.sample([False, True], 2):
            if long:
                spent = LONGER * TRIAL.longest
                runs[long] = bench.run(knobs, Limits(TRIAL.warmup, spent, precision=1e-9))
            else:
                runs[long] = bench.run(knobs, TRIAL)
        short, truth = runs[False], runs[True]
        errors.append(abs(short.rate / truth.rate - 1))
        settled.append(short.seconds)
        # Both are runs of their own: each carries its blocks' scatter and that between runs.
        widths = [within(run, known) for run in (short, truth)]
        covered += errors[-1] <= math.hypot(*widths)
    low, high = stats.binomtest(covered, len(errors)).proportion_ci(method="wilson")
    return {
        "configurations": len(errors),
        "median_error": statistics.median(errors),
        "p95_error": statistics.quantiles(errors, n=20, method="inclusive")[18],
        "coverage": covered / len(errors),
        "coverage_interval": [low, high],
        "trial_seconds": statistics.median(settled),
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "a": {},
    "a again": {},
    "all": {"slow": "all", "idle": PLANTED},
    "rank": {"slow": "rank", "idle": PLANTED},
    "loader": {"slow": "loader", "idle": PLANTED},
    "blind": {"observers": False},
}
Rounds = list[dict[str, Measured]]


def finalists(bench: Bench, count: int, draw: random.Random) -> Rounds:
    """So many rounds of all variants, each round in an order of its own."""
    rounds = []
    for _ in range(count):
        order = draw.sample(list(VARIANTS), len(VARIANTS))
        confirming = Limits(TRIAL.warmup, TRIAL.longest, precision=0.01)
        rounds.append({name: bench.run(USUAL, confirming, **VARIANTS[name]) for name in order})
    return rounds


def noise_of(rounds: Rounds) -> float:
    """Relative standard deviation of equal runs, from the pairs of a round."""
    # The squared difference of two equals is twice their variance.
    squares = [math.log(r["a"].rate / r["a again"].rate) ** 2 for r in rounds]
    return math.sqrt(statistics.fmean(squares) / 2)


def known_of(rounds: Rounds) -> RunNoise:
    """Return the noise that a study would find in its baseline."""
    equals = [r[name] for r in rounds for name in ("a", "a again")]
    return run_noise(
        [RepeatedRun(m.rate, m.block_half_width, m.at, m.block_freedom) for m in equals]
    )


def within(run: Measured, known: RunNoise) -> float:
    """Relative half-width of the interval that a study gives a run."""
    return total_half_width(run.block_half_width, known.sigma_run, known.df)


def judged(rounds: Rounds) -> dict[str, Any]:
    """How often the test is right, after 3, 6, 12 and all rounds."""
    found: dict[str, Any] = {}
    for length in (3, 6, 12, len(rounds)):
        windows = [rounds[i : i + length] for i in range(len(rounds) - length + 1)]
        share = {
            name: statistics.fmean(differs(window, name, "a") for window in windows)
            for name in ("a again", "all", "rank", "loader")
        }
        found[f"{length} rounds"] = {
            "equals_called_different": share.pop("a again"),
            "planted_3_percent_found": share,
        }
    found["measured_slow_down"] = {
        name: 1 - ratio(rounds, name, "a").value for name in ("all", "rank", "loader")
    }
    return found


def differs(rounds: Rounds, name: str, other: str) -> bool:
    """Return whether the 95 % interval of the paired ratio leaves 1 out."""
    found = ratio(rounds, name, other)
    return found.high < 1 if name != "a again" else not found.low <= 1 <= found.high


def ratio(rounds: Rounds, name: str, other: str) -> Ratio:
    """Paired, with its interval."""
    return paired_ratio([r[name].rate for r in rounds], [r[other].rate for r in rounds])


def observers(rounds: Rounds) -> dict[str, Any]:
    """Throughput without observers over that with them, less one."""
    found = ratio(rounds, "blind", "a")
    again = ratio(rounds, "a again", "a")
    return {
        "cost": found.value - 1,
        "interval": [found.low - 1, found.high - 1],
        "noise": [again.low - 1, again.high - 1],
    }


def device_time(
    bench: Bench,
    configurations: Sequence[dict[str, Any]],
    known: RunNoise,
    draw: random.Random,
) -> dict[str, Any]:
    """Racing and adaptive stop against the same trials at their full length."""
    incumbent, raced, fixed, lost = 0.0, 0.0, 0.0, 0
    for knobs in configurations:
        for stops in draw.sample([False, True], 2):
            if not stops:
                fixed += bench.run(knobs, Limits(TRIAL.warmup, TRIAL.longest, 1e-9)).seconds
                continue
            limits = Limits(
                TRIAL.warmup,
                TRIAL.longest,
                TRIAL.precision,
                incumbent_low=incumbent,
                sigma_run=known.sigma_run,
            )
            found = bench.run(knobs, limits)
            raced += found.seconds
            lost += found.lost
            if not found.lost:
                incumbent = max(incumbent, found.rate * (1 - within(found, known)))
    return {
        "adaptive_seconds": raced,
        "fixed_seconds": fixed,
        "times_less": fixed / raced,
        "stopped_by_racing": lost,
    }


def table(report: dict[str, Any]) -> str:
    """Return the figures that matter, as text."""
    lines = []
    for name, found in report.items():
        lines += turns_in_words(name, found["turns"])
        if "noise" not in found:
            continue
        six = found["finalists"]["6 rounds"]
        planted = six["planted_3_percent_found"]
        lines += [
            f"{name}: noise of equal runs {found['noise']:.1%}",
            f"  error of a trial: median {found['agreement']['median_error']:.1%}, "
            f"p95 {found['agreement']['p95_error']:.1%}",
            f"  coverage of the 95 % interval: {found['agreement']['coverage']:.0%}",
            f"  after 6 rounds: equals called different {six['equals_called_different']:.0%}; "
            "3 % found: " + ", ".join(f"{n} {share:.0%}" for n, share in planted.items()),
            f"  observers cost {found['observers']['cost']:+.2%}",
            f"  device time: {found['time']['times_less']:.1f} times less",
        ]
    return "\n".join(lines)


def turns_in_words(name: str, found: dict[str, Any]) -> list[str]:
    """Return the figures of interleaved rounds."""
    spreads, seven = found["spread_of_equals"], found["in_turn"]["7 rounds"]
    planted = seven["planted_3_percent_found"]
    own = f", {spreads['own']:.1%} one by one" if "own" in spreads else ""
    return [
        f"{name}: equals lie {spreads['in_turn']:.1%} apart in turn{own}",
        f"  in turn, after 7 rounds: equals called different {seven['equals_called_different']:.0%}; "
        "3 % found: " + ", ".join(f"{n} {share:.0%}" for n, share in planted.items()),
    ]


if __name__ == "__main__":
    main()
