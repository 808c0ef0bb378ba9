"""Attempts: each execution of a trial, recorded once when it begins and once when it ends."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import case, func, or_, select, update
from sqlalchemy.orm import Session

from autotune.errors import StaleLease
from search_spaces import KnobValue, defaults
from storage import usage
from storage.models import AttemptRow, BlockRow, EnvironmentRow, record_of
from storage.records import (
    NO_DIGEST,
    SOFTWARE,
    AttemptResult,
    AttemptState,
    Fault,
    Lease,
    Purpose,
    RunDigest,
    StoredAttempt,
    StoredBlock,
)
from storage.transactions import Transactions

_NAMES = (
    *("id", "trial", "purpose", "round", "attempt", "knobs", "started", "ended", "environment_id"),
    "epoch",
    *(field.name for field in dataclasses.fields(RunDigest)),
    *(field.name for field in dataclasses.fields(AttemptResult)),
)
_DIGEST = len(dataclasses.fields(RunDigest))
_COLUMNS = [getattr(AttemptRow, name) for name in _NAMES]
"""Selected one by one: a study may have ten thousand attempts, and objects take twice the time."""

_DAEMON_DIED = "its daemon died"


class AttemptRecords:
    """The attempts of all studies, with their timed blocks."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._software: dict[int | None, tuple[str, ...]] = {}
        """Software of each environment that was met, by its id: an environment never changes."""

    def begin(
        self,
        lease: Lease,
        study_id: int,
        trial: int,
        knobs: dict[str, Any],
        purpose: Purpose = Purpose.SEARCH,
        *,
        round_: int = 0,
    ) -> StoredAttempt:
        """Record that a trial is about to be launched, as its next attempt.

        Args:
            round_: round of a comparison, seed or trial, by its purpose: see `StoredAttempt.round`.
        """
        with self._transactions.fenced(lease) as session:
            earlier = session.scalar(
                select(func.count())
                .select_from(AttemptRow)
                .where(
                    AttemptRow.study_id == study_id,
                    AttemptRow.trial == trial,
                    AttemptRow.purpose == purpose,
                    AttemptRow.round == round_,
                )
            )
            row = AttemptRow(
                study_id=study_id,
                trial=trial,
                purpose=purpose,
                round=round_,
                attempt=(earlier or 0) + 1,
                epoch=lease.epoch,
                knobs=knobs,
                state=AttemptState.RUNNING,
                started=self._transactions.now(session),
            )
            session.add(row)
            session.flush()
            return _attempt([getattr(row, name) for name in _NAMES], defaults(), self._software)

    def finish(
        self,
        lease: Lease,
        attempt_id: int,
        result: AttemptResult,
        blocks: Sequence[StoredBlock],
        environment_id: int | None = None,
        digest: RunDigest = NO_DIGEST,
        *,
        again: bool = False,
    ) -> None:
        """Record the result of an attempt with its blocks and their digest, in one transaction.

        Args:
            again: True if that was tried before: it may be done, and the answer have been lost.

        Raises:
            StaleLease: the lease is gone, or the attempt was given up or recorded by another daemon.
        """
        with self._transactions.fenced(lease) as session:
            ended = self._transactions.now(session)
            recorded = session.connection().execute(
                update(AttemptRow)
                .where(AttemptRow.id == attempt_id, AttemptRow.state == AttemptState.RUNNING)
                .values(**vars(result), **vars(digest), environment_id=environment_id, ended=ended)
            )
            if recorded.rowcount != 1:
                kept = select(AttemptRow.state).where(AttemptRow.id == attempt_id)
                if again and session.scalar(kept) == result.state:
                    return
                raise StaleLease(f"attempt {attempt_id} is no longer this daemon's to record")
            session.add_all(BlockRow(attempt_id=attempt_id, **vars(block)) for block in blocks)
            of_attempt = select(AttemptRow.study_id).where(AttemptRow.id == attempt_id)
            usage.add(session, session.scalars(of_attempt).one(), ended, result.wall_seconds)

    def of(self, study_id: int) -> list[StoredAttempt]:
        """Return all attempts of a study, in the order in which they were started."""
        return self.since(study_id, 0)

    def since(
        self, study_id: int, last: int, still_open: Sequence[int] = ()
    ) -> list[StoredAttempt]:
        """Return some attempts of a study, in the order in which they were started.

        Args:
            last: include attempts with a higher id than this.
            still_open: include also the attempts with these ids.
        """
        known = defaults()
        with self._transactions.reading() as session:
            rows = session.execute(
                select(*_COLUMNS).where(
                    AttemptRow.study_id == study_id,
                    or_(AttemptRow.id > last, AttemptRow.id.in_(still_open)),
                )
            ).all()
            self._learn_software(session, {row.environment_id for row in rows})
            # Sorted here: SQLite would go through all attempts of the study in the order wanted.
            several = (_attempt(row, known, self._software) for row in rows)
            return sorted(several, key=lambda one: one.id)

    def _learn_software(self, session: Session, environments: set[int | None]) -> None:
        unknown = environments - {None, *self._software}
        if not unknown:
            return
        several = select(EnvironmentRow.id, EnvironmentRow.body)
        for id_, body in session.execute(several.where(EnvironmentRow.id.in_(unknown))):
            self._software[id_] = tuple(str(body.get(name)) for name in SOFTWARE)

    def count_measured(self, study_id: int) -> int:
        """Return the number of attempts of a study that have a throughput."""
        with self._transactions.reading() as session:
            measured = (AttemptRow.study_id == study_id, AttemptRow.throughput.is_not(None))
            return session.scalar(select(func.count()).where(*measured)) or 0

    def blocks(self, attempt_id: int) -> list[StoredBlock]:
        """Return the timed blocks of an attempt, in order."""
        with self._transactions.reading() as session:
            rows = session.scalars(
                select(BlockRow).where(BlockRow.attempt_id == attempt_id).order_by(BlockRow.index)
            )
            return [
                record_of(
                    StoredBlock, row, contended=bool(row.contended), observed=row.observed or {}
                )
                for row in rows
            ]


