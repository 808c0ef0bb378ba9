"""Queries over the attempts of a study, in the study's own terms. Pure."""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from search_spaces.knob import Knobs
from storage.records import CHECKS, TRIAL_RUNS, AttemptState, Fault, Purpose, StoredAttempt

_OF, _ENDED_IN = "of", "ended_in"
_ITSELF = object()
Found = TypeVar("Found")


class Attempts:
    """Attempts in the order in which they began, with the baseline that they are compared with.

    Every query returns attempts again, so queries can be chained.

    Attributes:
        harmless: names of the study's own knobs that cannot change what is computed.
        keeps_batch: True if the script keeps its samples per step by itself, however it splits them.
    """

    def __init__(
        self,
        attempts: Iterable[StoredAttempt],
        baseline: Knobs,
        harmless: Collection[str] = frozenset(),
        software: tuple[str, ...] | None = None,
        *,
        keeps_batch: bool = False,
    ) -> None:
        """Take in the attempts of a study.

        Args:
            attempts: attempts of one study, in the order in which they began.
            baseline: a value for every knob.
            harmless: names of the study's own knobs that cannot change what is computed.
            software: software whose checks count, empty if none is known; None: that of the last of
                these attempts that is a check or a run of a round.
            keeps_batch: True if the script keeps its samples per step by itself, however it splits them.
        """
        self._attempts = list(attempts)
        self._baseline = baseline
        self.harmless = harmless
        self.keeps_batch = keeps_batch
        # Parts of a study are told it: a search makes many, and each would look through its attempts.
        self._software = _last_software(self._attempts) if software is None else software
        self._earlier: dict[Hashable, tuple[Attempts, int]] = {}
        """Answers of earlier sets of the study, each with the id from which on attempts have changed."""
        self._found: dict[Hashable, Attempts] = {}
        self._derived: dict[Callable[[Attempts], Any], Any] = {}

    def followed_by(self, attempts: Iterable[StoredAttempt]) -> "Attempts":
        """Return what the study has come to, in which queries go on from the answers given here.

        Args:
            attempts: all attempts of the study; those that have not changed are the same objects.
        """
        new = Attempts(attempts, self._baseline, self.harmless, keeps_batch=self.keeps_batch)
        pairs = zip(self._attempts, new._attempts, strict=False)
        changed = next((one.id for known, one in pairs if known is not one), None)
        return new._after(self, self._next_id if changed is None else changed)

    @property
    def _next_id(self) -> int:
        return self._attempts[-1].id + 1 if self._attempts else 0

    def _after(self, before: "Attempts", changed_from: int) -> "Attempts":
        """Have queries go on from the answers of a set that differs from this id on."""
        for query, (answer, changed) in before._earlier.items():
            self._earlier[query] = answer, min(changed, changed_from)
        for query, answer in before._found.items():
            self._earlier[query] = answer, changed_from
        before._earlier = {}  # or every set would keep all sets before it
        return self

    def __iter__(self) -> Iterator[StoredAttempt]:
        return iter(self._attempts)

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def first(self) -> StoredAttempt | None:
        """The attempt that began first; None if there is none."""
        return self._attempts[0] if self._attempts else None

    @property
    def last(self) -> StoredAttempt | None:
        """The attempt that began last; None if there is none."""
        return self._attempts[-1] if self._attempts else None

    def of(self, *purposes: Purpose) -> "Attempts":
        """Return the attempts for these purposes, without checks of other software.

        Such a check shows nothing of what trains now.
        """
        return self._selected(
            (_OF, self._software, *purposes),
            lambda one: one.purpose in purposes and not self._is_outdated(one),
        )

    def _is_outdated(self, one: StoredAttempt) -> bool:
        return one.purpose in CHECKS and one.software not in (None, self._software)

    def outdated(self) -> "Attempts":
        """Return the checks that ran under other software than what trains now."""
        return self._where(self._is_outdated)

    def under(self, software: tuple[str, ...] | None) -> "Attempts":
        """Return the same attempts, of which the checks under this software count."""
        if software in (None, self._software):
            return self
        return Attempts(
            self._attempts, self._baseline, self.harmless, software, keeps_batch=self.keeps_batch
        )

    def of_trial(self, trial: int | None) -> "Attempts":
        """Return the attempts of this trial."""
        return self._where(lambda attempt: attempt.trial == trial)

    def with_seed(self, seed: int | None) -> "Attempts":
        """Return the runs of the numerics gate with a seed."""
        return self._where(lambda attempt: attempt.seed == seed)

    def in_round(self, number: int) -> "Attempts":
        """Return the attempts of this round."""
        return self._where(lambda attempt: attempt.round == number)

    def begun_under(self, epoch: int) -> "Attempts":
        """Return the attempts that one daemon has begun, by the epoch of its lease."""
        return self._where(lambda attempt: attempt.epoch == epoch)

    def begun_after(self, attempt: StoredAttempt | None) -> "Attempts":
        """Return the attempts that began after this one; None: all of them."""
        return self if attempt is None else self._where(lambda one: one.id > attempt.id)

    def with_knobs(self, knobs: Knobs) -> "Attempts":
        """Return the attempts of this configuration."""
        return self._where(lambda attempt: attempt.knobs == knobs)

    def ended_in(self, *states: AttemptState) -> "Attempts":
        """Return the attempts in one of these states."""
        return self._selected((_ENDED_IN, *states), lambda one: one.result.state in states)

    def recorded(self) -> "Attempts":
        """Return the attempts with a result of their own: neither running, nor abandoned, nor lost."""
        return self._selected("recorded", lambda one: one.recorded)

    def conclusive(self) -> "Attempts":
        """Return the recorded attempts of the finals that show something of their configuration.

        Left out are those whose time was over before, and the first failure of a run that may pass.
        Runs with the same purpose, round and configuration are one, of whatever trial.
        """
        return self._once("conclusive", lambda: self._where(self._is_conclusive))

    def _is_conclusive(self, attempt: StoredAttempt) -> bool:
        passing = _may_pass(attempt) and not self._has_failed_before(attempt)
        return attempt.recorded and not attempt.in_vain and not passing

    def _has_failed_before(self, attempt: StoredAttempt) -> bool:
        return any(
            one.id < attempt.id and _are_one_run(one, attempt) and _may_pass(one)
            for one in self._attempts
        )

    def to_repeat(self) -> "Attempts":
        """Return the recorded attempts that show nothing, where no later one of the run does."""
        return self._once("to_repeat", lambda: self._where(self._is_to_repeat))

    def _is_to_repeat(self, attempt: StoredAttempt) -> bool:
        shown = self.conclusive()
        return (
            attempt.recorded
            and attempt not in shown
            and not any(one.id > attempt.id and _are_one_run(one, attempt) for one in shown)
        )

    def complete(self) -> "Attempts":
        """Return the complete attempts."""
        return self.ended_in(AttemptState.COMPLETE)

    def measured(self) -> "Attempts":
        """Return the attempts with a throughput."""
        return self._selected("measured", _is_measured)

    def searched(self) -> "Attempts":
        """Return the recorded trials of the search."""
        return self._searched

    def of_baseline(self) -> "Attempts":
        """Return the attempts of the baseline's configuration."""
        return self._selected("baseline", lambda one: one.knobs == self._baseline)

    def baseline(self) -> StoredAttempt | None:
        """Return the baseline's own trial of the search, once it is complete."""
        return self._own_trial

    def baseline_runs(self) -> "Attempts":
        """Return the complete runs of the baseline in the search, other than beside a trial."""
        return self.of(*TRIAL_RUNS).of_baseline().complete()

    def paired_baseline_of(self, attempt: StoredAttempt) -> StoredAttempt | None:
        """Return the baseline that was interleaved with a trial; None if the trial ran alone.

        The two begin one right after the other.
        """
        place = self._place(attempt.id)
        before = self._attempts[max(0, place - 1) : place]
        if attempt.purpose != Purpose.SEARCH or not before:
            return None
        return before[0] if before[0].beside == attempt.trial else None

    def lost_in_vain(self, attempt: StoredAttempt) -> list[StoredAttempt]:
        """Return consecutive earlier launches of the run that lost their agent or daemon.

        A run is a configuration of a trial for a purpose, in a round: variants of one trial are not
        confused. Where one incident ended several launches side by side, only the first counts.
        Launches that were stopped on request do not count. Those lost with their node or cluster do
        where it had other runs between that loss and the end of the next launch: it works.
        """
        found: list[StoredAttempt] = []
        lost_at = -math.inf
        for one, following in itertools.pairwise([*self._launched_before(attempt), attempt]):
            if one.recorded:
                found, lost_at = [], -math.inf
            elif self._ended_in_vain(one, following) and one.started >= lost_at:
                found.append(one)
                lost_at = one.ended or lost_at
        return found

    def lost_with_node(self, attempt: StoredAttempt) -> list[StoredAttempt]:
        """Return earlier launches of the run since its last result that were lost with their node."""
        launches = reversed(list(self._launched_before(attempt)))
        since = itertools.takewhile(lambda one: not one.recorded, launches)
        return [one for one in since if _is_lost_with_node(one)]

    def _ended_in_vain(self, one: StoredAttempt, following: StoredAttempt) -> bool:
        if _is_lost_with_node(one):
            until = math.inf if following.ended is None else following.ended
            return any(
                other.recorded and (one.ended or 0.0) <= (other.ended or 0.0) <= until
                for other in self._attempts
                if other is not following
            )
        return _is_lost_with_agent(one) or _orphaned(one)

    def saw_daemon_die(self, attempt: StoredAttempt) -> bool:
        """Return whether the last launch of the same run before this one ended with its daemon."""
        last = self._launched_before(attempt).last
        return last is not None and _orphaned(last)

    def _launched_before(self, attempt: StoredAttempt) -> "Attempts":
        """Return launches of the same run that had ended before this one began."""
        same = self.of(attempt.purpose).of_trial(attempt.trial).in_round(attempt.round)
        return same.with_knobs(attempt.knobs)._where(
            lambda one: one.ended is not None and one.ended <= attempt.started
        )

    def each(self, change: Callable[[StoredAttempt], StoredAttempt]) -> "Attempts":
        """Return all attempts, each of them changed."""
        return self._of_same_study(map(change, self._attempts))

    # The starting points of nearly every query are computed once.

    @functools.cached_property
    def _searched(self) -> "Attempts":
        return self.of(Purpose.SEARCH).recorded()

    @functools.cached_property
    def _own_trial(self) -> StoredAttempt | None:
        return self._searched.of_baseline().complete().first

    def derived(self, find: Callable[["Attempts"], Found]) -> Found:
        """Return what a function finds in these attempts; it is called once, as they do not change."""
        if find not in self._derived:
            new = find(self)
            # Without a reference to itself a set is freed at once.
            self._derived[find] = _ITSELF if new is self else new
        known = self._derived[find]
        return cast(Found, self) if known is _ITSELF else known

    def _once(self, query: Hashable, find: Callable[[], "Attempts"]) -> "Attempts":
        """Return the answer to a query, which is found once: a search asks the same for each trial."""
        if query not in self._found:
            self._found[query] = find()
        return self._found[query]

    def _selected(self, query: Hashable, wanted: Callable[[StoredAttempt], bool]) -> "Attempts":
        """Return the answer to a query that asks each attempt by itself.

        What an earlier set has answered holds for all attempts that have not changed since.
        """
        if query in self._earlier and query not in self._found:
            before, changed_from = self._earlier.pop(query)
            unchanged = before._attempts[: before._place(changed_from)]
            later = self._attempts[self._place(changed_from) :]
            new = self._of_same_study([*unchanged, *filter(wanted, later)])
            self._found[query] = new._after(before, changed_from)
        return self._once(query, lambda: self._where(wanted))

    def _place(self, attempt_id: int) -> int:
        """Return the number of attempts below an id."""
        return bisect.bisect_left(self._attempts, attempt_id, key=lambda one: one.id)

    def _where(self, wanted: Callable[[StoredAttempt], bool]) -> "Attempts":
        return self._of_same_study(filter(wanted, self._attempts))

    def _of_same_study(self, attempts: Iterable[StoredAttempt]) -> "Attempts":
        return Attempts(
            attempts,
            self._baseline,
            self.harmless,
            self._software,
            keeps_batch=self.keeps_batch,
        )


