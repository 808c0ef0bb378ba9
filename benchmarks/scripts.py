"""What it costs to look at a training script that nobody has changed.

    python benchmarks/scripts.py [--json] [--examples ddp,fsdp2] [--trials 8] [--rounds 6] [--seconds 6]

Per step: a bare training loop in this process, with and without our hooks in blocks in turn (those of a
trial, and those of `autotune run --watch`), and the same between equals (A/A). Per trial: the script as
a trial, less its timed steps, and in turn with that one epoch of it under torchrun.

With --examples instead: what a study of each of them promises, and what the job brings when it is
applied; see applied.py.
"""

import argparse
import contextlib
import itertools
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import applied
import torch
from torch import nn
from torch.optim import optimizer
from torch.utils.data import DataLoader, TensorDataset, dataloader

import launchers
from autotune.measurement.estimate import paired_ratio
from autotune.trial.inject import meter
from autotune.trial.inject.changes import Built
from autotune.trial.inject.sight import Sight
from autotune.trial.protocol import BlockPlan, Script, TrialRequest
from launchers import Resources
from search_spaces import defaults

SCRIPT = Path(__file__).parent.parent / "tests" / "scripts" / "plain_ddp.py"
BLOCK_STEPS = 25
PAIRS = 200
DATAGRAMS = (socket.AF_UNIX, socket.SOCK_DGRAM)
TRIALS = 7
STEPS_OF_A_TRIAL = 40


def bare_loop() -> Iterator[None]:
    """A training that takes a step whenever it is asked for the next; a millisecond or two each."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model.append(nn.Linear(512, 10))
    adam = torch.optim.AdamW(model.parameters())
    while True:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            yield


class Hooks:
    """Ours, which can be taken away and put back: of a trial, and of a job that is watched."""

    def __init__(self, address: str) -> None:
        self._states = {"none": self._state()}
        Sight().watch(went_on=_nothing, before=_nothing, after=_nothing)
        self._states["trial"] = self._state()
        self.set("none")
        meter.begin(address, Built(), samples=0, always=False)
        self._states["watched"] = self._state()

    def _state(self) -> tuple[Any, ...]:
        hooks = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
        fetch = dataloader._BaseDataLoaderIter.__next__
        return (fetch, torch.Tensor.backward, *(dict(found) for found in hooks))

    def set(self, name: str) -> None:
        fetch, backward, pre, post = self._states[name]
        dataloader._BaseDataLoaderIter.__next__ = fetch
        torch.Tensor.backward = backward
        for found, wanted in (
            (optimizer._global_optimizer_pre_hooks, pre),
            (optimizer._global_optimizer_post_hooks, post),
        ):
            found.clear()
            found.update(wanted)


def _nothing(**_: Any) -> None:
    """At a step."""


def per_step() -> dict[str, Any]:
    """Seconds of a step with our hooks over those without, and between equals; on the processor, which
    neighbours disturb least, and by the wall clock."""
    torch.set_num_threads(1)
    training, order = bare_loop(), random.Random(0)
    with tempfile.TemporaryDirectory() as folder, socket.socket(*DATAGRAMS) as line:
        line.bind(f"{folder}/socket")
        hooks = Hooks(f"{folder}/socket")
    for _ in itertools.islice(training, 10 * BLOCK_STEPS):
        pass

    def block(name: str) -> tuple[float, float]:
        hooks.set(name)
        started = time.process_time(), time.perf_counter()
        for _ in itertools.islice(training, BLOCK_STEPS):
            pass
        ended = time.process_time(), time.perf_counter()
        return ended[0] - started[0], ended[1] - started[1]

    compared = ("trial", "watched", "between_equals")
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in compared}
    # All in turn: what changes slowly on the machine concerns them alike.
    for _, name in itertools.product(range(PAIRS), compared):
        other = "none" if name == "between_equals" else name
        if order.random() < 0.5:
            with_hooks, without = block(other), block("none")
        else:
            without, with_hooks = block("none"), block(other)
        pairs[name].append((with_hooks, without))
    step = statistics.median(without[0] for found in pairs.values() for _, without in found)
    shown = {"pairs": PAIRS, "block_steps": BLOCK_STEPS, "step_seconds": step / BLOCK_STEPS}
    clocks = {"processor": 0, "wall": 1}
    return shown | {
        name: {clock: _compared(found, at) for clock, at in clocks.items()}
        for name, found in pairs.items()
    }


def _compared(pairs: list[tuple[Any, Any]], clock: int) -> dict[str, float]:
    found = paired_ratio([a[clock] for a, _ in pairs], [b[clock] for _, b in pairs])
    middle = statistics.median(a[clock] / b[clock] for a, b in pairs)
    shown = {"median": middle, "value": found.value, "low": found.low, "high": found.high}
    return {name: figure - 1 for name, figure in shown.items()}


def per_trial() -> dict[str, Any]:
    """Wall seconds beside the training, as a trial and under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / SCRIPT.name
        copy.write_text(SCRIPT.read_text())
        with launchers.open_launcher("local", Resources(2, 0, 1, 1), folder, None) as launcher:
            ours = lambda number: trial(launcher.slots[0], folder, number)  # noqa: E731
            found = [(ours(n), torchrun(folder)) for n in range(TRIALS + 1)][1:]
    mine, theirs = ([pair[side] for pair in found] for side in (0, 1))
    ratio = paired_ratio(theirs, mine)
    return {
        "trials": TRIALS,
        "trial_seconds": sorted(mine)[len(mine) // 2],
        "torchrun_seconds": sorted(theirs)[len(theirs) // 2],
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
    report = slot.run(request, lambda _: False)
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
    step, launch = found["per_step"], found["per_trial"]
    for name in ("trial", "watched", "between_equals"):
        for clock, one in step[name].items():
            interval = f"{one['low']:+.2%} to {one['high']:+.2%}"
            yield f"{name}: {one['value']:+.2%} per step by the {clock} ({interval})"
    yield (
        f"a trial costs {launch['trial_seconds']:.2f} s beside its steps, torchrun "
        f"{launch['torchrun_seconds']:.2f} s: {launch['torchrun_over_trial']['value']:.1f}x"
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
    parts: dict[str, Callable[[], Any]] = {"per_trial": per_trial, "per_step": per_step}
    found = {name: part() for name, part in parts.items()}
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(shown(found)))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
