"""Does `autotune diagnose` name what was planted first? Every planted bottleneck, several times.

    python benchmarks/bottlenecks.py [--json] [--times N]

The workloads are those of the tests (tests/workloads/bottlenecks.py): a loader that is slow, buckets of
10 KB, a loss read in every step of a device that is far behind, one rank that is slow. `unplanted` is,
in turn with them, the same model with nothing planted, and that of the buckets with usual buckets: how
often what is named first.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "loader": ("loader", {}),
    "buckets": ("communication", {"bucket_cap_mb": 0.01}),
    "reading": ("synchronisation", {"log_interval": 1}),
    "rank": ("straggler", {}),
}
UNPLANTED = ("none", "buckets")


def first_finding(folder: Path, planted: str, baseline: dict[str, Any]) -> str:
    """Return the first finding of a diagnosis."""
    study = {
        "workload": {"name": "bottlenecks:build", "args": {"planted": planted}},
        "resources": {"workers": 2},
        "search_space": {"micro_batch": [1, 2]},
        "baseline": baseline,
        "measurement": {"warmup": "0.1s", "block_seconds": "0.05s", "max_measure_time": "0.3s"},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump({"name": "planted", **study}))
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "diagnose", "study.yaml", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'workloads'}"},
    )
    return str(json.loads(done.stdout)["findings"][0]["name"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    times = arguments.times
    seen: dict[str, list[str]] = {name: [] for name in PLANTED}
    unplanted: dict[str, list[str]] = {name: [] for name in UNPLANTED}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(times):
            for name, (_, baseline) in PLANTED.items():
                seen[name].append(first_finding(Path(folder), name, baseline))
                if not arguments.json:
                    print(name, seen[name][-1], flush=True)
            for name, own in unplanted.items():
                own.append(first_finding(Path(folder), name, {}))
    report: dict[str, Any] = {
        name: {"named_first": seen[name].count(wanted), "of": times, "named": seen[name]}
        for name, (wanted, _) in PLANTED.items()
    }
    report["unplanted"] = {name: collections.Counter(own) for name, own in unplanted.items()}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
