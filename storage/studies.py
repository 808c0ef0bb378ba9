"""Studies: what users ask for by name, and the queues they wait in."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.storages._rdb.models import (
    StudyDirectionModel,
    StudyModel,
    TrialModel,
    TrialUserAttributeModel,
)
from optuna.study import StudyDirection
from sqlalchemy import Select, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from autotune.errors import BadInput, StudyNotFound
from storage import leases
from storage.attempt_records import abandon
from storage.database import Database
from storage.events import Events
from storage.lease_keys import key_of, waiting_key
from storage.leases import is_held, revoke
from storage.models import (
    AttemptRow,
    BlockRow,
    ChoiceRow,
    EventRow,
    LeaseRow,
    MessageRow,
    NoiseRow,
    RecommendationRow,
    StudyRow,
    record_of,
)
from storage.order import OPEN, PLACED, open_in, places
from storage.records import (
    EventKind,
    MessageKind,
    SlotHealth,
    StoredStudy,
    StudyState,
)
from storage.transactions import Transactions
from storage.trials import SUGGESTED_BY
from storage.usage import recent_hours

_NAMED = 20
"""Studies that the message about an unknown name lists."""


class Studies:
    """Stored studies, and the requests of users by a study's name."""

    def __init__(self, database: Database, transactions: Transactions, events: Events) -> None:
        self._database = database
        self._transactions = transactions
        self._events = events

    def submit(
        self,
        name: str,
        queue: str,
        spec: dict[str, Any],
        workdir: str,
        file: str | None = None,
        *,
        owner: str = "",
    ) -> StoredStudy:
        """Put a new study into the queue.

        Args:
            file: file with the study's settings.

        Raises:
            BadInput: a study of that name exists already, here or among Optuna's others.
        """
        try:
            with self._transactions.writing() as session:
                row = StudyRow(
                    name=name,
                    queue=queue,
                    spec=spec,
                    workdir=workdir,
                    file=file,
                    owner=owner,
                    state=StudyState.QUEUED,
                    created=self._transactions.now(session),
                )
                session.add(row)
                session.flush()
                self._refuse_trials_of_others(session, name)
                _reserve_trials(session, name)
                session.add(leases.free(key_of(row.id)))
                self._events.add(session, row, EventKind.SUBMITTED)
        except IntegrityError:
            raise BadInput(f"there is a study named {name!r} already") from None
        return self.named(name)

    def named(self, name: str) -> StoredStudy:
        """Return the study of that name.

        Raises:
            StudyNotFound: there is none.
        """
        with self._transactions.reading() as session:
            return stored(self._row(session, select(StudyRow).where(StudyRow.name == name), name))

    def all(self, last: int | None = None) -> list[StoredStudy]:
        """Return studies, oldest first.

        Args:
            last: number of the newest studies to return; None: all.
        """
        wanted = select(StudyRow).order_by(StudyRow.id.desc()).limit(last)
        with self._transactions.reading() as session:
            return [stored(row) for row in reversed(session.scalars(wanted).all())]

    def count(self) -> int:
        """Return the number of studies."""
        with self._transactions.reading() as session:
            return session.scalar(select(func.count()).select_from(StudyRow)) or 0

    def queues(self) -> set[str]:
        """Return the queues that have studies, ended ones among them."""
        with self._transactions.reading() as session:
            return set(session.scalars(select(StudyRow.queue).distinct()))

    def run_by(self, host: str, pid: int) -> StoredStudy | None:
        """Return the study that a process runs; None if it runs none of this storage.

        Args:
            host: value of storage.host.this_host there.
        """
        with self._transactions.reading() as session:
            held = select(LeaseRow.key).where(LeaseRow.host == host, LeaseRow.pid == pid)
            keys = set(session.scalars(held))
            running = session.scalars(select(StudyRow).where(StudyRow.state == StudyState.RUNNING))
            found = (row for row in running if key_of(row.id) in keys)
            row = next(found, None)
            return stored(row) if row else None

    def any_open(self, queue: str, only: int | None = None) -> bool:
        """Return whether a queue has a study that waits or runs, and is not held.

        Args:
            only: id of the only study to look at, held or not; None: all.
        """
        with self._transactions.reading() as session:
            wanted = select(StudyRow.id).where(*open_in(queue, only)).limit(1)
            return session.scalar(wanted) is not None

    def enqueue(
        self,
        name: str,
        spec: dict[str, Any] | None = None,
        workdir: str | None = None,
        *,
        file: str | None = None,
        queue: str | None = None,
        said: str = "",
    ) -> None:
        """Queue a study again; a new spec, folder or file replaces the old one.

        A study that a daemon is still to stop is stopped first, and then continued.

        Args:
            said: message that is kept with the study, if any.
            queue: queue that the study moves to unless a daemon runs it. A daemon that was left
                running there can no longer write.

        Raises:
            BadInput: the study waits and is held.
        """
        with self._transactions.writing() as session:
            lease = self._lease_of(session, name)
            row = self._locked(session, name)
            if row.held and row.state == StudyState.QUEUED:
                raise BadInput(f"{name} is held; autotune release {name} lets it be begun")
            if spec is not None and spec != row.spec:
                if may_find_more(row.spec, spec):
                    row.search_ended = None
                row.spec = spec
            if said:
                now = self._transactions.now(session)
                message = MessageRow(study_id=row.id, at=now, text=said, kind=MessageKind.SAID)
                session.add(message)
            row.workdir = row.workdir if workdir is None else workdir
            row.file = file or row.file
            if queue is not None and queue != row.queue:
                self._move(session, row, lease, queue)
            self._events.add(session, row, EventKind.RESUMED, said)
            if row.state == StudyState.RUNNING:
                row.resume_requested = row.stop_requested
            else:
                settled(row, StudyState.QUEUED)

    def arrange(
        self, name: str, *, priority: int | None = None, held: bool | None = None
    ) -> StoredStudy:
        """Change the place of a study in its queue; return it.

        Args:
            priority: studies of a higher one come first; None: as it is.
            held: True keeps daemons from beginning it; None: as it is.

        Raises:
            BadInput: it is to be held, and does not wait; or it has ended.
        """
        with self._transactions.writing() as session:
            row = self._locked(session, name)
            if StudyState(row.state).ended:
                raise BadInput(
                    f"{name} is {row.state}, and has no place in a queue; autotune resume {name} gives "
                    "it one"
                )
            if held and row.state != StudyState.QUEUED:
                raise BadInput(
                    f"{name} is {row.state}, and only a study that waits can be held; a running one is "
                    f"stopped: autotune stop {name}"
                )
            if priority not in (None, row.priority):
                self._events.add(session, row, EventKind.PRIORITY, str(priority))
            if held not in (None, row.held):
                self._events.add(session, row, EventKind.HELD if held else EventKind.RELEASED)
            row.priority = row.priority if priority is None else priority
            row.held = row.held if held is None else held
        return self.named(name)

    def order(self) -> list[int]:
        """Return the ids of studies that run or wait, in the order in which daemons take them."""
        wanted = select(*PLACED).where(OPEN)
        with self._transactions.reading() as session:
            used = recent_hours(session, self._transactions.now(session))
            return [one[-1] for one in places(session.execute(wanted), used)]

    def ahead_of(
        self, name: str, queue: str, *, owner: str, priority: int | None = None
    ) -> list[int]:
        """Return the ids of the studies of a queue that daemons would take before one, in order.

        Args:
            name: of that study, which need not be stored.
            priority: of that study; None: as it is stored, or 0.
        """
        wanted = select(*PLACED)
        with self._transactions.reading() as session:
            used = recent_hours(session, self._transactions.now(session))
            known = session.execute(wanted.where(StudyRow.name == name)).one_or_none()
            others = wanted.where(*open_in(queue, None), StudyRow.name != name)
            found = places(session.execute(others), used)
        if priority is None:
            priority = known.priority if known else 0
        waits = known is None or known.state != StudyState.RUNNING
        own = waits, -priority, used.get(owner, 0.0), known.id if known else math.inf
        return [one[-1] for one in found if one < own]

    def of_ids(self, ids: Sequence[int]) -> list[StoredStudy]:
        """Return the studies of these ids, in their order; deleted ones are left out."""
        with self._transactions.reading() as session:
            rows = session.scalars(select(StudyRow).where(StudyRow.id.in_(ids)))
            found = {row.id: stored(row) for row in rows}
            return [found[one] for one in ids if one in found]

    def failed_within(self, seconds: float) -> list[str]:
        """Return the names of the studies that have failed so recently, and are still FAILED."""
        with self._transactions.reading() as session:
            since = self._transactions.now(session) - seconds
            recent = select(EventRow.study_id).where(
                EventRow.what == EventKind.FAILED, EventRow.at > since
            )
            wanted = select(StudyRow.name).where(StudyRow.state == StudyState.FAILED)
            return list(session.scalars(wanted.where(StudyRow.id.in_(recent))))

    def request_stop(self, name: str) -> None:
        """Ask the daemon to stop a study; a study that no daemon runs stops at once.

        A daemon that let its lease expire, and wakes, has a stale one: the study may have been deleted
        by then, and another one have its number.
        """
        with self._transactions.writing() as session:
            lease = self._lease_of(session, name)
            row = self._locked(session, name)
            row.stop_requested, row.resume_requested = True, False
            now = self._transactions.moment(session)
            held = lease is not None and is_held(lease, now)
            left_behind = row.state == StudyState.RUNNING and not held
            if left_behind and lease is not None:
                revoke(lease)
            if left_behind or row.state == StudyState.QUEUED:
                row.state, row.error, row.retry_at = StudyState.STOPPED, None, None
                row.held = False
                abandon(session, row.id, now.wall, lived=lease.expires if lease else None)
                self._events.add(session, row, EventKind.STOPPED, self._forced(row))
            elif row.state == StudyState.RUNNING:
                self._events.add(session, row, EventKind.STOP_REQUESTED, self._forced(row))

    def move(self, name: str, queue: str) -> None:
        """Put a study into another queue.

        A daemon of the old queue that is suspended, and wakes, has a stale lease.

        Raises:
            StudyNotFound: there is none of that name.
            BadInput: a daemon runs it.
        """
        with self._transactions.writing() as session:
            lease = self._lease_of(session, name)
            row = self._locked(session, name)
            if not self._move(session, row, lease, queue):
                assert lease is not None
                left = self._transactions.moment(session).left(lease)
                raise BadInput(
                    f"process {lease.pid} on {lease.host.split()[0]} runs {name}; stop it first: "
                    f"autotune stop {name}. If that machine is gone: try again in {math.ceil(left)} s, "
                    "when its lease has run out"
                )

    def delete(self, name: str) -> None:
        """Delete a study with everything that is stored about it, trials included.

        Raises:
            StudyNotFound: there is none of that name.
            BadInput: the study waits or runs.
        """
        with self._transactions.writing() as session:
            lease = self._lease_of(session, name)
            row = self._locked(session, name)
            if not StudyState(row.state).ended:
                raise BadInput(
                    f"{name} is {row.state}; stop it before it is deleted: autotune stop {name}"
                )
            if lease is not None:
                session.delete(lease)
                session.flush()
            self._events.add(session, row, EventKind.DELETED, self._forced(row))
            _delete(session, row)

    def slots(self, study_id: int) -> SlotHealth | None:
        """Return what was last recorded of a study's slots; None if nothing was."""
        with self._transactions.reading() as session:
            body = session.scalar(select(StudyRow.slots).where(StudyRow.id == study_id))
            return SlotHealth(**body) if body else None

    def reasons(self, name: str) -> dict[int, str]:
        """Return why trials of a study were queued, by their numbers."""
        with self._transactions.reading() as session:
            rows = session.execute(
                select(TrialModel.number, TrialUserAttributeModel.value_json)
                .join(StudyModel, StudyModel.study_id == TrialModel.study_id)
                .join(TrialUserAttributeModel)
                .where(StudyModel.study_name == name, TrialUserAttributeModel.key == SUGGESTED_BY)
            )
            return {number: str(json.loads(value)) for number, value in rows}

    def _refuse_trials_of_others(self, session: Session, name: str) -> None:
        """Refuse a new study whose trials would be told to a study of another program."""
        if session.scalar(select(StudyModel.study_id).where(StudyModel.study_name == name)):
            raise BadInput(
                f"{self._database} has a study named {name!r} that another program has made with "
                "Optuna, which stays as it is; name this one otherwise"
            )

    def _move(self, session: Session, row: StudyRow, lease: LeaseRow | None, queue: str) -> bool:
        """Put a study into another queue; return False if a daemon runs it.

        It is then a study of the account that does so.
        """
        if row.state == StudyState.RUNNING and lease is not None:
            now = self._transactions.moment(session)
            if is_held(lease, now):
                return False
            revoke(lease)
            orphaned = None if row.stop_requested else lease.epoch
            # What ran counts for the owner that it had.
            abandon(session, row.id, now.wall, lived=lease.expires, orphaned_before=orphaned)
        row.queue, row.owner = queue, self._events.author.account
        self._events.add(session, row, EventKind.MOVED, queue)
        return True

    def _forced(self, row: StudyRow) -> str:
        """Return the detail of an event if the study is another owner's; else an empty text."""
        own = row.owner in ("", self._events.author.account)
        return "" if own else f"forced: a study of {row.owner}"

    @staticmethod
    def _lease_of(session: Session, name: str) -> LeaseRow | None:
        """Return the lease of a study, locked.

        It is locked before the study itself, see storage.transactions.
        """
        study = session.scalar(select(StudyRow.id).where(StudyRow.name == name))
        return session.get(LeaseRow, key_of(study or 0), with_for_update=True)

    def _locked(self, session: Session, name: str) -> StudyRow:
        """Return a study, locked.

        Raises:
            StudyNotFound: there is none of that name.
            BadInput: row-level security of PostgreSQL lets this role read the study only.
        """
        wanted = select(StudyRow).where(StudyRow.name == name)
        if (row := session.scalar(wanted.with_for_update())) is not None:
            return row
        owner = self._row(session, wanted, name).owner
        raise BadInput(
            f"{name} is a study of {owner or 'an unknown owner'}, and the database lets its owner alone "
            "change it"
        )

    def _row(self, session: Session, wanted: Select[StudyRow], name: str) -> StudyRow:
        row = session.scalar(wanted)
        if row is None:
            newest = select(StudyRow.name).order_by(StudyRow.id.desc()).limit(_NAMED)
            names = ", ".join(reversed(session.scalars(newest).all()))
            there = f"the newest are: {names}" if names else "it holds none yet"
            raise StudyNotFound(f"no study {name!r} in {self._database}; {there}")
        return row


