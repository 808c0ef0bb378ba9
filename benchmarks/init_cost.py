"""Seconds that `autotune init` takes, with and without trying options and knobs from outside.

    python benchmarks/init_cost.py [--json] [--pairs N] [--folder FOLDER] -- COMMAND

Without, only the batch is looked for, and the baseline is run. The two are interleaved, in copies of the
folder; each pair has a second run without: the ratio between those shows the noise (A/A).
"""

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

WITH, WITHOUT, AGAIN = KINDS = ("with", "without", "without again")
WORKER = "AUTOTUNE_BENCHMARK_INIT"
"""Variable with the kind of run that a process of this file is to make."""


class Run(NamedTuple):
    """A run of init.

    Attributes:
        seconds: wall time.
        cpu_seconds: processor time of all its processes.
        looks: runs of the script.
        silence: longest time without a line of output, seconds.
    """

    seconds: float
    cpu_seconds: float
    looks: int
    silence: float


def run(folder: Path, command: list[str], kind: str) -> Run:
    """Run init of a command in a new copy of its folder.

    Raises:
        RuntimeError: it failed; with what it printed.
    """
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / folder.name
        shutil.copytree(folder, copy)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {**os.environ, "HOME": name, "PATH": path, WORKER: kind}
        before, began = _cpu_seconds(), time.monotonic()
        process = subprocess.Popen(
            [sys.executable, __file__, *command],
            cwd=copy,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        lines, moments = [], [began]
        for line in process.stdout:
            lines.append(line)
            moments.append(time.monotonic())
        if process.wait():
            raise RuntimeError("".join(lines))
        silences = [later - sooner for sooner, later in itertools.pairwise(moments)]
        looks = sum(line.startswith(("Looking at", "Running")) for line in lines)
        return Run(moments[-1] - began, _cpu_seconds() - before, looks, max(silences))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def init(kind: str, command: list[str]) -> None:
    """Run init in this process; leave out what is tried besides the batch unless it is `WITH`."""
    from autotune.__main__ import main as autotune
    from autotune.standalone import survey

    if kind != WITH:
        survey._seconds_for_trying = lambda _: 0.0
    sys.argv = ["autotune", "init", "--", *command]
    autotune()


def measured(folder: Path, command: list[str], pairs: int) -> dict[str, Any]:
    """Return the runs of each kind, and the ratios of their medians."""
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    for number in range(pairs):
        for kind in KINDS if number % 2 else reversed(KINDS):
            runs[kind].append(run(folder, command, kind))

    def ratio(first: str, second: str, field: str) -> float:
        of = [
            statistics.median(getattr(one, field) for one in runs[kind]) for kind in (first, second)
        ]
        return round(of[0] / of[1], 2)

    fields = ("seconds", "cpu_seconds")
    return {
        "command": command,
        "runs": {kind: [one._asdict() for one in each] for kind, each in runs.items()},
        "ratio": {field: ratio(WITH, WITHOUT, field) for field in fields},
        "equals": {field: ratio(AGAIN, WITHOUT, field) for field in fields},
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Measure, and print."""
    if kind := os.environ.get(WORKER):
        init(kind, sys.argv[1:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(), help="that the command runs in")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    found = measured(asked.folder.resolve(), asked.command, asked.pairs)
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for kind, runs in found["runs"].items():
        print(kind, *(f"{one['seconds']:.1f} s" for one in runs))
    print(f"ratio {found['ratio']}, A/A {found['equals']}")


if __name__ == "__main__":
    main()
