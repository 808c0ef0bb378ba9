"""Trials without ranks: slots that answer from a recorded table or a function, in virtual time.

A behaviour (launchers.behaviours) says what a launch comes to: how fast it runs, or how it fails. The
slot turns that into the blocks that rank 0 would have reported, and asks the watch about each, so
whatever stands above a launcher works as it does over ranks, a trial in a millisecond.

Each slot has a time of its own, which goes on by what its trials would have taken; the launcher's clock
is that of the slot that is furthest. What waits for a trial waits no time, so a slot that has long
trials holds nobody up: with several slots the clock tells how long the busiest of them took. What
chance decides in a launch is drawn from the seed, the knobs and the name of the launch; neither
threads nor the order of launches matter. Only how the speed of a machine wanders goes with the time of
its slot, so that what runs at about the same time is slow together.
"""

import dataclasses
import itertools
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.trial.protocol import (
    BlockReport,
    Knobs,
    Observed,
    Outcome,
    TrialReport,
    TrialRequest,
)
from autotune.trial.rank.trace import PARTS
from launchers.base import Launcher, Slot, TrialWatch, Turns
from search_spaces import defaults
from search_spaces.residency import why_not_live

ENVIRONMENT: Mapping[str, Any] = {
    "host": "replay",
    "cpu": "replayed processor",
    "cores": 2,
    "memory_bytes": 2**34,
    "kernel": "none",
    "python": "none",
    "torch": "none",
    "cuda": None,
    "nccl": None,
    "driver": None,
    "devices": [],
    "autotune": "none",
}
"""Fingerprint of a node that does not exist; see autotune.trial.node.environment."""

_HOT_AFTER = 60.0
"""Seconds after which a device is as good as hot by two thirds."""
_FALLING = 0.98
"""The loss of a step over that of the step before."""
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
        replica_spread: see autotune.trial.protocol.Observed.
        parts: shares of a step by part, see autotune.trial.rank.trace.PARTS; the same for all ranks.
            Empty: not known.
        outcome: how it fails; None: it does not.
        cause: why, in words.
        after: blocks that it reports before it fails.
        lost_agent: the agent dies with it.
        not_its_own: what has happened to its node, in words.
        slows: share of its rate that it loses over minutes, as devices grow hot.
        tells_longest: its workload says which samples are the longest.
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
    slows: float = 0.0
    stays: bool = True


@dataclass(frozen=True)
class Unrest:
    """How the speed of a machine wanders, for whatever runs on it.

    Attributes:
        sigma: relative standard deviation.
        seconds: after which it has forgotten two thirds of where it was.
    """

    sigma: float = 0.0
    seconds: float = 10.0


Behaviour = Callable[[Launch], Answer]
"""What a launch comes to; called by the threads of all slots."""


def never(_: Knobs) -> str:
    """No configuration is refused."""
    return ""


class ReplayLauncher(Launcher):
    """Slots over one behaviour."""

    slots: list["ReplaySlot"]

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        workers: int = 2,
        slots: int = 1,
        environment: Mapping[str, Any] = ENVIRONMENT,
        seed: int = 0,
        refusal: Callable[[Knobs], str] = never,
        unrest: Unrest = Unrest(),
    ) -> None:
        """Open it.

        Args:
            behaviour: what launches come to.
            workers: ranks of a trial.
            slots: trials at a time.
            environment: fingerprint of the node that is played; one CUDA device per rank if it has any.
            seed: of all chance.
            refusal: why a configuration is outside of what can be played; empty: it is not.
            unrest: of the machine of each slot.
        """
        self.workers = workers
        self._behaviour = behaviour
        self._seed = seed
        self._refusal = refusal
        self._launches: Counter[Any] = Counter()
        self._lock = threading.Lock()
        self._unrest = unrest
        self.slots = [self.slot(f"replay-{number}", environment) for number in range(slots)]

    def slot(self, name: str, environment: Mapping[str, Any]) -> "ReplaySlot":
        """Another one, which is not among its slots yet."""
        pace = _Wandering(self._unrest, f"{self._seed}/{name}")
        return ReplaySlot(name, environment, self._answer, pace)

    def refusal(self, knobs: Knobs) -> str:
        return self._refusal(knobs)

    def clock(self) -> float:
        return max(slot.time for slot in self.slots)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(
        self, request: TrialRequest, at: float, live: bool = False
    ) -> tuple[Answer, random.Random]:
        knobs = tuple(sorted(request.knobs.items()))
        with self._lock:
            self._launches[knobs] += 1
            number = self._launches[knobs]
        draw = random.Random(f"{self._seed}/{_unusual(request.knobs)}/{request.trial}")
        answer = self._behaviour(Launch(request, number, at, draw, live))
        return (dataclasses.replace(answer, startup=answer.switch) if live else answer), draw


