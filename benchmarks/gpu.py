"""One hour on a GPU that says everything, most valuable first.

    python benchmarks/gpu.py [--json] [--minutes N] [--only TITLE] [--output docs/results]
    python benchmarks/gpu.py --rehearse

What is measured goes to gpu-NAME.jsonl in the output folder, part by part, so that another session goes
on where this one ends: a part that is there is not measured again. After every part gpu-NAME.md and
gpu-NAME.json are written from it, and knobs-gpu.json with docs/knobs.md.
A part looks at the time between its rounds, so the last one may take a round longer. From a checkout
that is not installed: PYTHONPATH=$PWD python3 benchmarks/gpu.py.

--rehearse runs all parts on the CPU, at sizes that mean nothing, through the same code as far as there
is any without a device; it writes to a temporary folder and prints no figure.
"""

import argparse
import functools
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from gpu import matrix, parts
from gpu.bench import GPU, REHEARSAL, Bench, Figures
from gpu.journal import Journal
from gpu.page import page

from autotune.views.catalogue import knobs_page, recorded_effects

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = DOCS / "results"
_KNOBS_MINUTES = 5.0
_LEAST_SHARE = 0.3
"""Share of its time that must be left for a part to begin."""

Part = Callable[[Bench], Figures]


def all_parts() -> dict[str, tuple[float, Part]]:
    """Title -> (minutes at most, function), most valuable first."""
    knobs: dict[int, dict[str, tuple[float, Part]]] = {rank: {} for rank in matrix.RANKS}
    for group in matrix.groups():
        measure = functools.partial(matrix.measure, group=group)
        knobs[matrix.rank(group)][matrix.title(group)] = (_KNOBS_MINUTES, measure)
    return {
        "machine": (2, parts.machine),
        **knobs[0],
        "clock: events of the device": (2, parts.events),
        "clock: a bare loop": (4, parts.bare),
        "noise of equal runs": (3, parts.noise),
        "utilisation": (4, parts.utilisation),
        **knobs[1],
        "memory": (4, parts.memory),
        "cost of a trial": (4, parts.cost_of_trials),
        "two ranks on one device": (4, parts.sharing),
        "study: transformer": (12, parts.study_transformer),
        "study: gpt": (12, parts.study_gpt),
        **knobs[2],
        "replay table": (15, parts.table),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no part begins")
    parser.add_argument("--only", default="", help="parts whose title contains this")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for what is kept")
    parser.add_argument("--rehearse", action="store_true", help="all of it, tiny, on the CPU")
    parser.add_argument("--json", action="store_true", help="print all figures at the end")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output") if arguments.rehearse else arguments.output
        output.mkdir(parents=True, exist_ok=True)
        name = "rehearsal" if arguments.rehearse else device()
        journal = Journal(output / f"gpu-{name}.jsonl")
        bench = Bench(REHEARSAL if arguments.rehearse else GPU, Path(folder), output.resolve())
        run(bench, journal, name, minutes=arguments.minutes, only=arguments.only)
        if arguments.rehearse:
            failed = [title for title, part in journal.parts().items() if "error" in part]
            sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
        if arguments.json:
            print(json.dumps(journal.parts(), indent=2))


def device() -> str:
    """Its name as part of a file's name.

    CUDA is asked in another process: nothing here may hold the device while trials run.
    """
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if not asked.stdout.strip():
        sys.exit("no CUDA device is seen; --rehearse runs all parts on the CPU, at tiny sizes")
    return re.sub(r"[^a-z0-9]+", "-", asked.stdout.strip().lower())


def run(bench: Bench, journal: Journal, name: str, *, minutes: float, only: str) -> None:
    """Measure the parts that are missing, as far as the time goes; write all there is after each."""
    end = time.monotonic() + 60 * minutes
    for title, (most, part) in all_parts().items():
        if only not in title or journal.done(title):
            continue
        started = time.monotonic()
        if end - started < _LEAST_SHARE * 60 * most:
            print(f"{title}: no time is left", flush=True)
            continue
        bench.until = min(end, started + 60 * most)
        figures, error = {}, ""
        try:
            figures = part(bench)
        except Exception:  # one part must not cost the others
            error = traceback.format_exc()
            print(error, file=sys.stderr)
        seconds = time.monotonic() - started
        journal.add(title, seconds, figures, error)
        write(name, journal, bench.output)
        print(f"{title}: {'failed' if error else 'done'} in {seconds:.0f} s", flush=True)


def write(name: str, journal: Journal, output: Path) -> None:
    """Write the page, all figures, and what docs/knobs.md shows of them."""
    found = journal.parts()
    known = [title for title in all_parts() if title in found]
    ordered = {title: found[title] for title in known}
    (output / f"gpu-{name}.json").write_text(json.dumps(ordered, indent=2) + "\n", "utf-8")
    (output / f"gpu-{name}.md").write_text(page(name, ordered), "utf-8")
    effects = matrix.effects({title: part["figures"] for title, part in ordered.items()})
    (output / "knobs-gpu.json").write_text(json.dumps(effects, indent=2) + "\n", "utf-8")
    target = DOCS if output.resolve() == RESULTS else output
    (target / "knobs.md").write_text(knobs_page(recorded_effects(output)), "utf-8")


if __name__ == "__main__":
    main()
