"""Outcomes of replayed launches: how fast they run or how they fail, and how the speed varies."""

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.worker.protocol import BlockReport, Knobs, Outcome, TrialRequest


def _nothing() -> None:
    """Do nothing."""


_STEP_PARTS = {"compute": 0.7, "communication": 0.15, "optimizer": 0.1, "loader": 0.05}


@dataclass(frozen=True)
class Launch:
    """A trial as a behaviour sees it.

    Attributes:
        number: number of launches of these knobs so far, this one included.
        at: virtual time in seconds at which it begins.
        processes: random generator of its processes, in the same state for all trials that run in them.
        before: knobs of the trial whose processes it takes over; None: it has processes of its own.
    """

    request: TrialRequest
    number: int
    at: float
    draw: random.Random
    processes: random.Random
    before: Knobs | None = None

    @property
    def taken_over(self) -> bool:
        """True if it takes over the processes of the previous trial."""
        return self.before is not None

    @property
    def knobs(self) -> Knobs:
        """The configuration."""
        return self.request.knobs


@dataclass(frozen=True)
class Answer:
    """Outcome of a launch.

    Attributes:
        rate: samples per second over all ranks.
        block_sigma: relative standard deviation of the time of blocks.
        pattern: times of consecutive steps over the typical one, repeated when it ends; empty: all
            steps are alike.
        first_step: seconds of the first step; None: as the others.
        startup: seconds before the first step in new processes.
        switch: seconds before the first step in a warm worker.
        tokens_per_sample: tokens of a sample; 0 if it has none.
        peak_bytes: peak memory of the rank that takes most; 0: unknown.
        loss: loss of the first step; it falls from there.
        gradient_norm: norm of the gradient of every step.
        replica_spread: see autotune.worker.protocol.Observed.
        parts: shares of a step by part, see autotune.worker.rank.trace.PARTS, alike for all ranks;
            empty: unknown.
        outcome: kind of failure; None: it does not fail.
        after: number of blocks that it reports before it fails.
        lost_agent: True if the agent dies with it.
        not_its_own: description of what has happened to its node.
        slows: share of the rate that it loses over minutes, as devices grow hot.
        tells_longest: True if its workload says which samples are the longest.
        first_steps: what else is observed of the first block.
        foreign_cpu: share of the processors that other processes use beside its ranks.
        watts: power of all devices together; None: it is not told.
        stays: True if its processes become a warm worker where they are asked to.
        begun: called once its first block has been reported.
    """

    rate: float = 1.0
    block_sigma: float = 0.0
    pattern: Iterable[float] = ()
    first_step: float | None = None
    startup: float = 0.0
    switch: float = 0.0
    tokens_per_sample: int = 0
    peak_bytes: int = 0
    loss: float = 1.0
    gradient_norm: float = 1.0
    replica_spread: float = 0.0
    parts: Mapping[str, float] = field(default_factory=lambda: _STEP_PARTS)
    outcome: Outcome | None = None
    cause: str = ""
    after: int = 0
    lost_agent: bool = False
    not_its_own: str = ""
    tells_longest: bool = False
    first_steps: Mapping[str, Any] = field(default_factory=dict)
    foreign_cpu: float = 0.0
    slows: float = 0.0
    stays: bool = True
    watts: float | None = None
    begun: Callable[[], None] = _nothing


Behaviour = Callable[[Launch], Answer]
"""Outcome of a launch; called by the threads of all slots."""


@dataclass(frozen=True)
class SpeedVariation:
    """Variation of a machine's speed, alike for everything that runs on it.

    Attributes:
        sigma: relative standard deviation of the speed.
        seconds: correlation time, after which two thirds of a deviation are gone.
    """

    sigma: float = 0.0
    seconds: float = 10.0


class MachineSpeed:
    """Speed of one machine: an Ornstein-Uhlenbeck process in the logarithm."""

    def __init__(self, variation: SpeedVariation, seed: str) -> None:
        self._variation = variation
        self._draw = random.Random(seed)
        self._now = self._draw.gauss(0.0, variation.sigma) if variation.sigma else 0.0

    def go_on(self, seconds: float) -> None:
        """Advance the time by this many seconds."""
        if not self._variation.sigma:
            return
        kept = math.exp(-seconds / self._variation.seconds)
        news = self._variation.sigma * math.sqrt(1.0 - kept**2)
        self._now = kept * self._now + self._draw.gauss(0.0, news)

    def of(self, block: BlockReport) -> BlockReport:
        """Return the block as it is timed at the present speed, and advance the time to its end."""
        if not self._variation.sigma:
            return block
        self.go_on(block.seconds)
        seconds = block.seconds * math.exp(self._now)
        ranks = (seconds,) * len(block.rank_seconds)
        return dataclasses.replace(block, seconds=seconds, rank_seconds=ranks)
