"""Cost per step of our hooks in a training script. Run by scripts.py.

A bare training loop in this process, with our hooks and without them in blocks in turn: those of a
trial, which count samples; those of its first steps, which make digests of the rows as well; those of a
job under `autotune run --watch`; and none a second time (A/A).
"""

import itertools
import math
import multiprocessing
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed import HashStore
from torch.optim import optimizer
from torch.utils.data import DataLoader, TensorDataset, dataloader

from autotune.worker.inject import meter
from autotune.worker.inject.changes import ScriptObjects
from autotune.worker.inject.rows import Rows
from autotune.worker.observers.progress import Progress
from autotune.worker.protocol import BlockPlan, Script, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.line import RankLine
from autotune.worker.rank.script_run import ScriptRun
from search_spaces import defaults

LOOPS = {"tiny": (32, 512, 600), "small": (128, 1024, 200)}
"""Samples of a batch, width of the model, rounds.

A step takes a few milliseconds, or some 20, which is as short as trainings are that are tuned."""
BLOCK_STEPS = 5
ARMS = ("none", "trial", "digests", "watched", "between_equals")
CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}
LIMIT = 0.005
"""Largest cost of the hooks, as a share of a step."""
_ITERATOR = dataloader._BaseDataLoaderIter
_PATCHED: tuple[tuple[Any, str], ...] = (
    *((_ITERATOR, name) for name in ("__next__", "_next_index", "_reset")),
    *((torch.amp.GradScaler, name) for name in ("scale", "step")),
    *((kind, "__enter__") for kind in (torch.no_grad, torch.inference_mode)),
    (torch.set_grad_enabled, "__init__"),
    (torch.Tensor, "backward"),
    (DataLoader, "__iter__"),
    (nn.Module, "eval"),
)
"""Methods of torch that the hooks replace."""
_HOOKS = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
_DATAGRAMS = (socket.AF_UNIX, socket.SOCK_DGRAM)


def bare_loop(batch: int, width: int) -> Iterator[None]:
    """Yield after each step of a training."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model.append(nn.Linear(width, 10))
    adam = torch.optim.AdamW(model.parameters())
    while True:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            yield


class Hooks:
    """Hooks that can be taken away and put back: of a trial, and of a job that is watched."""

    def __init__(self, folder: Path, batch: int) -> None:
        """Prepare for a loop with so many samples a batch."""
        with socket.socket(*_DATAGRAMS) as line:
            line.bind(f"{folder}/socket")
            self._states = {"none": self._state()}
            self._trial = _run_of_trial(folder, batch)
            self._trial.watch()
            self._states["trial"] = self._states["digests"] = self._state()
            self.set("none")
            meter.begin(f"{folder}/socket", ScriptObjects(), samples=0, always=False)
            self._states["watched"] = self._state()
            self.set("none")
        self._states["between_equals"] = self._states["none"]

    def _state(self) -> tuple[Any, ...]:
        methods = [getattr(owner, name) for owner, name in _PATCHED]
        return methods, [dict(hooks) for hooks in _HOOKS]

    def set(self, name: str) -> None:
        """Have these from now on."""
        methods, hooks = self._states[name]
        for (owner, patched), method in zip(_PATCHED, methods, strict=True):
            setattr(owner, patched, method)
        for found, wanted in zip(_HOOKS, hooks, strict=True):
            found.clear()
            found.update(wanted)
        self._trial._probe.rows = Rows(wanted=0) if name == "digests" else None


def _run_of_trial(folder: Path, batch: int) -> ScriptRun:
    request = TrialRequest(
        trial="overhead",
        factory="",
        args={},
        knobs=defaults(),
        world_size=1,
        seed=0,
        device="cpu",
        blocks=BlockPlan(min_steps=1_000_000),
        script=Script("bare.py", samples=batch),
    )
    progress = Progress.create(folder / "progress", 1)
    context = RankContext(0, 0, 1, (torch.device("cpu"),))
    line = _Line(multiprocessing.Pipe()[0], 0, progress.counter(0))
    return ScriptRun(request, context, line, HashStore(), lambda: None)


class _Line(RankLine):
    """Line to no agent."""

    def report(self, message: Any) -> None:
        """Report to nothing."""

    def leave(self, _outcome: Any, cause: str, **_: Any) -> NoReturn:
        """End the benchmark."""
        raise SystemExit(cause)


def per_step() -> dict[str, Any]:
    """Return seconds of a step of each loop, and what hooks add to it.

    They are by the processor's time, which neighbours disturb least, and by the wall clock.
    """
    torch.set_num_threads(1)
    return {name: _of_loop(*loop) for name, loop in LOOPS.items()}


def _of_loop(batch: int, width: int, rounds: int) -> dict[str, Any]:
    training, order = bare_loop(batch, width), random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        hooks = Hooks(Path(folder), batch)

    def block(name: str) -> dict[str, float]:
        hooks.set(name)
        started = {clock: read() for clock, read in CLOCKS.items()}
        for _ in itertools.islice(training, BLOCK_STEPS):
            pass
        found = {clock: (read() - started[clock]) / BLOCK_STEPS for clock, read in CLOCKS.items()}
        hooks.set("none")
        return found

    for name in ARMS * BLOCK_STEPS:
        block(name)
    # All in turn: what changes slowly on the machine concerns them alike.
    found = [{name: block(name) for name in order.sample(ARMS, len(ARMS))} for _ in range(rounds)]
    shown: dict[str, Any] = {"rounds": rounds, "block_steps": BLOCK_STEPS}
    shown["step_seconds"] = statistics.median(round_["none"]["processor"] for round_ in found)
    for name in ARMS[1:]:
        shown[name] = {
            clock: _added([(round_[name][clock], round_["none"][clock]) for round_ in found])
            for clock in CLOCKS
        }
    return shown


def _added(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the median time that is added per step, with its 95 % interval by ranks.

    It is given in microseconds and as a share of a step, with the step in seconds of which it is
    half a percent.
    """
    more = sorted(with_hooks - without for with_hooks, without in pairs)
    out = math.ceil(0.98 * math.sqrt(len(more)))
    middle = len(more) // 2
    low, value, high = more[middle - out], statistics.median(more), more[middle + out]
    step = statistics.median(without for _, without in pairs)
    return {
        "microseconds": value * 1e6,
        "low": low * 1e6,
        "high": high * 1e6,
        "share": value / step,
        "share_high": high / step,
        "below_half_percent_from_seconds": max(0.0, value / LIMIT),
    }


def shown(found: dict[str, Any]) -> Iterator[str]:
    """Return the figures as text."""
    for loop, name, clock in itertools.product(found, ARMS[1:], CLOCKS):
        one = found[loop][name][clock]
        interval = f"{one['low']:.0f} to {one['high']:.0f}"
        yield (
            f"{loop} loop, {found[loop]['step_seconds'] * 1e3:.1f} ms a step: {name} adds "
            f"{one['microseconds']:.0f} us ({interval}) by the {clock}, {one['share']:+.2%}; below "
            f"0.5 % from {one['below_half_percent_from_seconds'] * 1e3:.1f} ms on"
        )
