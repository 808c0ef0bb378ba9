"""Wall time of blocks of whole optimizer steps, and the time spent waiting for the loader."""

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from autotune.worker.observers.moments import StepMoments
from autotune.worker.protocol import BlockPlan

_OVERRUN = 2.0
"""Factor by which a block may grow to hold a whole number of logging intervals."""


class BlockClock:
    """Timer of a block. The device is synchronised at its two ends and nowhere between them.

    A block that follows an untimed step on CUDA is timed between events of the device instead, and
    begins without waiting for it. As in a long run the host prepares its first step while the device is
    busy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = 0.0
        self._begun: torch.cuda.Event | None = None
        self.wait_seconds = 0.0

    def start(self, *, follows: bool = False) -> None:
        """Begin a block.

        Args:
            follows: True if it follows an untimed step at once.
        """
        self.wait_seconds = 0.0
        if follows and self._device.type == "cuda":
            self._begun = self._event()
            return
        self._begun = None
        self._synchronize()
        self._started = time.perf_counter()

    def stop(self) -> float:
        """Return the seconds since `start`."""
        ended = self._event() if self._begun else None
        self._synchronize()
        if self._begun and ended:
            return float(self._begun.elapsed_time(ended)) / 1e3
        return time.perf_counter() - self._started

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; count the time to get each as waiting."""
        while True:
            asked = time.perf_counter()
            batch = next(batches)
            self.wait_seconds += time.perf_counter() - asked
            yield batch

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class StepTimes(NamedTuple):
    """Times of the steps of a block, in seconds."""

    p50: float
    p95: float
    longest: float
    moments: StepMoments


class StepMarks:
    """Times of every step of a block, taken without waiting for any.

    They are events of the device on CUDA, and the host's clock on the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._marks: list[Any] = []
        self._pool: list[torch.cuda.Event] = []

    def start(self) -> None:
        """Begin a block."""
        if self._cuda:
            self._pool += self._marks
        self._marks = []
        self.mark()

    def mark(self) -> None:
        """Record the end of a step."""
        if not self._cuda:
            self._marks.append(time.perf_counter())
            return
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record(
            torch.cuda.current_stream(self._device)
        )  # the script's own device may be another
        self._marks.append(event)

    def percentiles(self) -> StepTimes:
        """Return the durations of the steps since the block began. On CUDA, synchronise before."""
        pairs = itertools.pairwise(self._marks)
        if self._cuda:
            times = [before.elapsed_time(after) / 1e3 for before, after in pairs]
        else:
            times = [after - before for before, after in pairs]
        steps = sorted(times)
        p95 = steps[math.ceil(0.95 * len(steps)) - 1]
        # The host's clock does not see a processor's step by itself: others run beside it.
        moments = StepMoments.of(times) if self._cuda else StepMoments()
        return StepTimes(statistics.median(steps), p95, steps[-1], moments)


@dataclass
class BlockLength:
    """Number of optimizer steps of the next block; the same on every rank.

    The first block is a single step: it holds allocation, autotuning and compilation, and tells
    little about the speed. The length settles over the next two in which nothing is compiled, and then
    stays.
    """

    plan: BlockPlan
    log_interval: int
    fewest: int = 1
    """Fewest steps of a block that stands for the training, however long they take."""
    steps: int = 1
    _learnt: int = field(default=0, init=False)
    _SETTLED_AT = 3

    def learn(
        self, index: int, seconds: float, *, rested: bool = False, compiled: bool = False
    ) -> None:
        """Take in that block `index`, of `steps` steps, took `seconds` on the slowest rank.

        Args:
            index: of the block, from 0.
            seconds: wall time of the block.
            rested: whether other trials have trained before it.
            compiled: whether something was compiled in it.
        """
        if self._learnt < self._SETTLED_AT:
            self._adapt(self.steps, seconds)
            self._learnt += not (index and compiled)

    def _adapt(self, steps: int, seconds: float) -> None:
        """Choose the length from the time that some steps took."""
        wanted = max(self.plan.min_steps, math.ceil(self.plan.seconds * steps / seconds))
        most = max(self.fewest, self.plan.longest * steps / seconds)
        wanted = max(self.fewest, wanted if wanted <= most else math.floor(most))
        whole_intervals = math.ceil(wanted / self.log_interval) * self.log_interval
        # Whole logging intervals charge logging exactly. Where an interval is far longer than a
        # block, the block ends with one reading instead: logging is then charged too often.
        fits = whole_intervals <= min(_OVERRUN * wanted, most)
        self.steps = whole_intervals if fits else wanted


@dataclass
class InterleavedBlockLength(BlockLength):
    """Block length of interleaved trials, settled before the first switch to another trial.

    The operating system favours processes that train for a shorter time after each rest, so blocks
    of different lengths would bias the comparison. The fastest of the latest blocks tells the length:
    steps are slow while they warm up, or where the machine is disturbed.
    """

    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    """Seconds of a step."""
    _settled: bool = False

    def learn(
        self, index: int, seconds: float, *, rested: bool = False, compiled: bool = False
    ) -> None:
        """Take in a block, unless the trial has rested since it began; see BlockLength."""
        self._settled |= rested
        if self._settled:
            return
        if index and not compiled:
            self._latest.append(seconds / self.steps)
        self._adapt(1, min(self._latest, default=seconds / self.steps))
