"""A replayed trial of an interleaved group."""

import dataclasses
import random

from autotune.worker.protocol import BlockReport, Observed, TrialReport, TrialRequest
from launchers.interleaved_session import untimed_steps
from launchers.replay import blocks
from launchers.replay.answers import Answer
from launchers.replay.speed import MachineSpeed


class InterleavedReplay:
    """A replayed trial of an interleaved group."""

    def __init__(self, request: TrialRequest, answer: Answer, draw: random.Random) -> None:
        self._request = request
        self._answer = answer
        self._blocks = blocks.reported(request, answer, draw)
        self._seen: list[BlockReport] = []
        self._wall_seconds = 0.0
        self._failed = False
        self.latest = 0.0
        """Seconds of its latest turn."""

    def turn(self, number: int, speed: MachineSpeed, *, rested: bool) -> BlockReport | None:
        """Return the block of a turn; None if the trial fails in it, or is over.

        Args:
            rested: True if another trial has trained since its last turn.
        """
        answer = self._answer
        self.latest = 0.0 if self._wall_seconds else answer.startup
        speed.go_on(self.latest)
        block = None
        if answer.outcome and len(self._seen) == answer.after:
            self._failed = True
            self.latest += blocks.waited(self._request, answer, self._seen)
        elif block := next(self._blocks, None):
            step = block.seconds / block.steps
            untimed = untimed_steps(step) * step if rested else 0.0
            speed.go_on(untimed)
            block = speed.of(block)
            self.latest += untimed + block.seconds
            observed = Observed(turn=number, left_out_seconds=untimed)
            block = dataclasses.replace(block, observed=block.observed | observed)
            self._seen.append(block)
        self._wall_seconds += self.latest
        return block

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