class ReplaySlot(Slot):
    """Plays one trial after another."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, Any],
        answer: Callable[[TrialRequest, float, bool], tuple[Answer, random.Random]],
        pace: "_Wandering",
    ) -> None:
        self.name = name
        self.environment = dict(environment)
        on_device = bool(environment["devices"])
        self.device = "cuda" if on_device else "cpu"
        self.devices_per_rank = float(on_device)
        self.nodes = 1
        self.time = 0.0
        """Virtual seconds that its trials took."""
        self._answer = answer
        self._pace = pace
        self._ending = False
        self._stays: _Stays | None = None
        self.launches = 0
        """Of processes."""

    @property
    def resident(self) -> Knobs | None:
        return self._stays.request.knobs if self._stays else None

    def dismiss(self) -> None:
        self._stays = None

    def run(self, request: TrialRequest, watch: TrialWatch) -> TrialReport:
        self._ending = False
        before, self._stays = self._stays, None
        launched = before.launched if before and before.takes(request) else ""
        self.launches += not launched
        answer, draw = self._answer(request, self.time, bool(launched))
        enough = _Enough(watch)
        report = self._played(request, enough, answer, draw)
        report = dataclasses.replace(report, not_its_own=answer.not_its_own, resident_of=launched)
        self.time += report.wall_seconds
        if request.stays and enough.seen and answer.stays:
            self._stays = _Stays(request, launched or request.trial)
        return report

    def run_in_turn(self, requests: Sequence[TrialRequest], turns: Turns) -> list[TrialReport]:
        self._ending, self._stays = False, None
        longest = requests[0].seconds
        until = math.inf if longest is None else self.time + longest
        residents: dict[int, _Resident] = {}
        trains, died = None, False
        for number in itertools.count(1):
            member = turns.next()
            if member is None or self._ending:
                break
            returns = member in residents
            if not returns:
                residents[member] = _Resident(
                    requests[member], *self._answer(requests[member], self.time, False)
                )
            resident = residents[member]
            left_out = int(returns and member != trains)
            block = resident.turn(number, left_out, self._pace)
            trains = member
            if self.time + resident.latest > until:
                resident.cut(until - self.time, block)
                self.time = until
                break
            self.time += resident.latest
            if block:
                turns.trained(member, block)
            elif resident.lost_agent:
                died = True
                break
            else:
                turns.lost(member)
        unseen = [TrialReport(request.trial, None, "", (), 0.0) for request in requests]
        reports = [
            residents[number].report() if number in residents else report
            for number, report in enumerate(unseen)
        ]
        return [dataclasses.replace(report, lost_agent=died) for report in reports]

    def end(self) -> None:
        self._ending = True

    def _played(
        self, request: TrialRequest, watch: TrialWatch, answer: Answer, draw: random.Random
    ) -> TrialReport:
        seen: list[BlockReport] = []
        longest = math.inf if request.seconds is None else request.seconds
        left = longest - answer.startup
        self._pace.go_on(answer.startup)
        for block in map(self._pace.of, _blocks(request, answer, draw)):
            if request.profile and left < block.seconds:
                # Its ranks see after a step that there is no time for more.
                return _cut(
                    request, seen, min(longest, answer.startup + block.seconds / block.steps)
                )
            if self._ending:
                return _report(request, answer, seen)
            if answer.outcome and len(seen) == answer.after:
                report = _failed(request, answer, seen)
                return report if report.wall_seconds <= longest else _cut(request, seen, longest)
            left -= block.seconds
            if left < 0:
                return _cut(request, seen, longest)
            seen.append(block)
            if watch(block):
                return _report(request, answer, seen)
        failed = answer.outcome and len(seen) <= answer.after
        return _failed(request, answer, seen) if failed else _report(request, answer, seen)


@dataclass(frozen=True)
class _Stays:
    """Processes that wait, after this trial."""

    request: TrialRequest
    launched: str
    """By which trial."""

    def takes(self, request: TrialRequest) -> bool:
        return request.stays and not why_not_live(self.request.knobs, request.knobs)


class _Enough:
    """Whether the watch has ended the trial."""

    def __init__(self, watch: TrialWatch) -> None:
        self._watch = watch
        self.seen = False

    def __call__(self, block: BlockReport) -> bool:
        self.seen = self._watch(block)
        return self.seen


class _Wandering:
    """The pace of one machine: an Ornstein-Uhlenbeck process in the logarithm."""

    def __init__(self, unrest: Unrest, seed: str) -> None:
        self._unrest = unrest
        self._draw = random.Random(seed)
        self._now = self._draw.gauss(0.0, unrest.sigma) if unrest.sigma else 0.0

    def go_on(self, seconds: float) -> None:
        """So much later."""
        if not self._unrest.sigma:
            return
        kept = math.exp(-seconds / self._unrest.seconds)
        news = self._unrest.sigma * math.sqrt(1.0 - kept**2)
        self._now = kept * self._now + self._draw.gauss(0.0, news)

    def of(self, block: BlockReport) -> BlockReport:
        """The block as it comes now; it is over when this returns."""
        if not self._unrest.sigma:
            return block
        self.go_on(block.seconds)
        seconds = block.seconds * math.exp(self._now)
        ranks = (seconds,) * len(block.rank_seconds)
        return dataclasses.replace(block, seconds=seconds, rank_seconds=ranks)


class _Resident:
    """A trial that takes turns with others."""

    def __init__(self, request: TrialRequest, answer: Answer, draw: random.Random) -> None:
        self._request = request
        self._answer = answer
        self._blocks = _blocks(request, answer, draw)
        self._seen: list[BlockReport] = []
        self._wall_seconds = 0.0
        self._failed = False
        self.latest = 0.0
        """Seconds of its latest turn."""

    def turn(self, number: int, left_out: int, pace: _Wandering) -> BlockReport | None:
        """The block of a turn; None if it has failed in it, or is over."""
        answer = self._answer
        self.latest = 0.0 if self._wall_seconds else answer.startup
        pace.go_on(self.latest)
        block = None
        if answer.outcome and len(self._seen) == answer.after:
            self._failed = True
            self.latest += _waited(self._request, answer, self._seen)
        elif block := next(self._blocks, None):
            step = block.seconds / block.steps
            pace.go_on(left_out * step)
            block = pace.of(block)
            self.latest += left_out * step + block.seconds
            observed = Observed(turn=number, left_out_seconds=left_out * step)
            block = dataclasses.replace(block, observed=block.observed | observed)
            self._seen.append(block)
        self._wall_seconds += self.latest
        return block

    @property
    def lost_agent(self) -> bool:
        """It has failed, and its agent died with it."""
        return self._failed and self._answer.lost_agent

    def cut(self, seconds: float, block: BlockReport | None) -> None:
        """There were only so many for its latest turn, whose block it has not shown then."""
        self._wall_seconds += seconds - self.latest
        self._failed = False
        if block:
            self._seen.pop()

    def report(self) -> TrialReport:
        answer, seconds = self._answer, self._wall_seconds
        if not self._failed:
            return TrialReport(self._request.trial, None, "", tuple(self._seen), seconds)
        return TrialReport(
            self._request.trial,
            answer.outcome,
            answer.cause,
            tuple(self._seen),
            seconds,
        )


def _report(request: TrialRequest, answer: Answer, seen: Sequence[BlockReport]) -> TrialReport:
    wall_seconds = answer.startup + math.fsum(block.seconds for block in seen)
    return TrialReport(request.trial, None, "", tuple(seen), wall_seconds)


def _cut(request: TrialRequest, seen: Sequence[BlockReport], seconds: float) -> TrialReport:
    """Of a trial that has had all the time it may have."""
    return TrialReport(request.trial, None, "", tuple(seen), seconds)


def _failed(request: TrialRequest, answer: Answer, seen: Sequence[BlockReport]) -> TrialReport:
    report = _report(request, answer, seen)
    return dataclasses.replace(
        report,
        outcome=answer.outcome,
        cause=answer.cause,
        wall_seconds=report.wall_seconds + _waited(request, answer, seen),
        lost_agent=answer.lost_agent,
    )


def _waited(request: TrialRequest, answer: Answer, seen: Sequence[BlockReport]) -> float:
    """Seconds until somebody sees that it has failed."""
    if answer.outcome is not Outcome.HANG:
        return 0.0
    return request.deadlines.step if seen else request.deadlines.startup


def _blocks(request: TrialRequest, answer: Answer, draw: random.Random) -> Iterator[BlockReport]:
    """As rank 0 reports them, until all that were asked for are done."""
    knobs, workers = request.knobs, request.world_size * request.replicas
    samples_per_step = knobs["micro_batch"] * knobs["accumulation_steps"] * workers
    step = samples_per_step / answer.rate
    loss, at = answer.loss, 0.0
    for index, steps in enumerate(_steps(request, step)):
        seconds = steps * step * math.exp(draw.gauss(0.0, answer.block_sigma))
        seconds /= 1 - answer.slows * -math.expm1(-at / _HOT_AFTER)
        at += seconds
        yield BlockReport(
            trial=request.trial,
            index=index,
            steps=steps,
            samples=steps * samples_per_step,
            tokens=steps * samples_per_step * answer.tokens_per_sample,
            seconds=seconds,
            rank_seconds=(seconds,) * request.world_size,
            wait_seconds=seconds * answer.parts.get("loader", 0.0),
            loss=loss,
            peak_bytes=answer.peak_bytes,
            observed=_observed(request, answer, seconds / steps)
            | ({"tells_longest": 1} if answer.tells_longest and not index else {}),
        )
        loss *= _FALLING if request.trajectory else 1.0


def _steps(request: TrialRequest, step: float) -> Iterator[int]:
    """Optimizer steps of each block."""
    if request.trajectory:
        return itertools.repeat(1, request.trajectory)
    if request.profile:
        return iter([request.profile])
    plan = request.blocks
    usual = max(plan.min_steps, round(plan.seconds / step))
    if usual * step > plan.longest:
        usual = max(1, math.floor(plan.longest / step))
    # The first one is for what happens once.
    return itertools.islice(itertools.chain([1], itertools.repeat(usual)), plan.max_blocks)


def _observed(request: TrialRequest, answer: Answer, step: float) -> Observed:
    observed = Observed()
    if request.trajectory:
        observed["gradient_norm"] = answer.gradient_norm
        observed["replica_spread"] = answer.replica_spread
    elif request.profile:
        ranks = request.world_size
        if answer.parts:
            observed["parts"] = {name: [answer.parts.get(name, 0.0)] * ranks for name in PARTS}
        observed["peaks"] = [answer.peak_bytes] * ranks
    else:
        observed["step_p50"] = observed["step_p95"] = observed["step_max"] = step
    if request.replicas > 1:
        observed["replicas"] = request.replicas
    return observed


def _unusual(knobs: Knobs) -> dict[str, Any]:
    """What is not as by default: a catalogue that grows changes no draw."""
    usual = defaults()
    return {name: value for name, value in sorted(knobs.items()) if usual.get(name) != value}
