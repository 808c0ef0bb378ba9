"""Cost of observing an unchanged training script.

    python benchmarks/scripts.py [--json] [--examples ddp,fsdp2] [--trials 8] [--rounds 6] [--seconds 6]

Per step: a bare training loop in this process, with and without our hooks in blocks in turn; see
step_overhead.py. Per trial: the script as a trial, less its timed steps, and in turn with that one epoch
of it under torchrun.

With --examples instead: what a study of each of them promises, and what the job brings when it is
applied; see applied.py.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import applied
import step_overhead

import launchers
from autotune.measurement.estimate import paired_ratio
from autotune.worker.protocol import BlockPlan, Script, TrialRequest
from launchers import Resources
from search_spaces import defaults

SCRIPT = Path(__file__).parent.parent / "tests" / "scripts" / "plain_ddp.py"
TRIALS = 7
STEPS_OF_A_TRIAL = 40


def per_trial() -> dict[str, Any]:
    """Wall seconds beside the training, as a trial and under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / SCRIPT.name
        copy.write_text(SCRIPT.read_text())
        with launchers.section_of("local").open(Resources(2, 0, 1, 1), folder) as launcher:
            ours = lambda number: trial(launcher.slots[0], folder, number)  # noqa: E731
            found = [(ours(n), torchrun(folder)) for n in range(TRIALS + 1)][1:]
    mine, theirs = ([pair[side] for pair in found] for side in (0, 1))
    ratio = paired_ratio(theirs, mine)
    return {
        "trials": TRIALS,
        "trial_seconds": statistics.median(mine),
        "torchrun_seconds": statistics.median(theirs),
        "torchrun_over_trial": vars(ratio),
    }


def trial(slot: Any, folder: str, number: int) -> float:
    request = TrialRequest(
        trial=f"trial-{number}",
        factory="",
        args={},
        knobs=defaults(),
        world_size=2,
        seed=0,
        device="cpu",
        blocks=BlockPlan(0.0, STEPS_OF_A_TRIAL // 2, max_blocks=2),
        workdir=folder,
        log_dir=f"{folder}/logs-{number}",
        script=Script(SCRIPT.name, ("--epochs", "100000")),
    )
    report = slot.run_solo(request, lambda _: False)
    assert report.outcome is None, report.cause + report.log_tail
    return float(report.wall_seconds - sum(block.seconds for block in report.blocks))


def torchrun(folder: str) -> float:
    """One epoch and no more: less training than the trial has."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    started = time.perf_counter()
    subprocess.run(
        [*command, "2", SCRIPT.name, "--epochs", "1"], cwd=folder, check=True, capture_output=True
    )
    return time.perf_counter() - started


def shown(found: dict[str, Any]) -> Iterator[str]:
    launch = found["per_trial"]
    yield from step_overhead.shown(found["per_step"])
    yield (
        f"a trial costs {launch['trial_seconds']:.2f} s beside its steps, torchrun with its epoch "
        f"of training {launch['torchrun_seconds']:.2f} s: "
        f"{launch['torchrun_over_trial']['value']:.1f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--examples", help=f"of {', '.join(applied.NAMES)}, separated by commas; or all"
    )
    parser.add_argument("--trials", type=int, default=8, help="of each study")
    parser.add_argument("--rounds", type=int, default=6, help="of both jobs in turn")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each job, timed")
    arguments = parser.parse_args()
    if arguments.examples:
        names = applied.NAMES if arguments.examples == "all" else arguments.examples.split(",")
        how = {name: getattr(arguments, name) for name in ("trials", "rounds", "seconds")}
        print(json.dumps({name: applied.applied(name, **how) for name in names}, indent=2))
        return
    parts: dict[str, Callable[[], Any]] = {
        "per_trial": per_trial,
        "per_step": step_overhead.per_step,
    }
    found = {name: part() for name, part in parts.items()}
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(shown(found)))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