class AttemptFeed:
    """Incremental reader of the attempts of one study.

    Each read fetches only what may have changed since the last one: new attempts, and those that
    were running then. Its cost does not grow with the study.
    """

    def __init__(self, attempts: AttemptRecords, study_id: int) -> None:
        self._attempts = attempts
        self._study_id = study_id
        self._seen: dict[int, StoredAttempt] = {}  # by id, in order
        self._running: list[int] = []

    def read(self) -> list[StoredAttempt]:
        """Return all attempts of the study, in the order in which they were started."""
        last = next(reversed(self._seen), 0)
        changed = self._attempts.since(self._study_id, last, self._running)
        self._seen.update((attempt.id, attempt) for attempt in changed)
        self._running = [attempt.id for attempt in changed if attempt.running]
        return list(self._seen.values())


def abandon(
    session: Session,
    study_id: int,
    at: float,
    *,
    lived: float | None = None,
    orphaned_before: int | None = None,
) -> None:
    """Mark the running attempts of a study as ABANDONED, to be repeated, with the time they took.

    Args:
        lived: end of the lease of a daemon that may have died before; None: it lives.
        orphaned_before: attempts of a lower epoch were left behind by daemons that died.
    """
    until = at if lived is None else min(at, lived)
    took = case((AttemptRow.started < until, until - AttemptRow.started), else_=0.0)
    running = (AttemptRow.study_id == study_id, AttemptRow.state == AttemptState.RUNNING)
    seconds = session.scalar(select(func.sum(took)).where(*running)) or 0.0
    given_up = (
        update(AttemptRow)
        .where(*running)
        .values(state=AttemptState.ABANDONED, ended=at, wall_seconds=took)
    )
    if orphaned_before is not None:
        orphans = given_up.where(AttemptRow.epoch < orphaned_before)
        session.execute(orphans.values(cause=_DAEMON_DIED, fault=Fault.DAEMON))
    session.execute(given_up)
    usage.add(session, study_id, at, seconds)


def _attempt(
    values: Sequence[Any],
    known: dict[str, KnobValue],
    software: Mapping[int | None, tuple[str, ...]],
) -> StoredAttempt:
    """Return the record of a row; a knob that is newer than the row has its default value.

    The default is what a plain script does, so that is what ran then.

    Args:
        values: column values in the order of _NAMES.
        software: that of each environment.
    """
    id_, trial, purpose, round_, attempt, knobs, started, ended, environment, *rest = values
    epoch, *rest = rest
    digest, (state, *others, fault) = rest[:_DIGEST], rest[_DIGEST:]
    result: list[Any] = [AttemptState(state), *others, Fault(fault)]
    return StoredAttempt(
        id_,
        trial,
        Purpose(purpose),
        round_,
        attempt,
        {**known, **knobs},
        started,
        ended,
        AttemptResult(*result),
        environment,
        RunDigest(*digest),
        epoch,
        software.get(environment),
    )
