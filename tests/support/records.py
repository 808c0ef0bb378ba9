"""What a study has left in its database, and whether that is whole."""

import dataclasses
import functools
from collections import Counter

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import update

from autotune.errors import StudyNotFound
from autotune.service.queues import this_queue
from storage import Database, LeaseState, Repository, StoredAttempt, StoredStudy
from storage.lease_keys import key_of
from storage.models import LeaseRow

NOT_RECORDED = ("RUNNING", "ABANDONED", "LOST")
FAILED = TrialState.FAIL
OPTUNA_STATE = {
    "COMPLETE": TrialState.COMPLETE,
    "PRUNED": TrialState.PRUNED,
    "OOM": TrialState.PRUNED,
    "HANG": TrialState.FAIL,
    "CRASH": TrialState.FAIL,
    "ERROR": TrialState.FAIL,
}


def in_order(*attempts: StoredAttempt) -> list[StoredAttempt]:
    """Such as were made by hand, begun one after another."""
    return [dataclasses.replace(one, id=number) for number, one in enumerate(attempts, 1)]


def end_lease(repository: Repository, state: LeaseState) -> None:
    """Have a lease run out at once, unless it has changed hands.

    The heartbeat of a holder that lives in the test's own process cannot renew it.
    """
    with repository.database.writing() as connection:
        connection.execute(
            update(LeaseRow)
            .where(LeaseRow.key == state.key, LeaseRow.epoch == state.epoch)
            .values(expires=0.0, boot_expires=0.0, epoch=LeaseRow.epoch + 1, token=None)
        )


class Records:
    """Of one study."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    @functools.cached_property
    def repository(self) -> Repository:
        return Repository(Database(self.url))

    def study(self) -> StoredStudy:
        return self.repository.studies.named(self.name)

    def attempts(self, purpose: str | None = None) -> list[StoredAttempt]:
        """All attempts in the order in which they were begun, or those for one purpose."""
        try:
            found = self.repository.attempts.of(self.study().id)
        except StudyNotFound:
            return []
        return [a for a in found if purpose in (None, a.purpose)]

    def recorded(self, purpose: str | None = None) -> list[StoredAttempt]:
        """Attempts with a result."""
        return [a for a in self.attempts(purpose) if a.result.state not in NOT_RECORDED]

    def trials(self) -> list[FrozenTrial]:
        """The trials in Optuna."""
        database = self.repository.database
        return optuna.load_study(study_name=self.name, storage=database.optuna()).get_trials()

    def leases(self) -> list[LeaseState]:
        """Those that are held, of the study first, and then of its queue."""
        try:
            keys = [key_of(self.study().id), this_queue()]
        except StudyNotFound:
            keys = [this_queue()]
        return [held for key in keys if (held := self.repository.leases.holder(key))]

    def lease(self) -> LeaseState | None:
        """The first of them; None if there is none."""
        return next(iter(self.leases()), None)

    def losses(self, trials: int) -> tuple[int, int]:
        """Of so many trials, those without a recorded result, and results recorded once more."""
        times = Counter(attempt.trial for attempt in self.recorded("search"))
        return max(0, trials - len(times)), times.total() - len(times)

    def assert_complete(self, trials: int | None = None) -> None:
        """The study is done, and its records are whole: each trial once, none missing, none open."""
        study = self.study()
        assert study.state == "DONE", f"{study.state}: {study.error}"
        assert study.verdict is not None
        assert [a for a in self.attempts() if a.running] == []
        told = self.trials()
        self._assert_told_as_recorded(told)
        if trials is not None:
            assert len(told) == trials
        self._assert_tried_once()
        confirmed = [a for a in self.recorded("confirm") if a.result.throughput is not None]
        # A round that another daemon goes on with is measured anew.
        rounds = Counter((a.trial, a.round, a.epoch) for a in confirmed)
        assert set(rounds.values()) <= {1}, f"measured twice in a round: {rounds}"

    def _assert_tried_once(self) -> None:
        """Each configuration. Only yours is tried again, if it runs after all: it has failed first where
        its daemon was killed three times while it ran, by whomever."""
        searched = self.recorded("search")
        first = searched[0].knobs if searched else {}
        failed = [
            a for a in searched if a.knobs == first and OPTUNA_STATE[a.result.state] == FAILED
        ]
        once = [tuple(sorted(a.knobs.items())) for a in searched if a not in failed]
        assert len(once) == len(set(once)), "a configuration was tried twice"
        assert len(failed) <= 1, "yours has failed twice"

    def _assert_told_as_recorded(self, trials: list[FrozenTrial]) -> None:
        searched = Counter(a.trial for a in self.recorded("search"))
        open_trials = {t.number: t.state.name for t in trials if not t.state.is_finished()}
        assert open_trials == {}, f"trials left open in Optuna: {open_trials}"
        assert searched == {t.number: 1 for t in trials}, "recorded attempts per trial"
        by_number = {a.trial: a for a in self.recorded("search")}
        measured = [a for a in by_number.values() if a.result.throughput is not None]
        first = min(measured, key=lambda a: (a.ended, a.id), default=None)
        for trial in trials:
            attempt = by_number[trial.number]
            assert trial.state == OPTUNA_STATE[attempt.result.state], attempt
            assert {name: attempt.knobs[name] for name in trial.params} == trial.params
            if trial.state == TrialState.COMPLETE:
                assert first is not None
                assert trial.value == attempt.result.throughput / first.result.throughput
