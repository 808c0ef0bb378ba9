"""Whether runs that are to be compared can be resident at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.analysis.costs import Costs
from autotune.runs.interleaved import INTERLEAVED_BLOCK_SECONDS
from autotune.runs.plan import Plan
from autotune.study.context import StudyContext
from autotune.worker.protocol import TimeLimit
from launchers import untimed_steps

_SHARE = 0.8
"""Of the memory that residents may take by their peaks: near the limit allocators behave otherwise."""
_GIB = 2**30
LONGEST_STEP = 1.0
"""Seconds: with longer ones, two blocks are no neighbours any more."""
_BLOCKS = 4
"""Of each: two cycles, or nothing is known of how far they differ."""


class TakingTurns:
    """Judges it for one study, and says how the runs of its rounds are made whenever that changes."""

    def __init__(self, context: StudyContext) -> None:
        self._context = context
        self._said = ""

    def possible(
        self, knobs: Sequence[Mapping[str, Any]], peak_bytes: int, limit: TimeLimit
    ) -> bool:
        """Whether runs may be resident at once.

        Args:
            knobs: of each.
            peak_bytes: of the largest rank of each, added up; 0: not known.
            limit: time that they may have together.
        """
        obstacle = self._obstacle(knobs, peak_bytes, limit)
        said = (
            f"they run one after another: {obstacle}"
            if obstacle
            else "they are resident at once and take turns, block by block"
        )
        if said != self._said:
            self._said = said
            self._context.say(f"What is compared with each other: {said}.")
        return not obstacle

    def _obstacle(
        self, knobs: Sequence[Mapping[str, Any]], peak_bytes: int, limit: TimeLimit
    ) -> str:
        """Why they may not, in words; empty if they may."""
        if self._context.plan.spec.workload.command:
            return "a command that starts its own ranks cannot be paused"
        if len(knobs) < 2:
            return "there is only one"
        on_processors = self._context.plan.launcher.slots[0].device == "cpu"
        if on_processors and len({one["cpu_affinity"] for one in knobs}) > 1:
            return "they differ in cpu_affinity, and who takes turns has processors of its own"
        costs = self._context.costs()
        longest = max(map(costs.step, knobs))
        if longest > LONGEST_STEP:
            return f"a step of {longest:.1f} s is too long for turns"
        if sum(shortest(costs, one) for one in knobs) > limit.soft:
            return "there is no time for more"
        return shortage(self._context.plan, peak_bytes)


def shortage(plan: Plan, needed: int, slots: int = 1) -> str:
    """Of memory for runs that are resident at once, in words; empty if there is enough.

    Args:
        needed: bytes of the largest rank of each, added up; 0: not known.
        slots: on which such runs are at a time. On processors they may all be on one node.
    """
    there = plan.memory_of_rank()
    if there is None:
        slot = plan.launcher.slots[0]
        there = slot.environment["memory_bytes"] * slot.nodes / (plan.launcher.workers * slots)
    elif not needed:
        return "how much memory they need is not known"
    if needed <= _SHARE * there:
        return ""
    shares = f"{needed / _GIB:.2f} of the {there / _GIB:.2f} GiB"
    return f"by their peaks they need {shares} that a rank has"


def shortest(costs: Costs, knobs: Mapping[str, Any]) -> float:
    """Seconds of the shortest run that takes turns, its warm-up as long as what counts."""
    step = costs.step(knobs)
    turn = max(INTERLEAVED_BLOCK_SECONDS, step) + untimed_steps(step) * step
    return costs.slow_startup + costs.first_step(knobs) + 2 * _BLOCKS * turn
