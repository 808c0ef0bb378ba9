"""Claims: a daemon takes a study with its lease, and writes its progress and its end under it."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from autotune.errors import StaleLease
from storage import leases
from storage.attempt_records import abandon
from storage.events import Events
from storage.host import Moment
from storage.lease_keys import key_of
from storage.leases import is_held
from storage.models import (
    LeaseRow,
    MessageRow,
    StudyRow,
)
from storage.order import PLACED, exhausted, open_in, places, quotas_of
from storage.records import (
    Claim,
    EventKind,
    Lease,
    LeaseHolder,
    MessageKind,
    NewMessage,
    Retry,
    SlotHealth,
    StoredStudy,
    StudyState,
)
from storage.studies import may_find_more, settled, stored
from storage.transactions import Transactions
from storage.usage import recent_hours

_FARTHEST_RETRY = 900.0
"""Longest delay of a retry, in seconds. A later one shows that the clock has been set back."""


class Claims:
    """Studies that daemons run. Every write proves the daemon's lease on the study."""

    def __init__(self, transactions: Transactions, events: Events) -> None:
        self._transactions = transactions
        self._events = events

    def take(
        self,
        queue: str,
        holder: LeaseHolder,
        *,
        only: int | None = None,
        before: Lease | None = None,
    ) -> Claim | None:
        """Take the next study of a queue that is due and has no daemon; None if there is none.

        A study that a dead daemon left behind comes first, then the order of `storage.order`. Its
        attempts that were never recorded become ABANDONED, to be repeated. A study that waits is
        not taken while a quota of its owner is exhausted.

        Args:
            only: id of the only study to take; None: any.
            before: lease that the process had last; its study is taken up again under it.

        Raises:
            StorageError: the storage was upgraded since it was opened.
        """
        with self._transactions.writing() as session:
            self._transactions.check_not_upgraded(session)
            now = self._transactions.moment(session)
            own = before.key if before else ""
            due = self._due(session, queue, now, only)
            for study_id in sorted(due, key=lambda one: key_of(one) != own):
                if claimed := self._claim(session, study_id, queue, holder, now, before):
                    return claimed
            return None

    def _due(self, session: Session, queue: str, now: Moment, only: int | None) -> Sequence[int]:
        """Return the studies of a queue that may run now, the first one first."""
        due = or_(
            StudyRow.retry_at.is_(None),
            StudyRow.retry_at <= now.wall,
            StudyRow.retry_at > now.wall + _FARTHEST_RETRY,
        )
        wanted = select(*PLACED)
        found = session.execute(wanted.where(*open_in(queue, only), due)).all()
        if not found:
            return []
        owners = {row.owner for row in found}
        used = recent_hours(session, now.wall) if len(owners) > 1 else {}
        quota = self._quota(session, now)
        allowed = [row for row in found if row.state == StudyState.RUNNING or not quota(row.owner)]
        return [one[-1] for one in places(allowed, used)]

    def _quota(self, session: Session, now: Moment) -> Callable[[str], str]:
        """Return a function that tells, for an owner, which quota is exhausted; empty: none."""
        quotas = quotas_of(session)
        if quotas:
            self._transactions.claim_alone(session)
        return exhausted(session, quotas, now)

    def _claim(
        self,
        session: Session,
        study_id: int,
        queue: str,
        holder: LeaseHolder,
        now: Moment,
        before: Lease | None,
    ) -> Claim | None:
        """Take a study unless a daemon has it, or has just taken it."""
        key = key_of(study_id)
        free = select(LeaseRow).where(LeaseRow.key == key).with_for_update(skip_locked=True)
        held = session.scalar(free)
        if held is None:
            return None
        own = before is not None and _is(held, before)
        if not own and is_held(held, now):
            return None
        row = session.get(StudyRow, study_id, with_for_update=True)
        if row is None or row.queue != queue or StudyState(row.state).ended or row.held:
            return None
        left_behind = row.state == StudyState.RUNNING and not row.stop_requested
        lived = held.expires
        if not own:
            self._note_claim(session, row, held, holder)
        lease = before if own and before else leases.hand_over(held, holder, now)
        leases.extend(held, now, holder.seconds)
        row.state, row.error, row.retry_at = StudyState.RUNNING, None, None
        if row.resume_requested:  # the stop that was asked for before has ended what ran
            row.stop_requested = row.resume_requested = False
        orphaned_before = lease.epoch if left_behind else None
        abandon(session, row.id, now.wall, lived=lived, orphaned_before=orphaned_before)
        return Claim(stored(row), lease)

    def _note_claim(
        self, session: Session, row: StudyRow, lease: LeaseRow, holder: LeaseHolder
    ) -> None:
        """Record that a study is begun, or taken over from the last holder of its lease.

        A further try of one that could not run is recorded once its facts are known: a study may
        wait for weeks.
        """
        detail = f"process {holder.pid}"
        if row.state != StudyState.RUNNING:
            if not row.retries:
                self._events.add(session, row, EventKind.BEGUN, detail)
            return
        if lease.host:  # else the storage was restored
            detail += f", from process {lease.pid} on {lease.host.partition(' ')[0]}"
        self._events.add(session, row, EventKind.TAKEN_OVER, detail)

    def add_elapsed(self, lease: Lease, study_id: int, seconds: float) -> bool:
        """Add running time to a study; return whether it is to be stopped, or was deleted."""
        with self._transactions.fenced(lease) as session:
            session.execute(
                update(StudyRow)
                .where(StudyRow.id == study_id)
                .values(elapsed=StudyRow.elapsed + seconds)
            )
            stop = select(StudyRow.stop_requested).where(StudyRow.id == study_id)
            asked = session.scalar(stop)
            return asked is None or asked

    def record_facts(self, lease: Lease, study_id: int, facts: dict[str, Any]) -> None:
        """Store the facts that constraints ask about the study's machine.

        They are known once a study can run: it is begun, if it had failed to before. That is recorded
        unless it has failed twice for one reason, as a study may try for weeks.

        Args:
            facts: search_spaces.Facts as a dictionary.
        """
        with self._transactions.fenced(lease) as session:
            row = _of_daemon(session, study_id)
            row.facts = facts
            returned = self._events.last_of_daemons(session, row) == EventKind.REQUEUED
            if row.retries and returned and not self._events.returned_alike(session, row):
                held = session.scalars(select(LeaseRow).where(LeaseRow.key == lease.key)).one()
                self._events.add(session, row, EventKind.BEGUN, f"process {held.pid}")

    def record_slots(self, lease: Lease, study_id: int, slots: SlotHealth) -> None:
        """Replace what is known of a study's slots."""
        with self._transactions.fenced(lease) as session:
            own = StudyRow.id == study_id
            session.execute(update(StudyRow).where(own).values(slots=vars(slots)))

    def record_standing(self, lease: Lease, study_id: int, standing: dict[str, Any]) -> None:
        """Replace what is stored of where a study stands.

        Args:
            standing: figures, and what they rest on, for the reader to know whether they still hold.
        """
        with self._transactions.fenced(lease) as session:
            own = StudyRow.id == study_id
            session.execute(update(StudyRow).where(own).values(standing=standing))

    def end_search(
        self, lease: Lease, study: StoredStudy, reason: str, messages: Sequence[str | NewMessage]
    ) -> None:
        """Record why the search of a study ended, with messages about it.

        The search is not continued by itself. A later daemon confirms what was found; measurements
        for the confirmation stay valid.

        Args:
            study: study as claimed; if it has other settings by now, its search has not ended.
        """
        with self._transactions.fenced(lease) as session:
            row = _of_daemon(session, study.id)
            row.search_ended = None if may_find_more(study.spec, row.spec) else reason
            now = self._transactions.now(session)
            said = MessageKind.SAID
            session.add_all(
                MessageRow(study_id=study.id, at=now, kind=said, **vars(NewMessage.of(one)))
                for one in messages
            )

    def conclude(self, lease: Lease, study: StoredStudy, verdict: dict[str, Any]) -> StudyState:
        """Record the verdict of a study; return its state.

        That is DONE, or QUEUED if the study got other settings since it was claimed: more budget,
        which is still to be spent.

        Args:
            study: study as claimed.
        """
        with self._transactions.fenced(lease) as session:
            row = _of_daemon(session, study.id)
            state = StudyState.DONE if row.spec == study.spec else StudyState.QUEUED
            row.verdict = verdict
            done = state == StudyState.DONE
            self._events.add(session, row, EventKind.DONE if done else EventKind.REQUEUED)
            return settled(row, state)

    def fail(self, lease: Lease, study_id: int, error: str) -> None:
        """Record that a study ended in an error; an earlier verdict stays.

        Its running attempts are abandoned.
        """
        with self._transactions.fenced(lease) as session:
            row = _of_daemon(session, study_id)
            settled(row, StudyState.FAILED)
            row.error = error
            self._events.add(session, row, EventKind.FAILED, error)
            abandon(session, row.id, self._transactions.now(session))

    def stop(self, lease: Lease, study_id: int) -> StudyState:
        """Record that a study was stopped on request, its running attempts abandoned; return its state.

        That is STOPPED, or QUEUED if the study has been resumed since.
        """
        with self._transactions.fenced(lease) as session:
            row = _of_daemon(session, study_id)
            state = self._leave(session, row, stopped=not row.resume_requested)
            abandon(session, row.id, self._transactions.now(session))
            return state

    def put_back(self, lease: Lease, study_id: int, retry: Retry | None = None) -> StudyState:
        """Abandon the running attempts of a study, for a daemon to continue; return its state.

        That is QUEUED, or STOPPED if that was the latest request.

        Args:
            retry: reason why the study cannot run at present, and delay of the next try; None: at
                once. A resume in the meantime has it tried at once, too.
        """
        with self._transactions.fenced(lease) as session:
            row = _of_daemon(session, study_id)
            abandon(session, row.id, self._transactions.now(session))
            asked = row.stop_requested or row.resume_requested
            stopped = row.stop_requested and not row.resume_requested
            later = None if asked else retry
            state = self._leave(session, row, stopped=stopped, later=later)
            if later:
                row.error, row.retries = later.why, later.count
                row.retry_at = self._transactions.now(session) + later.seconds
            return state

    def _leave(
        self, session: Session, row: StudyRow, *, stopped: bool, later: Retry | None = None
    ) -> StudyState:
        """Stop a study that ran, or queue it again; return its state.

        A further try that failed for the same reason is not recorded.
        """
        what = EventKind.STOPPED if stopped else EventKind.REQUEUED
        why = later.why if later else ""
        is_further = later is not None and later.count > 1
        if not (is_further and self._events.is_last(session, row, why)):
            self._events.add(session, row, what, why)
        return settled(row, StudyState.STOPPED if stopped else StudyState.QUEUED)


def _is(row: LeaseRow, lease: Lease) -> bool:
    return (row.key, row.epoch, row.token) == (lease.key, lease.epoch, lease.token)


def _of_daemon(session: Session, study_id: int) -> StudyRow:
    """Return the study that a daemon runs, locked.

    Raises:
        StaleLease: the study was stopped while the lease was free, and deleted.
    """
    row = session.get(StudyRow, study_id, with_for_update=True)
    if row is None:
        raise StaleLease("the study that ran here was deleted; nothing more is written of it")
    return row
