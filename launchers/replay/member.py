"""A replayed trial of a session, and the blocks that rank 0 would have reported of it."""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.worker.observers.moments import StepMoments
from autotune.worker.protocol import BlockReport, Observed, Outcome, TrialReport, TrialRequest
from autotune.worker.rank.trace import PARTS
from launchers.replay.answers import Answer, MachineSpeed
from launchers.session import untimed_steps
from search_spaces.batch import global_batch_size

_HOT_AFTER = 60.0
"""Time constant of heating, in seconds: after it a device is hot by two thirds."""
_FALLING = 0.98
"""Ratio of the loss of a step to that of the step before."""


def reported(request: TrialRequest, answer: Answer, draw: random.Random) -> Iterator[BlockReport]:
    """Yield the blocks as rank 0 reports them, until all requested ones are done."""
    knobs, workers = request.knobs, request.world_size * request.replicas
    samples_per_step = global_batch_size(knobs, workers)
    step = samples_per_step / answer.rate
    loss, at = answer.loss, 0.0
    relative = itertools.cycle(answer.pattern)
    for index, steps in enumerate(_steps(request, step)):
        if not index and answer.first_step is not None:
            seconds = answer.first_step + (steps - 1) * step
        else:
            seconds = steps * step
        slower = math.exp(draw.gauss(0.0, answer.block_sigma))
        slower /= 1 - answer.slows * -math.expm1(-at / _HOT_AFTER)
        times = [slower * step * each for each in itertools.islice(relative, steps)]
        seconds = math.fsum(times) if index and times else seconds * slower
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
            | _of_steps(times)
            | (Observed() if index else _of_first_block(answer)),
        )
        loss *= _FALLING if request.trajectory else 1.0


def _metered(block: BlockReport, watts: float | None) -> BlockReport:
    """Return a block with its energy at this power; None: it is not told."""
    if watts is None:
        return block
    energy = Observed(power_watts=watts, energy_joules=watts * block.seconds)
    return dataclasses.replace(block, observed=block.observed | energy)


def first_step(block: BlockReport) -> BlockReport:
    """Return the block of a profile that ends after its first step."""
    return dataclasses.replace(
        block,
        steps=1,
        samples=block.samples // block.steps,
        tokens=block.tokens // block.steps,
        seconds=block.seconds / block.steps,
        observed=Observed(look_seconds=0.0),
    )


def _steps(request: TrialRequest, step: float) -> Iterator[int]:
    """Return the number of optimizer steps of each block."""
    if request.trajectory:
        return itertools.repeat(1, request.trajectory)
    if request.profile:
        return iter([request.profile])
    plan = request.blocks
    usual = max(plan.min_steps, round(plan.seconds / step))
    if usual * step > plan.longest:
        usual = max(1, math.floor(plan.longest / step))
    # The first block is a single step, for what happens once.
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
    if answer.foreign_cpu:
        observed["foreign_cpu"], observed["idle_cpu"] = answer.foreign_cpu, 0.0
    if request.replicas > 1:
        observed["replicas"] = request.replicas
    return observed


def _of_steps(times: Sequence[float]) -> Observed:
    return Observed(step_moments=list(StepMoments.of(times))) if times else Observed()


def _of_first_block(answer: Answer) -> Observed:
    found: Any = {**answer.first_steps, **({"tells_longest": 1} if answer.tells_longest else {})}
    observed: Observed = found
    return observed


def waited(request: TrialRequest, answer: Answer, seen: Sequence[BlockReport]) -> float:
    """Return the seconds until the failure is noticed."""
    if answer.outcome is not Outcome.HANG:
        return 0.0
    return request.timeouts.step if seen else request.timeouts.startup


class ReplayMember:
    """A replayed trial of a session."""

    def __init__(self, request: TrialRequest, answer: Answer, draw: random.Random) -> None:
        self._request = request
        self._answer = answer
        self._blocks = reported(request, answer, draw)
        self._seen: list[BlockReport] = []
        self._turns: list[float] = []
        """Seconds of each turn."""
        self._failed = False

    @property
    def latest(self) -> float:
        """Seconds of its latest turn."""
        return self._turns[-1]

    def turn(self, number: int, speed: MachineSpeed, *, rested: bool) -> BlockReport | None:
        """Return the block of a turn; None if the trial fails in it, or is over.

        Args:
            rested: True if another trial has trained since its last turn.
        """
        answer, launching = self._answer, not self._turns
        seconds = answer.startup if launching else 0.0
        if launching or self._request.interleaved:
            speed.go_on(seconds)
        due = bool(answer.outcome) and len(self._seen) >= answer.after
        block = None if due else next(self._blocks, None)
        if block:
            block = _metered(self._timed(block, number, speed, rested=rested), answer.watts)
            seconds += block.taken_seconds
            self._seen.append(block)
        elif answer.outcome:
            self._failed = True
            seconds += waited(self._request, answer, self._seen)
        self._turns.append(seconds)
        return block

    def went_on(self, block: BlockReport) -> None:
        """Take note that a block has been reported within the time limit."""
        if not block.index:
            self._answer.begun()

    def _timed(
        self, block: BlockReport, number: int, speed: MachineSpeed, *, rested: bool
    ) -> BlockReport:
        """Return a block as the machine runs it in a turn."""
        if not self._request.interleaved:
            block = speed.of(block)
            if self._request.profile and block.seconds > self._request.limit.soft:
                block = first_step(block)
            return block
        step = block.seconds / block.steps
        untimed = untimed_steps(step) * step if rested else 0.0
        speed.go_on(untimed)
        block = speed.of(block)
        observed = Observed(turn=number, left_out_seconds=untimed)
        return dataclasses.replace(block, observed=block.observed | observed)

    @property
    def stays(self) -> bool:
        """True if its processes wait as a warm worker once the schedule is done."""
        return self._request.stays and self._answer.stays and not self._failed

    @property
    def lost_agent(self) -> bool:
        """True if it has failed, and its agent died with it."""
        return self._failed and self._answer.lost_agent

    def cut(self, seconds: float, block: BlockReport | None) -> None:
        """Cut the latest turn to this many seconds; its block has not been reported."""
        self._turns[-1] = seconds
        self._failed = False
        if block:
            self._seen.pop()

    def report(self) -> TrialReport:
        answer, failed = self._answer, self._failed
        return TrialReport(
            self._request.trial,
            answer.outcome if failed else None,
            answer.cause if failed else "",
            tuple(self._seen),
            math.fsum(self._turns),
            not_its_own=answer.not_its_own,
        )
