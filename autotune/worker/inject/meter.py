"""Speed of the user's own job, observed from within it without disturbing the job."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from autotune.worker.inject.changes import ScriptObjects
from autotune.worker.inject.place import place
from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.inject.speed_report import SpeedReport
from autotune.worker.inject.steps import after_steps
from autotune.worker.patches import wrapping

BLOCK_SECONDS = 1.0
"""A block ends with the first step that ends after so long."""

MOST_WAITING = 10_000
"""Batches before a backward pass that are kept: more are those of an evaluation.

torch.autograd.backward and grad are not seen. Where steps are taken without a pass that is seen, no
batch ever counts.
"""


class Meter:
    """Timer of blocks of whole steps.

    It does not wait for a device: over a second the device's queue holds the program to its speed.
    """

    def __init__(
        self,
        probe: ScriptProbe,
        tell: Callable[[int, float, float, float], None],
        *,
        step_samples: int = 0,
        always: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare the timer.

        Args:
            tell: called at the end of each block with its steps, seconds, samples and tokens.
            step_samples: samples of a step by the study, where no loader shows them; 0: unknown.
            always: whether `step_samples` counts even if a loader shows other samples.
            clock: returns seconds.
        """
        self._probe = probe
        self._tell = tell
        self._step_samples = step_samples
        self._always = always
        self._clock = clock
        self._steps = 0
        self._samples = self._tokens = 0
        self._started: float | None = None

    def taken(self) -> None:
        """Take in an optimizer step. The first one begins the first block."""
        now = self._clock()
        self._steps += 1
        if self._started is not None:
            seconds = now - self._started
            if seconds < BLOCK_SECONDS:
                return
            self._tell(self._steps, seconds, *self._drawn())
        self._steps, self._started = 0, now
        self._samples, self._tokens = self._probe.samples, self._probe.tokens

    def _drawn(self) -> tuple[float, float]:
        rows, tokens = self._probe.samples - self._samples, self._probe.tokens - self._tokens
        if self._step_samples and (self._always or not self._probe.saw_loader):
            samples = self._step_samples * self._steps
            return samples, samples * tokens / rows if rows else 0.0
        return rows, tokens


class JobProbe(ScriptProbe):
    """Probe that survives a script which it does not understand."""

    problem = ""

    def watch_speed(self, taken: Callable[[], None]) -> None:
        """Observe samples and steps only.

        Args:
            taken: called after every step of the training.
        """
        self._watch_loaders()

        @wrapping(torch.Tensor, "backward")
        def watched(backward: Any, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self._trained(loss)
            backward(loss, *args, **kwargs)

        def after_step(optimizer: Optimizer, *_: Any) -> None:
            if self._leader.takes(optimizer):
                taken()

        after_steps(after_step)

    def _saw(self, loader: Any, batch: Any, samples: int | None, quiet: int) -> None:
        if not self.problem:
            try:
                ScriptProbe._saw(self, loader, batch, samples, quiet)
            except Exception as error:
                self._gives_up(f"{type(error).__name__}: {error}")
            if self.draws.waiting > MOST_WAITING:
                self._drops()

    def _trained(self, loss: torch.Tensor) -> None:
        try:
            ScriptProbe._trained(self, loss)
        except Exception as error:
            self._gives_up(f"{type(error).__name__}: {error}")

    def _drops(self) -> None:
        """Drop the batches so far."""
        if self.leader is not None and not self.accumulation.passes:
            self._gives_up(f"{MOST_WAITING} batches came, and no Tensor.backward")
        self.draws.clear()

    def _gives_up(self, problem: str) -> None:
        self.problem = problem
        self.draws.clear()


def begin(address: str, built: ScriptObjects, *, samples: int, always: bool) -> None:
    """Report this process's training from its first step on.

    Args:
        address: of the socket.
        samples: of a step by the study; see Meter.
        always: whether `samples` count even if a loader shows others.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        line.connect(address)
    except OSError:
        return  # in another container, or the watcher has ended
    line.setblocking(False)
    probe = JobProbe(built, counts_tokens=True)

    def tell(steps: int, seconds: float, samples: float, tokens: float) -> None:
        rank, world_size = place()
        report = SpeedReport(rank, world_size, steps, seconds, samples, tokens, probe.problem)
        with contextlib.suppress(OSError):
            line.send(report.to_text().encode())

    probe.watch_speed(Meter(probe, tell, step_samples=samples, always=always).taken)
