"""How long until what a search would recommend is close to the best? Ours, TPE, torchrun per trial.

    python benchmarks/live_search.py [--json] [--pairs N] [--first SEED] [--only WORKLOAD] [--longer N]
                                     [--report FILE]

On two ranks, per workload and seed, one after another in an order drawn anew:

- ours: a study as it is, the runs of the baseline that tell the noise included;
- tpe: the same study with Optuna's TPE, each trial in fresh processes, without such runs, and less the
  seconds of the look at the baseline with which a study begins;
- torchrun: Optuna's TPE, each trial a start of torchrun, of a length that is fixed.

All three begin with the same baseline. What TPE would recommend at any time is the trial that it has
seen fastest, as Optuna does; what ours would is the one that it expects to be. How
good that is does not come from the search: all that were ever recommended take turns with each other
afterwards, and the best of them is the best that is known. Amid noise a recommendation comes and goes:
times are those until it is within 2 or 5 % for the first time, and for good. They begin with the search,
before anything is launched; a contestant that is not there at its end counts with the whole time, so
that ratios are at least what is printed where ours is there. With --longer the other two have so many
times the seconds of ours, to show larger ones.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import yaml
from residents import leaving

from autotune.analysis.finalists import most_promising_first
from autotune.config import load
from autotune.measurement.stop_rule import Limits
from autotune.runs.interleaved import InterleavedSchedule, interleaved
from autotune.runs.study_setup import launcher_of
from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from autotune.service.submission import submit
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Resources, section_of
from search_spaces import defaults
from storage import Attempts, Database, Purpose, Repository, StoredAttempt

HERE = Path(__file__).parent
CLOSE = (0.02, 0.05)
"""A machine on which pairs of a few seconds lie 3 % apart hardly tells the former."""
WORKERS = 2
GPT = {"layers": 2, "d_model": 64, "heads": 2, "length": 32}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("autotune.workloads.gpt:build", GPT),
    "mlp": ("autotune.workloads.mlp:build", {"layers": 4, "width": 256}),
    "gpt, built in 10 s": ("slow_build:build", {"seconds": 10.0, **GPT}),
}
SPACE: dict[str, list[Any]] = {
    "micro_batch": [1, 2, 4, 8, 16, 32],
    "accumulation_steps": [1, 2, 4],
    "bucket_cap_mb": [1, 5, 25],
    "optimizer_kernels": ["default", "foreach", "fused"],
    "log_interval": [1, 10, 50],
    "num_workers": [0, 1, 2],
}
BASELINE = {"micro_batch": 2, "accumulation_steps": 1, "bucket_cap_mb": 25, "log_interval": 1}
WARM_UP, TIMED, BLOCK = 0.3, 1.2, 0.1
MOST = 60
"""Trials of each."""
SECONDS = {"gpt": 100.0, "mlp": 70.0, "gpt, built in 10 s": 200.0}
"""Seconds of our study."""
_TRUTH = Limits(warmup=0.3, longest=4.0, precision=0.004)
_TOGETHER, _ROUNDS = 4, 2
"""Recommendations that take turns with each other, and how often each does."""

_SEARCHED = 0.75
"""Largest share of a study's time that the search may take."""

Knobs = dict[str, Any]
Choice = Callable[[Sequence[StoredAttempt]], StoredAttempt]


class Seen(NamedTuple):
    """Trial with its end, its configuration, its rate, and the recommendation from then on."""

    at: float
    tried: Knobs
    rate: float
    recommended: Knobs


# Contestants


