"""Blocks that rank 0 would have reported of a replayed launch."""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.worker.observers.moments import StepMoments
from autotune.worker.protocol import BlockReport, Observed, Outcome, TrialRequest
from autotune.worker.rank.trace import PARTS
from launchers.replay.answers import Answer

_HOT_AFTER = 60.0
"""Time constant of heating, in seconds: after it a device is hot by two thirds."""
_FALLING = 0.98
"""Ratio of the loss of a step to that of the step before."""


def reported(request: TrialRequest, answer: Answer, draw: random.Random) -> Iterator[BlockReport]:
    """Yield the blocks as rank 0 reports them, until all requested ones are done."""
    knobs, workers = request.knobs, request.world_size * request.replicas
    samples_per_step = knobs["micro_batch"] * knobs["accumulation_steps"] * workers
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
    return request.deadlines.step if seen else request.deadlines.startup
