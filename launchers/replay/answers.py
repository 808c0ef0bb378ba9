"""What launches that are played come to: how fast they run, or how they fail."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.worker.protocol import Knobs, Outcome, TrialRequest

_STEP_PARTS = {"compute": 0.7, "communication": 0.15, "optimizer": 0.1, "loader": 0.05}


@dataclass(frozen=True)
class Launch:
    """A trial as a behaviour sees it.

    Attributes:
        number: how many launches of these knobs there were so far, this one included.
        at: virtual seconds at which it begins.
        draw: the chance of this launch.
        live: it takes over the processes of the trial before.
    """

    request: TrialRequest
    number: int
    at: float
    draw: random.Random
    live: bool = False

    @property
    def knobs(self) -> Knobs:
        """The configuration."""
        return self.request.knobs


@dataclass(frozen=True)
class Answer:
    """What a launch comes to.

    Attributes:
        rate: samples per second over all ranks.
        block_sigma: relative standard deviation of the time of blocks.
        startup: seconds before the first step, in new processes.
        switch: the same in processes that take over.
        tokens_per_sample: 0 where a sample has none.
        peak_bytes: of the rank that takes most; 0: not known.
        loss: of the first step; it falls from there.
        gradient_norm: of every step.
        replica_spread: see autotune.worker.protocol.Observed.
        parts: shares of a step by part, see autotune.worker.rank.trace.PARTS; the same for all ranks.
            Empty: not known.
        outcome: how it fails; None: it does not.
        cause: why, in words.
        after: blocks that it reports before it fails.
        lost_agent: the agent dies with it.
        not_its_own: what has happened to its node, in words.
        slows: share of its rate that it loses over minutes, as devices grow hot.
        tells_longest: its workload says which samples are the longest.
        first_steps: what else is observed of the first block.
        stays: its processes stay where they are asked to.
    """

    rate: float = 1.0
    block_sigma: float = 0.0
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
    slows: float = 0.0
    stays: bool = True


Behaviour = Callable[[Launch], Answer]
"""What a launch comes to; called by the threads of all slots."""