def studied(
    kind: str,
    seed: int,
    seconds: float,
    choose: Choice,
    opened: Callable[..., Any],
    **own: Any,
) -> list[Seen]:
    """Return the trials of a study."""
    factory, args = KINDS[kind]
    # Nothing that Optuna does asks how noisy the machine is.
    runs = 1 if "sampler" in own else 3
    study = {
        "name": "raced",
        "workload": {"name": factory, "args": args},
        "resources": {"workers": WORKERS, "max_concurrent_trials": 1},
        "search_space": SPACE,
        "baseline": BASELINE,
        "objective": {"global_batch_size": "free"},
        **own,
        "seed": seed,
        "budget": {
            "trials": MOST,
            "wall_time": f"{seconds / _SEARCHED:.0f}s",
            "min_improvement": 0,
        },
        "measurement": {
            "block_seconds": f"{BLOCK}s",
            "min_steps": 2,
            "warmup": f"{WARM_UP}s",
            "max_measure_time": f"{TIMED}s",
            "baseline_runs": runs,
            "finalists": 1,
            "rounds": 2,
            "ablation_rounds": 0,
        },
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.yaml").write_text(yaml.safe_dump(study))
        (folder / "slow_build.py").write_text((HERE / "slow_build.py").read_text())
        repository = Repository(Database(f"sqlite:///{folder / 'study.db'}"))
        submit(repository, load(folder / "study.yaml"), folder)
        began = time.time()
        Daemon(repository, this_queue(), open_launcher=opened).serve(idle_seconds=0.0)
        found = repository.studies.named("raced")
        assert found.verdict is not None, found.error
        attempts = Attempts(repository.attempts.of(found.id), {})
        look = attempts.of(Purpose.PROFILE).recorded().first
        if "sampler" in own and look:
            began += look.result.wall_seconds
        done = attempts.searched().measured()
        trials = sorted(done, key=lambda a: a.ended or 0.0)
        seen = []
        for number, trial in enumerate(trials, 1):
            chosen = choose(trials[:number]).knobs
            rate = trial.result.throughput or 0.0
            tried, own = ({name: knobs[name] for name in SPACE} for knobs in (trial.knobs, chosen))
            seen.append(Seen((trial.ended or 0.0) - began, tried, rate, own))
        return seen


def fastest(trials: Sequence[StoredAttempt]) -> StoredAttempt:
    """Return the trial that Optuna recommends."""
    return max(trials, key=lambda trial: trial.result.throughput or 0.0)


def promising(trials: Sequence[StoredAttempt]) -> StoredAttempt:
    """Return the trial that our study recommends."""
    return most_promising_first(trials)[0]


def by_torchrun(kind: str, seed: int, seconds: float) -> list[Seen]:
    """Return the trials of Optuna's TPE, each started by torchrun."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({"optimizer_kernels": "default", "num_workers": 0, **BASELINE})
    began, seen = time.time(), list[Seen]()
    while len(seen) < MOST and time.time() - began < seconds:
        trial = study.ask()
        knobs = {name: trial.suggest_categorical(name, some) for name, some in SPACE.items()}
        rate = _torchrun(kind, knobs)
        study.tell(trial, rate)
        seen.append(Seen(time.time() - began, knobs, rate, study.best_trial.params))
    return seen


def _torchrun(kind: str, knobs: Knobs) -> float:
    factory, args = KINDS[kind]
    asked = json.dumps({"factory": factory, "args": args, "knobs": knobs})
    blocks = round((WARM_UP + TIMED) / BLOCK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(WORKERS), str(HERE / "torchrun_trial.py")]
    found = subprocess.run(
        [*command, asked, str(blocks), "cpu"], check=True, capture_output=True, text=True
    )
    kept = json.loads(found.stdout.splitlines()[-1])[round(WARM_UP / BLOCK) :]
    return sum(samples for _, samples in kept) / sum(seconds for seconds, _ in kept)


def contestants(kind: str, seed: int, longer: float) -> dict[str, Callable[[], list[Seen]]]:
    """Return the contestants by name; the others have so many times the seconds of ours."""
    own = SECONDS[kind]
    return {
        "ours": lambda: studied(kind, seed, own, promising, launcher_of),
        "tpe": lambda: studied(kind, seed, longer * own, fastest, leaving, sampler="tpe"),
        "torchrun": lambda: by_torchrun(kind, seed, longer * own),
    }


# What they would recommend


def key(knobs: Knobs) -> str:
    return json.dumps(knobs, sort_keys=True)


def worths(kind: str, several: Iterable[Knobs], best: Knobs) -> dict[str, float]:
    """Return how fast each configuration is over one that is among the best.

    It is the geometric mean of several rounds, interleaved with that one and with others.
    """
    others = [knobs for name, knobs in _distinct(several).items() if name != key(best)]
    found: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        section_of("local").open(Resources(WORKERS, None, 1, 1), folder) as launcher,
    ):
        numbers = itertools.count()
        for round_ in range(_ROUNDS):
            order = random.Random(round_).sample(others, len(others))
            for start in range(0, len(order), _TOGETHER - 1):
                members = [best, *order[start : start + _TOGETHER - 1]]
                group = InterleavedSchedule([_TRUTH] * len(members))
                requests = [_request(kind, knobs, folder, next(numbers)) for knobs in members]
                reports = launcher.slots[0].run(requests, group)
                rates = [
                    judge.result(report).throughput or math.nan
                    for judge, report in zip(group.monitors, reports, strict=True)
                ]
                for member, rate in zip(members[1:], rates[1:], strict=True):
                    found.setdefault(key(member), []).append(rate / rates[0])
    return {key(best): 1.0} | {name: statistics.geometric_mean(r) for name, r in found.items()}


def _distinct(several: Iterable[Knobs]) -> dict[str, Knobs]:
    return {key(knobs): knobs for knobs in several}


def _request(kind: str, knobs: Knobs, folder: str, number: int) -> TrialRequest:
    factory, args = KINDS[kind]
    return interleaved(
        TrialRequest(
            trial=f"worth-{number}",
            factory=factory,
            args={**args, "seconds": 0.0} if "seconds" in args else args,
            knobs={**defaults(), **knobs},
            world_size=WORKERS,
            seed=0,
            device="cpu",
            blocks=BlockPlan(seconds=BLOCK, min_steps=2),
            import_paths=(str(HERE),),
            log_dir=f"{folder}/{number}",
        )
    )


def reached(trials: dict[str, Any], share: float, *, for_good: bool) -> tuple[float, bool]:
    """Return the seconds until a contestant's recommendation is close, first or for good.

    If it never is, they are all of its time, with False.

    Args:
        trials: `at` and `worth`, trial by trial.
        share: of the best that may be missing.
    """
    close = [worth >= 1 - share for worth in trials["worth"]]
    places = range(len(close))
    there = (place for place in places if all(close[place:] if for_good else close[place:][:1]))
    place = next(there, None)
    return (trials["at"][-1], False) if place is None else (trials["at"][place], True)


def raced(kind: str, seed: int, longer: float) -> dict[str, Any]:
    """All contestants once."""
    several = contestants(kind, seed, longer)
    order = random.Random(f"{kind}/{seed}").sample(list(several), len(several))
    seen = {}
    for name in order:
        seen[name] = several[name]()
        print(f"{kind}, seed {seed}: {name} done", file=sys.stderr, flush=True)
    every = [one.recommended for trials in seen.values() for one in trials]
    worth = worths(kind, every, seen["ours"][-1].recommended)
    best = max(worth.values())
    found: dict[str, Any] = {"workload": kind, "seed": seed, "order": order}
    found |= {"knobs": list(SPACE), "longer": longer}
    for name, trials in seen.items():
        found[name] = {
            "worth": [round(worth[key(one.recommended)] / best, 4) for one in trials],
            "at": [round(one.at, 2) for one in trials],
            "rates": [round(one.rate, 1) for one in trials],
            "tried": [list(one.tried.values()) for one in trials],
            "recommended": [list(one.recommended.values()) for one in trials],
        }
    return found


def summary(races: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return, by workload, the seconds until the recommendation is close, first and for good.

    The geometric means of the ratios of the others to ours are included.
    """
    found: dict[str, Any] = {}
    for kind in dict.fromkeys(one["workload"] for one in races):
        own = [one for one in races if one["workload"] == kind]
        found[kind] = {
            f"within {share:.0%}, {until}": _until(own, share, for_good=until == "for good")
            for share in CLOSE
            for until in ("first", "for good")
        }
    return found


def _until(races: Sequence[dict[str, Any]], share: float, *, for_good: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"races": len(races)}
    ours = [reached(one["ours"], share, for_good=for_good)[0] for one in races]
    for name in ("ours", "tpe", "torchrun"):
        several = [reached(one[name], share, for_good=for_good) for one in races]
        found[name] = {
            "seconds": [seconds for seconds, _ in several],
            "there": sum(there for _, there in several),
        }
        if name != "ours":
            ratios = [seconds / own for (seconds, _), own in zip(several, ours, strict=True)]
            found[name]["times"] = round(statistics.geometric_mean(ratios), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3, help="seeds of each workload")
    parser.add_argument("--first", type=int, default=0, help="of these seeds")
    parser.add_argument("--longer", type=float, default=1.0, help="times the seconds of ours")
    parser.add_argument("--only", choices=KINDS, help="one workload")
    parser.add_argument("--report", type=Path, help="written after every race")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    races: list[dict[str, Any]] = []
    for seed in range(given.first, given.first + given.pairs):
        for kind in KINDS:
            if given.only in (None, kind):
                races.append(raced(kind, seed, given.longer))
                report = {"close": CLOSE, "workloads": summary(races), "races": races}
                if given.report:
                    given.report.write_text(json.dumps(report, indent=1))
    if given.json:
        print(json.dumps(report, indent=1))
        return
    for kind, until in report["workloads"].items():
        for name, one in until.items():
            print(
                f"{kind}, {name}: ours {statistics.median(one['ours']['seconds']):.0f} s, TPE "
                f"{one['tpe']['times']} times, torchrun per trial {one['torchrun']['times']} times"
            )


if __name__ == "__main__":
    main()
