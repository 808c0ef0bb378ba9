"""Does `autotune diagnose` name what was planted first? Every planted bottleneck, several times.

    python benchmarks/bottlenecks.py [--json] [--times N]

The workloads are those of the tests (tests/workloads/bottlenecks.py): a loader that is slow, buckets of
10 KB, a loss read in every step of a device that is far behind, one rank that is slow. `equals` is the
same without anything planted, in turn with them: how often it names which part first.
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
EQUALS = {"name": "mlp", "args": {"layers": 2, "width": 64}}


def first_finding(folder: Path, workload: dict[str, Any], baseline: dict[str, Any]) -> str:
    """What a diagnosis names first."""
    study = {
        "workload": workload,
        "resources": {"workers": 2},
        "search_space": {"micro_batch": [1, 2]},
        "baseline": baseline,
        "measurement": {"warmup": "0.1s", "block_seconds": "0.05s", "longest": "0.3s"},
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
    times = parser.parse_args().times
    seen: dict[str, list[str]] = {name: [] for name in (*PLANTED, "equals")}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(times):
            for name, (_, baseline) in PLANTED.items():
                workload = {"name": "bottlenecks:build", "args": {"planted": name}}
                seen[name].append(first_finding(Path(folder), workload, baseline))
            seen["equals"].append(first_finding(Path(folder), EQUALS, {}))
    report: dict[str, Any] = {
        name: {"named_first": seen[name].count(wanted), "of": times, "named": seen[name]}
        for name, (wanted, _) in PLANTED.items()
    }
    report["equals"] = dict(collections.Counter(seen["equals"]))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