def _last_software(attempts: Sequence[StoredAttempt]) -> tuple[str, ...]:
    telling = (*CHECKS, Purpose.CONFIRM)
    known = (one.software for one in reversed(attempts) if one.purpose in telling and one.software)
    return next(known, ())


def _may_pass(check: StoredAttempt) -> bool:
    """Return whether another run may show what a failed one did not.

    A hang of a configuration that compiles is final, as it lasts for a timeout of many minutes.
    """
    hung = check.result.state == AttemptState.HANG
    return check.result.may_pass and not (hung and check.knobs["compile"] != "none")


def _are_one_run(one: StoredAttempt, other: StoredAttempt) -> bool:
    same = (one.purpose, one.round) == (other.purpose, other.round)
    return same and one.knobs == other.knobs


def _is_measured(one: StoredAttempt) -> bool:
    return one.result.throughput is not None


def _is_lost_with_node(one: StoredAttempt) -> bool:
    return one.result.state == AttemptState.LOST and one.result.fault == Fault.NODE


def _is_lost_with_agent(one: StoredAttempt) -> bool:
    fault = one.result.fault
    return (
        one.result.state == AttemptState.LOST and not fault.excuses and fault != Fault.INTERLEAVED
    )


def _orphaned(one: StoredAttempt) -> bool:
    return one.result.state == AttemptState.ABANDONED and one.result.fault == Fault.DAEMON