def _reserve_trials(session: Session, name: str) -> None:
    """Make the study of Optuna for the trials of a new study.

    Until it is begun another program could make one of that name, whose trials would be taken for
    its own.
    """
    made = StudyModel(study_name=name)
    direction = StudyDirection.MAXIMIZE
    session.add(StudyDirectionModel(study=made, direction=direction, objective=0))


def _delete(session: Session, row: StudyRow) -> None:
    """Delete a study with its attempts, choices, trials, messages, noise and recommendations."""
    own = select(AttemptRow.id).where(AttemptRow.study_id == row.id)
    session.execute(delete(BlockRow).where(BlockRow.attempt_id.in_(own)))
    session.execute(delete(LeaseRow).where(LeaseRow.key == waiting_key(row.queue, row.id)))
    for kept in (AttemptRow, ChoiceRow, MessageRow, NoiseRow, RecommendationRow):
        session.execute(delete(kept).where(kept.study_id == row.id))
    trials = session.scalar(select(StudyModel.study_id).where(StudyModel.study_name == row.name))
    if trials is not None:  # they may have been deleted in the dashboard
        _delete_trials(session, trials)
    session.delete(row)


def _delete_trials(session: Session, study_id: int) -> None:
    """Delete a study of Optuna with its trials, in one statement per table.

    Optuna's own deletion loads each row, and other writers of SQLite wait as long.
    """
    own = select(TrialModel.trial_id).where(TrialModel.study_id == study_id)
    for table in reversed(StudyModel.metadata.sorted_tables):
        if "study_id" in table.c:
            session.execute(delete(table).where(table.c.study_id == study_id))
        elif "trial_id" in table.c:
            session.execute(delete(table).where(table.c.trial_id.in_(own)))


def may_find_more(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether a search that ended under the settings `before` may continue under `after`."""
    return before.get("budget") != after.get("budget")


def settled(row: StudyRow, state: StudyState) -> StudyState:
    """Set the state of a study whose pending requests are done; return the state."""
    row.state, row.error, row.held = state, None, False
    row.retry_at, row.retries = None, 0
    row.stop_requested = row.resume_requested = False
    return state


def stored(row: StudyRow) -> StoredStudy:
    """Return a row as a study."""
    return record_of(StoredStudy, row, state=StudyState(row.state))
