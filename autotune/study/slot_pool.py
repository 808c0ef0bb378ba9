"""The slots of a study: which are free, what waits on them, and whether they work."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from autotune.analysis.wording import counted
from autotune.errors import ClusterAway, LauncherError, StorageUnreachable
from autotune.runs.monitors import NOT_ITS_OWN
from autotune.study.context import StudyContext
from autotune.worker.protocol import TrialReport, TrialRequest
from launchers import Slot
from search_spaces.constraints import why_not_taken_over
from storage import (
    COMPARED_RUNS,
    TRIAL_RUNS,
    AttemptResult,
    AttemptState,
    Fault,
    Purpose,
    SlotHealth,
    StoredAttempt,
)

_CONCLUSIVE_IF_WARM = (
    AttemptState.COMPLETE,
    AttemptState.PRUNED,
    AttemptState.LOST,
    AttemptState.POWER,
)
"""Ends that mean the same in a warm worker as in new processes."""


class SlotPool:
    """Slots of a study by number, with their warm workers."""

    def __init__(self, context: StudyContext) -> None:
        self._context = context
        self._slots: list[Slot] = list(context.setup.launcher.slots)
        self.free = {number for number, slot in enumerate(self._slots) if slot.usable}
        """Numbers of the slots on which nothing runs."""
        first = context.setup.launcher.site.environment
        self._environments: list[tuple[dict[str, Any], int]] = [
            (dict(first), context.environment_id)
        ]
        self._launched: dict[str, StoredAttempt] = {}
        """Attempts that have launched warm workers, by the name of their request."""
        self._interleaved: set[int] = set()
        """Slots whose warm workers were interleaved, and take over no other runs."""
        self._health = SlotHealthReporter(context)

    def __getitem__(self, number: int) -> Slot:
        return self._slots[number]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    # Which slots there are

    def open_new(self) -> None:
        """Take in the slots that the launcher has opened since."""
        for slot in self._context.setup.launcher.slots[len(self._slots) :]:
            self.free.add(len(self._slots))
            self._slots.append(slot)
            usable = sum(slot.usable for slot in self._slots)
            self._context.say(
                f"There is room for {slot.name}: {counted(usable, 'trial')} at a time."
            )

    def give_surplus_back(self) -> None:
        """Give free slots back for which studies below their share of a cluster wait.

        The last ones go first, and where the confirmation runs goes last: it stays there.
        """
        launcher = self._context.setup.launcher
        if launcher.surplus <= 0:
            return
        home = self._home()
        order = sorted(self.free, key=lambda number: (self._is_away(number, home), number))
        for number in reversed(order):
            if launcher.surplus <= 0 or sum(slot.usable for slot in self._slots) <= 1:
                return
            self.free.discard(number)
            launcher.retire(self._slots[number])
            self.quarantine(number)

    @property
    def environments(self) -> list[int | None]:
        """Environments of all usable slots, slot by slot."""
        return [self.environment_of(n) for n, slot in enumerate(self._slots) if slot.usable]

    def environment_of(self, number: int) -> int:
        """Return the environment of a slot, whose agents are replaced now and then."""
        slot = self._slots[number]
        for body, known in self._environments:
            if body == slot.environment:
                return known
        records, lease = self._context.repository.environments, self._context.lease
        found = records.record(lease, slot.environment)
        self._environments.append((dict(slot.environment), found))
        return found

    def free_in(self, environment: int | None) -> set[int]:
        """Return the free slots in an environment."""
        return {number for number in self.free if self.environment_of(number) == environment}

    # Choosing, taking and giving back

    def choose(self, purpose: Purpose, knobs: dict[str, Any], among: Collection[int]) -> int:
        """Return the slot for a run: with a warm worker that it can take over, else without any.

        What is compared goes where the last run of the confirmation was, as slots may be numbered
        anew whenever the launcher is opened. Of equal slots it is the first, hence the same devices.
        """

        home = self._home() if purpose in COMPARED_RUNS else None

        def preference(number: int) -> tuple[int, bool, int]:
            return self._cost(purpose, knobs, number), self._is_away(number, home), number

        return min(among, key=preference)

    def _home(self) -> int | None:
        """Return the environment of the last run of the confirmation; None if there is none."""
        last = self._context.attempts().of(Purpose.CONFIRM).recorded().last
        return None if last is None else last.environment

    def _is_away(self, number: int, home: int | None) -> bool:
        return home is not None and self.environment_of(number) != home

    def _cost(self, purpose: Purpose, knobs: dict[str, Any], number: int) -> int:
        """Return how many groups of processes are launched or ended for a run on a slot."""
        waiting = self._slots[number].warm_knobs
        if waiting is None or purpose not in TRIAL_RUNS:
            return 1
        return 2 if why_not_taken_over(waiting, knobs) else 0

    def can_take_over(self, number: int, knobs: dict[str, Any], *, interleaved: bool) -> bool:
        """Return whether a run of the search could take over the warm worker of a slot."""
        waiting = self._slots[number].warm_knobs
        if waiting is None or (number in self._interleaved) != interleaved:
            return False
        return not why_not_taken_over(waiting, knobs)

    def take(self, number: int, *, searching: bool) -> None:
        """Take a slot for a run.

        Args:
            searching: False ends the warm workers of all free slots, whose memory the run may need.
        """
        if not searching:
            for other in self.free:
                self._slots[other].dismiss()
        self.free.discard(number)

    def give_back(self, number: int) -> None:
        """Free a slot, if it is still usable."""
        if self._slots[number].usable:
            self.free.add(number)

    def quarantine(self, number: int) -> None:
        """Leave a slot alone that cannot be cleared, or has lost a device; the others go on.

        Raises:
            LauncherError: there is no other.
        """
        slot = self._slots[number]
        if slot.usable:
            return
        self.open_new()
        left = [one for one in self._slots if one.usable]
        self._context.say(
            f"Nothing more runs on {slot.name}: {slot.gone or slot.unusable}. "
            f"{counted(len(left), 'slot')} left."
        )
        if not left and slot.gone:
            raise ClusterAway(slot.gone)
        if not left:
            raise LauncherError(f"{slot.name} is out of use: {slot.unusable}")

    # Warm workers

    @property
    def warm_knobs(self) -> dict[str, Any] | None:
        """Configuration of the warm worker on the first free slot that has one; None if none has."""
        found = (self._slots[number].warm_knobs for number in sorted(self.free))
        return next(filter(None, found), None)

    def launched(
        self, number: int, requests: Sequence[TrialRequest], attempts: Sequence[StoredAttempt]
    ) -> None:
        """Take in which attempts are launched on a slot."""
        if requests[0].interleaved:
            self._interleaved.add(number)
        else:
            self._interleaved.discard(number)
        for request, attempt in zip(requests, attempts, strict=True):
            if request.stays:
                self._launched[request.trial] = attempt

    def with_host(
        self, attempt: StoredAttempt, report: TrialReport, result: AttemptResult
    ) -> AttemptResult:
        """Return a result with the attempt whose warm worker was taken over, if one was.

        A failure in a warm worker may come of what was left in it. Such an attempt is LOST: it is
        launched again in processes of its own, and only that counts.
        """
        if not report.resident_of:
            return result
        host = self._launched[report.resident_of]
        result = dataclasses.replace(result, resident_of=host.id)
        if result.state in _CONCLUSIVE_IF_WARM:
            return result
        whose = f"the processes of trial {host.trial}"
        if host.trial == attempt.trial and host.purpose == Purpose.PROFILE:
            whose = "the processes in which it was profiled"
        cause = f"{NOT_ITS_OWN}{result.state} in {whose}, which it took over: {result.cause}"
        return dataclasses.replace(result, state=AttemptState.LOST, cause=cause, fault=Fault.WORKER)

    # Health

    def report_health(self) -> None:
        """Record how many slots work, if that has changed."""
        self._health.report()


def last_away(since: Mapping[tuple[int, str], float], missing: int) -> dict[str, float]:
    """Return what is away of the slots that were lost last, and since when.

    Others that were lost before have been replaced, or are no longer part of the cluster.

    Args:
        since: times by number of a slot and description.
        missing: number of slots to look at.
    """
    lost = {number: at for (number, _), at in sorted(since.items(), key=lambda item: item[1])}
    last = sorted(lost, key=lost.__getitem__)[-missing:] if missing > 0 else []
    return {text: at for (number, text), at in since.items() if number in last}


class SlotHealthReporter:
    """Health of a study's slots, as `status` shows it."""

    def __init__(self, context: StudyContext) -> None:
        self._context = context
        self._since: dict[tuple[int, str], float] = {}
        """Time since when an agent of a slot has been away, by the database's clock."""
        self._reported: SlotHealth | None = None

    def report(self) -> None:
        """Record how many slots work and what keeps the others from it, if that has changed."""
        for news in self._context.setup.launcher.notices():
            self._context.say(news)
        with contextlib.suppress(StorageUnreachable):  # what runs does not need it
            self._record()

    def _record(self) -> None:
        context, launcher = self._context, self._context.setup.launcher
        working, away = 0, list[tuple[int, str]]()
        for number, slot in enumerate(list(launcher.slots)):
            if slot.given_back:
                continue
            why = slot.unreachable()
            working += slot.usable and not why
            away += [(number, text) for text in why]
        now = context.repository.now() if {*away} - self._since.keys() else 0.0
        self._since = {one: self._since.get(one, now) for one in away}
        planned = max(launcher.planned, working)
        health = SlotHealth(working, planned, last_away(self._since, planned - working))
        if health == self._reported:
            return
        context.repository.claims.record_slots(context.lease, context.study.id, health)
        self._reported = health
