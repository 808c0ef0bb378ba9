"""Events: each change of a study's state, with the account, host and command that made it."""

import socket
from dataclasses import dataclass

from sqlalchemy import literal_column, select
from sqlalchemy.orm import Session

import autotune
from storage.database import Database
from storage.models import EventRow, StudyRow, record_of
from storage.owner import user_name
from storage.records import EventKind, StoredEvent
from storage.transactions import Transactions

_MOST_LETTERS = 1000
"""Length of a detail that is kept: it may be an error with a log."""


@dataclass(frozen=True)
class Author:
    """Origin of the events of one process."""

    account: str
    host: str
    version: str
    command: str

    @classmethod
    def of_this_process(cls, command: str) -> "Author":
        """Return the author of what a command of this process changes."""
        return cls(user_name(), socket.gethostname(), autotune.__version__, command)


class Events:
    """Events of all studies, deleted ones included, in order."""

    def __init__(self, database: Database, transactions: Transactions, author: Author) -> None:
        self._database = database
        self._transactions = transactions
        self.author = author

    def add(self, session: Session, study: StudyRow, what: EventKind, detail: str = "") -> None:
        """Record an event in the transaction that changes the study."""
        on_server = self._database.folder is None
        session.add(
            EventRow(
                at=literal_column(self._database.now()),
                study_id=study.id,
                study=study.name,
                role=literal_column("session_user") if on_server else None,
                what=what,
                detail=detail[:_MOST_LETTERS],
                **vars(self.author),
            )
        )

    def is_last(self, session: Session, study: StudyRow, detail: str) -> bool:
        """Return whether the last event of a study has this detail."""
        own = select(EventRow.detail).where(EventRow.study == study.name)
        return session.scalar(own.order_by(EventRow.id.desc()).limit(1)) == detail[:_MOST_LETTERS]

    def last_of_daemons(self, session: Session, study: StudyRow) -> EventKind | None:
        """Return the last claim or return of a study by a daemon; None: there is none."""
        kinds = (EventKind.BEGUN, EventKind.TAKEN_OVER, EventKind.REQUEUED)
        own = (EventRow.study == study.name, EventRow.study_id == study.id)
        last = (
            select(EventRow.what)
            .where(*own, EventRow.what.in_(kinds))
            .order_by(EventRow.id.desc())
            .limit(1)
        )
        found = session.scalar(last)
        return EventKind(found) if found else None

    def returned_alike(self, session: Session, study: StudyRow) -> bool:
        """Return whether daemons have put a study back twice in a row for the same reason."""
        own = (EventRow.study == study.name, EventRow.study_id == study.id)
        returns = select(EventRow.detail).where(*own, EventRow.what == EventKind.REQUEUED)
        last = session.scalars(returns.order_by(EventRow.id.desc()).limit(2)).all()
        return len(last) == 2 and last[0] == last[1]

    def of(self, study: str | None = None, last: int | None = None) -> list[StoredEvent]:
        """Return events, oldest first.

        Args:
            study: name of the only study; None: all.
            last: number of the newest events to return; None: all.
        """
        wanted = select(EventRow).order_by(EventRow.id.desc()).limit(last)
        if study is not None:
            wanted = wanted.where(EventRow.study == study)
        with self._transactions.reading() as session:
            return [record_of(StoredEvent, row) for row in reversed(session.scalars(wanted).all())]
