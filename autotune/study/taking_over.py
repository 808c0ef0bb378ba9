"""Attempts of the search that take over the processes of the one before, and what they are worth."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from autotune.runs.monitors import NOT_ITS_OWN
from autotune.worker.protocol import TrialReport, TrialRequest
from launchers import Slot
from search_spaces.residency import why_not_live
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Fault,
    Purpose,
    StoredAttempt,
)

SEARCHING = (Purpose.SEARCH, Purpose.CALIBRATE)
"""What takes over whom it can. The noise between runs is that of trials as they are: where these take
over processes, the baseline does as well."""
_OF_WORTH = (AttemptState.COMPLETE, AttemptState.PRUNED, AttemptState.LOST)
"""Ends that say as much in processes that have trained something else before."""


class TakingOver:
    """Processes that stay on slots, by the attempts that launched them."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        """Take in the slots, to which others may be added."""
        self._slots = slots
        self._launched: dict[str, StoredAttempt] = {}
        self._in_turn: set[int] = set()
        """Slots on which those that wait have taken turns, and take no other runs over."""

    def waiting(self, free: Collection[int]) -> dict[str, Any] | None:
        """The configuration of those on the first of these slots that has any; None: none has."""
        found = (self._slots[number].resident for number in sorted(free))
        return next(filter(None, found), None)

    def slot_for(self, attempt: StoredAttempt, free: Collection[int]) -> int:
        """Of those that are free, the one with processes that could take over, else one on which nobody
        waits; of equals the first, hence the same devices. Nothing but the search has others wait beside
        it, with memory that it may need."""
        if attempt.purpose not in SEARCHING:
            for number in free:
                self._slots[number].dismiss()
        return min(free, key=lambda number: (self._cost(attempt, number), number))

    def _cost(self, attempt: StoredAttempt, number: int) -> int:
        """Processes that are launched, and that are ended."""
        resident = self._slots[number].resident
        if resident is None:
            return 1
        return 0 if self._suits(attempt, number) else 2

    def _suits(self, attempt: StoredAttempt, number: int) -> bool:
        resident = self._slots[number].resident
        if resident is None or attempt.purpose not in SEARCHING:
            return False
        return not why_not_live(resident, attempt.knobs)

    def could(self, attempt: StoredAttempt, number: int, *, in_turn: bool = False) -> bool:
        """Whether an attempt could take over the processes that wait on a slot.

        Args:
            in_turn: it takes turns with others.
        """
        return (number in self._in_turn) == in_turn and self._suits(attempt, number)

    def launched(self, request: TrialRequest, attempt: StoredAttempt, number: int) -> None:
        """Under which name an attempt was launched on a slot."""
        if request.takes_turns:
            self._in_turn.add(number)
        else:
            self._in_turn.discard(number)
        if request.stays:
            self._launched[request.trial] = attempt

    def judged(
        self, attempt: StoredAttempt, report: TrialReport, result: AttemptResult
    ) -> AttemptResult:
        """What came of an attempt. One that fails in the processes of another may have failed because of
        what is left there: it is launched again in its own, and only that counts."""
        if not report.resident_of:
            return result
        host = self._launched[report.resident_of]
        result = dataclasses.replace(result, resident_of=host.id)
        if result.state in _OF_WORTH:
            return result
        whose = f"the processes of trial {host.trial}"
        if host.trial == attempt.trial and host.purpose == Purpose.PROFILE:
            whose = "the processes in which it was profiled"
        cause = f"{NOT_ITS_OWN}{result.state} in {whose}, which it took over: {result.cause}"
        return dataclasses.replace(result, state=AttemptState.LOST, cause=cause, fault=Fault.WORKER)


def needs_its_own(attempt: StoredAttempt, attempts: Attempts) -> bool:
    """Whether it has failed in processes of another before."""
    earlier = attempts.of(attempt.purpose).of_trial(attempt.trial).ended_in(AttemptState.LOST)
    return any(one.result.resident_of is not None for one in earlier)
