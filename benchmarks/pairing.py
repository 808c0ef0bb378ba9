"""How far apart do equal trials of one search lie, with the baseline beside them and without?

    python benchmarks/pairing.py [--json] [--rounds N] [--trials N] [--busy SHARE]

Studies whose trials all train the same: what they vary changes nothing. How far apart they lie is to be
what their standard errors claim. Pairs of studies on two ranks, one of each kind, in turn, in databases
of their own. With --busy a process takes a core for so large a share of the time, in spells of seconds.
"""

import argparse
import contextlib
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from autotune.analysis.noise_backfill import error_of
from autotune.config import load
from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from autotune.service.submission import submit
from autotune.study.pairing import PairingPolicy
from storage import AttemptState, Database, Purpose, Repository, StoredAttempt

BUCKETS = list(range(10, 74))
"""MiB: the model's gradients fill none of them, so nothing depends on it."""
MEASUREMENT = {
    "block_seconds": "0.1s",
    "min_steps": 2,
    "warmup": "0.3s",
    "max_measure_time": "1.5s",
    "search_ci_half_width": 0.03,
    "baseline_runs": 2,
    "finalists": 1,
    "rounds": 2,
    "ablation_rounds": 0,
}
_SPELL_SECONDS = 4.0
_BUSY = """
import random, sys, time
draw = random.Random(0)
while True:
    until = time.monotonic() + draw.expovariate(1 / float(sys.argv[2]))
    works = draw.random() < float(sys.argv[1])
    while time.monotonic() < until:
        if not works:
            time.sleep(0.01)
"""


@contextlib.contextmanager
def neighbour(share: float) -> Iterator[None]:
    """Occupy the machine as another user would, for this share of the time."""
    if not share:
        yield
        return
    command = [sys.executable, "-c", _BUSY, str(share), str(_SPELL_SECONDS)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def searched(folder: Path, trials: int, seed: int, *, paired: bool) -> dict[str, Any]:
    """How far apart the trials of one study lie, and what they took."""
    study = {
        "name": "equal",
        "workload": {"name": "gpt", "args": {"layers": 2, "d_model": 64, "heads": 2, "length": 32}},
        "resources": {"workers": 2, "max_concurrent_trials": 1},
        "search_space": {"bucket_cap_mb": BUCKETS},
        "baseline": {"bucket_cap_mb": BUCKETS[0], "micro_batch": 4},
        "sampler": "random",
        "seed": seed,
        "budget": {"trials": trials, "min_improvement": 0},
        "measurement": MEASUREMENT,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    repository = Repository(Database(f"sqlite:///{folder / 'study.db'}"))
    submit(repository, load(folder / "study.yaml"), folder)
    if paired:
        why = mock.patch("autotune.study.pairing.why_not_comparable", lambda *_: "it is asked for")
    else:
        why = mock.patch.object(PairingPolicy, "baseline_rate", lambda *_: None)
    with why:
        Daemon(repository, this_queue()).serve(idle_seconds=0.0)
    found = repository.studies.named("equal")
    assert found.verdict is not None, found.error
    every = repository.attempts.of(found.id)
    own = [a for a in every if a.purpose == Purpose.SEARCH][1:]
    done = [a for a in own if a.result.state == AttemptState.COMPLETE]
    logs = [math.log(a.result.throughput or math.nan) for a in done]
    return {
        "deviation": statistics.stdev(logs),
        "claimed": math.sqrt(statistics.mean((error_of(a.result) or 0.0) ** 2 for a in done)),
        "by_blocks": math.sqrt(
            statistics.mean((error_of(a.result) or 0.0) ** 2 - _between(a) ** 2 for a in done)
        ),
        "trials": len(done),
        "pruned": sum(a.result.state == AttemptState.PRUNED for a in own),
        "seconds_each": statistics.mean(
            a.result.wall_seconds + _beside(a.trial, every) for a in own
        ),
    }


def _between(attempt: StoredAttempt) -> float:
    return attempt.result.sigma_run or 0.0


def _beside(trial: int, every: Any) -> float:
    beside = (a for a in every if a.beside == trial)
    return math.fsum(a.result.wall_seconds for a in beside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--busy", type=float, default=0.0, metavar="SHARE")
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"paired": [], "alone": []}
    with neighbour(given.busy):
        for round_ in range(given.rounds):
            kinds = list(found)
            random.Random(round_).shuffle(kinds)
            for kind in kinds:
                with tempfile.TemporaryDirectory() as folder:
                    one = searched(Path(folder), given.trials, round_, paired=kind == "paired")
                    found[kind].append(one)
    report = {kind: _summary(several) for kind, several in found.items()} | {"studies": found}
    if given.json:
        print(json.dumps(report, indent=1))
        return
    for kind in found:
        figures = report[kind]
        print(
            f"{kind}: equal trials lie {figures['deviation']:.1%} apart, and take "
            f"{figures['seconds_each']:.1f} s each; by their intervals {figures['claimed']:.1%}"
        )


def _summary(several: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "deviation": math.sqrt(statistics.mean(one["deviation"] ** 2 for one in several)),
        "claimed": math.sqrt(statistics.mean(one["claimed"] ** 2 for one in several)),
        "seconds_each": statistics.mean(one["seconds_each"] for one in several),
    }


if __name__ == "__main__":
    main()
