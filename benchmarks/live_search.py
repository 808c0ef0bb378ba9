"""How long until a real study has seen a configuration close to the best? Our sampler and Optuna's TPE.

    python benchmarks/live_search.py [--json] [--pairs N] [--study FILE] [--wall-time 150s]

Whole studies in new databases, in turn: the same study file, budget and machine, only `sampler`
differs; the order within a pair alternates. The best is the best trial that either study of a pair has
seen, as machines change their speed from pair to pair. Trials of both have the same noise, so that a
lucky trial of either counts as the best for both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from storage import Database, Purpose, Repository, StoredAttempt

ROOT = Path(__file__).parent.parent
SAMPLERS = ("model", "tpe")
CLOSE = 0.05


def run(study: dict[str, Any], folder: Path, sampler: str, wall_time: str) -> list[StoredAttempt]:
    """The attempts of a whole study, in a database of its own."""
    folder.mkdir(parents=True)
    # What follows the search is not what is compared.
    shortest = {"attribution": 0, "finalists": 1, "rounds": 2}
    measurement = {**study.get("measurement", {}), **shortest}
    budget = {"trials": None, "wall_time": wall_time, "least_gain": 0}
    # The larger the space, the more there is to find.
    objective = {**study.get("objective", {}), "global_batch": "free"}
    changed = {
        "sampler": sampler,
        "measurement": measurement,
        "budget": budget,
        "objective": objective,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump({**study, **changed}))
    url = f"sqlite:///{folder / 'study.db'}"
    command = [sys.executable, "-m", "autotune", "start", "study.yaml", "--foreground"]
    subprocess.run(
        [*command, "--storage", url],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    repository = Repository(Database(url))
    return repository.attempts.of(repository.studies.named(study["name"]).id)


def reached(attempts: list[StoredAttempt], wanted: float) -> tuple[int, float] | None:
    """Trials and seconds until a trial of the search was this fast; None if none was."""
    tried = searched(attempts)
    for number, attempt in enumerate(tried, 1):
        if (attempt.result.throughput or 0.0) >= wanted and attempt.ended:
            return number, attempt.ended - tried[0].started
    return None


def best(attempts: list[StoredAttempt]) -> float:
    return max(a.result.throughput or 0.0 for a in searched(attempts))


def searched(attempts: list[StoredAttempt]) -> list[StoredAttempt]:
    return [a for a in attempts if a.purpose == Purpose.SEARCH and a.recorded]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--study", type=Path, default=ROOT / "examples" / "seed_transformer.yaml")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--wall-time", default="150s", help="of each study")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    study = yaml.safe_load(arguments.study.read_text())
    runs: dict[str, list[list[StoredAttempt]]] = {name: [] for name in SAMPLERS}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(arguments.pairs):
            for name in SAMPLERS if pair % 2 == 0 else reversed(SAMPLERS):
                seeded = {**study, "seed": pair}
                place = Path(folder, f"{pair}-{name}")
                runs[name].append(run(seeded, place, name, arguments.wall_time))
                print(f"{place.name}: {best(runs[name][-1]):.4g}", file=sys.stderr, flush=True)
    most = [max(map(best, pair)) for pair in zip(*runs.values(), strict=True)]
    report: dict[str, Any] = {"study": study["name"], "pairs": arguments.pairs, "best_seen": most}
    for name, several in runs.items():
        wanted = [(1 - CLOSE) * rate for rate in most]
        found = [reached(*one) for one in zip(several, wanted, strict=True)]
        hits = [one for one in found if one]
        report[name] = {
            "best_seen": [best(attempts) for attempts in several],
            "trials": [one[0] if one else None for one in found],
            "seconds": [round(one[1], 1) if one else None for one in found],
            "median_seconds": statistics.median(s for _, s in hits) if hits else None,
            "missed": len(found) - len(hits),
            "rates": [[a.result.throughput for a in searched(attempts)] for attempts in several],
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
