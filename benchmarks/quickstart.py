"""Time of `make quickstart`, repeated, and the scatter of its answers.

    python benchmarks/quickstart.py [--json] [--runs N]

Each run is the study of examples/quickstart.yaml in a folder of its own, from the command to the
verdict; what sets up the environment is not in it. The runs follow each other on one machine, so how far
their speed-ups lie apart is the noise of the whole (A/A). `overlap`: whether one value lies in all
intervals of those that found something better; `half_widths` are theirs.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from autotune.analysis.verdict import Kind
from autotune.views.recompute import recomputed_verdict
from autotune.views.verdict_text import text_of
from storage import Database, Repository

STUDY = Path(__file__).parent.parent / "examples" / "quickstart.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    runs = []
    for number in range(1, given.runs + 1):
        runs.append(quickstart())
        told = runs[-1]["verdict"] if given.json else json.dumps(runs[-1])
        print(f"{number} of {given.runs}: {told}", file=sys.stderr, flush=True)
    report = {**summary(runs), "runs": runs}
    print(json.dumps(report, indent=1) if given.json else json.dumps(summary(runs)))


def quickstart() -> dict[str, Any]:
    """One of them."""
    name = yaml.safe_load(STUDY.read_text())["name"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        command = [sys.executable, "-m", "autotune", "start", str(STUDY), "--foreground"]
        subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        database = Database(f"sqlite:///{folder}/autotune.db")
        verdict = recomputed_verdict(Repository(database), name)
        best = Path(folder, "best.yaml")
        knobs = yaml.safe_load(best.read_text())["knobs"] if best.exists() else {}
    speedup = verdict.speedup
    return {
        "seconds": round(seconds, 1),
        "verdict": verdict.kind,
        "speedup": None if speedup is None else [speedup.value, speedup.low, speedup.high],
        "sentence": text_of(verdict),
        "split": [knobs.get("micro_batch"), knobs.get("accumulation_steps")],
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all runs."""
    told = [run["speedup"] for run in runs if run["verdict"] == Kind.BETTER]
    common = [max(low for _, low, _ in told), min(high for *_, high in told)] if told else None
    seconds = [run["seconds"] for run in runs]
    widths = sorted(math.sqrt(high / low) - 1 for _, low, high in told if low > 0)
    return {
        "seconds": [min(seconds), round(statistics.median(seconds), 1), max(seconds)],
        "verdicts": dict(Counter(str(run["verdict"]) for run in runs)),
        "half_widths": [round(width, 4) for width in widths],
        "common": common,
        "overlap": common is not None and common[0] <= common[1],
    }


if __name__ == "__main__":
    main()
