"""Runs besides a timed trial: the same request with other blocks, steps or data."""

import dataclasses

from autotune.measurement.policy import GATE
from autotune.runs.policy import RUNS
from autotune.worker.protocol import (
    COMPRESSION_WARM_UP,
    STEPS_WITHOUT_DROPOUT,
    BlockPlan,
    TimeLimit,
    TrialRequest,
)

_FEW_STEPS = BlockPlan(
    seconds=0.0, min_steps=COMPRESSION_WARM_UP + 2, max_blocks=RUNS.blocks_of_fit
)
"""Blocks of a run that shows its memory.

The first block is a single step. The optimizer's state is there from the second step on, that of
gradient compression after its warm-up."""


def within(asked: TrialRequest, limit: TimeLimit) -> TrialRequest:
    """Return the trial with a time limit, and blocks that are as short as the limit requires.

    Args:
        limit: time of the trial, of which `soft` counts from the first step.
    """
    longest = min(asked.blocks.longest, limit.soft / RUNS.hurried_blocks)
    blocks = dataclasses.replace(asked.blocks, longest=longest)
    return dataclasses.replace(asked, limit=limit, blocks=blocks)


def few_steps(asked: TrialRequest) -> TrialRequest:
    """Return the trial, ended as soon as everything that training keeps in memory is there."""
    return dataclasses.replace(asked, blocks=_FEW_STEPS)


def in_short_epochs(asked: TrialRequest) -> TrialRequest:
    """Return a trial of few steps of a script, with an epoch for each or two of them."""
    assert asked.script is not None
    batches = max(RUNS.shortest_epoch, asked.knobs["accumulation_steps"])
    script = dataclasses.replace(asked.script, batches_per_epoch=batches)
    return dataclasses.replace(few_steps(asked), script=script)


def on_longest(asked: TrialRequest) -> TrialRequest:
    """Return a trial of few steps on the longest samples of the data, none of them shortened."""
    knobs = {**asked.knobs, "curriculum_start": 1}
    return dataclasses.replace(few_steps(asked), knobs=knobs, longest=True)


def reporting_each_step(asked: TrialRequest) -> TrialRequest:
    """Return the trial with a report of each of its steps.

    A command decides on its reports itself: it gets few blocks.
    """
    if asked.command:
        return few_steps(asked)
    several = BlockPlan(seconds=0.0, min_steps=1, max_blocks=_FEW_STEPS.min_steps + 2)
    return dataclasses.replace(asked, blocks=several)


def profiled(asked: TrialRequest) -> TrialRequest:
    """Return the trial under the profiler instead of timed."""
    blocks = dataclasses.replace(asked.blocks, max_blocks=1)
    return dataclasses.replace(asked, profile=RUNS.steps_of_profile, blocks=blocks)


def surveyed(asked: TrialRequest) -> TrialRequest:
    """Return the trial of a script under survey instead of timed."""
    assert asked.script is not None
    script = dataclasses.replace(asked.script, survey=RUNS.steps_of_survey)
    return dataclasses.replace(asked, script=script)


def as_trajectory(asked: TrialRequest) -> TrialRequest:
    """Return the trial as a loss trajectory instead of timed.

    Where dropout comes back after the first steps, compiled code is compiled anew: any step may
    take as long as the first.
    """
    longest = max(asked.timeouts.startup, asked.timeouts.step)
    timeouts = dataclasses.replace(asked.timeouts, step=longest)
    return dataclasses.replace(asked, trajectory=GATE.most_steps, timeouts=timeouts)


def under_autocast(asked: TrialRequest) -> TrialRequest:
    """Return the first steps of the trial's loss trajectory, under torch.autocast in bf16."""
    return dataclasses.replace(
        as_trajectory(asked), trajectory=STEPS_WITHOUT_DROPOUT, autocast=True
    )
