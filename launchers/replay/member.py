"""A replayed trial of a session."""

import dataclasses
import math
import random

from autotune.worker.protocol import BlockReport, Observed, TrialReport, TrialRequest
from launchers.replay import blocks
from launchers.replay.answers import Answer
from launchers.replay.speed import MachineSpeed
from launchers.session import untimed_steps


class ReplayMember:
    """A replayed trial of a session."""

    def __init__(self, request: TrialRequest, answer: Answer, draw: random.Random) -> None:
        self._request = request
        self._answer = answer
        self._blocks = blocks.reported(request, answer, draw)
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
        if launching or self._request.takes_turns:
            speed.go_on(seconds)
        due = bool(answer.outcome) and len(self._seen) >= answer.after
        block = None if due else next(self._blocks, None)
        if block:
            block = self._timed(block, number, speed, rested=rested)
            seconds += block.observed.get("left_out_seconds", 0.0) + block.seconds
            self._seen.append(block)
        elif answer.outcome:
            self._failed = True
            seconds += blocks.waited(self._request, answer, self._seen)
        self._turns.append(seconds)
        return block

    def _timed(
        self, block: BlockReport, number: int, speed: MachineSpeed, *, rested: bool
    ) -> BlockReport:
        """Return a block as the machine runs it in a turn."""
        if not self._request.takes_turns:
            block = speed.of(block)
            if self._request.profile and block.seconds > self._request.limit.soft:
                block = blocks.first_step(block)
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
