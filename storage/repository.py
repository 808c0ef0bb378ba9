"""The `autotune_*` tables, by noun: large ones have a module each, small ones are here."""

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, ColumnElement, Select, create_engine, func, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from storage.attempt_records import AttemptRecords
from storage.claims import Claims
from storage.database import Database
from storage.events import Author, Events
from storage.leases import Leases
from storage.models import (
    AttemptRow,
    ChoiceRow,
    EnvironmentRow,
    MessageRow,
    NoiseRow,
    RecommendationRow,
    StudyRow,
    record_of,
)
from storage.order import Quotas
from storage.records import (
    ChoiceReason,
    FinalistChoice,
    Lease,
    MessageCode,
    MessageKind,
    NewMessage,
    Recommended,
    StoredMessage,
    StoredNoise,
)
from storage.studies import Studies
from storage.transactions import Transactions
from storage.urls import parse

_PATIENCE = 5
"""Seconds for a file that is locked, or a server that does not answer."""
_NEWEST = 500
"""Recommendations that a study looks at when it begins: reading thousands would take seconds."""


class Messages:
    """Messages of all studies, in the order in which they were sent."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def say(
        self,
        lease: Lease,
        study_id: int,
        message: str | NewMessage,
        *,
        kind: MessageKind = MessageKind.SAID,
    ) -> None:
        """Store a message for the readers of a study's log.

        One of waiting that repeats the last message only renews its time: a reader that has printed
        it prints it once.
        """
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            said = vars(NewMessage.of(message))
            last = session.scalar(_newest(study_id)) if kind == MessageKind.WAITING else None
            if last is not None and (last.kind, last.text) == (kind, said["text"]):
                last.at = at
                return
            session.add(MessageRow(study_id=study_id, at=at, kind=kind, **said))

    def set_status(self, lease: Lease, study_id: int, text: str) -> None:
        """Replace the study's status message: how far the running attempts have come."""
        kind = MessageKind.DOING
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            own = (MessageRow.study_id == study_id, MessageRow.kind == kind)
            written = session.connection().execute(
                update(MessageRow).where(*own).values(at=at, text=text)
            )
            if not written.rowcount:
                session.add(MessageRow(study_id=study_id, at=at, kind=kind, text=text))

    def status(self, study_id: int) -> StoredMessage | None:
        """Return the latest status message; None if there is none."""
        kind = MessageKind.DOING
        with self._transactions.reading() as session:
            row = session.scalar(
                select(MessageRow).where(MessageRow.study_id == study_id, MessageRow.kind == kind)
            )
            return StoredMessage(row.id, row.at, row.text, kind) if row else None

    def last(self, study_id: int) -> StoredMessage | None:
        """Return the newest message of a study that is no status message; None if there is none."""
        with self._transactions.reading() as session:
            row = session.scalar(_newest(study_id))
            return _message(row) if row else None

    def of(self, study_id: int, after: int = 0) -> list[StoredMessage]:
        """Return the messages of a study that are newer than `after`, without status messages."""
        with self._transactions.reading() as session:
            rows = session.scalars(
                select(MessageRow)
                .where(
                    MessageRow.study_id == study_id,
                    MessageRow.id > after,
                    MessageRow.kind != MessageKind.DOING,
                )
                .order_by(MessageRow.id)
            )
            return [_message(row) for row in rows]


def _newest(study_id: int) -> Select[MessageRow]:
    """Return the query for the newest message of a study that is no status message."""
    own = (MessageRow.study_id == study_id, MessageRow.kind != MessageKind.DOING)
    return select(MessageRow).where(*own).order_by(MessageRow.id.desc()).limit(1)


def _message(row: MessageRow) -> StoredMessage:
    kind, code = MessageKind(row.kind), MessageCode(row.code)
    return StoredMessage(row.id, row.at, row.text, kind, code, row.data or {})


class Environments:
    """Machines with their software, each stored once."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(self, lease: Lease, body: dict[str, Any]) -> int:
        """Store an environment unless it is stored already; return its id."""
        canonical = json.dumps(body, sort_keys=True)
        fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
        known = select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == fingerprint)
        with contextlib.suppress(IntegrityError), self._transactions.fenced(lease) as session:
            # Another daemon may store the same one at the same time.
            if session.scalar(known) is None:
                session.add(EnvironmentRow(fingerprint=fingerprint, body=body))
        with self._transactions.reading() as session:
            return session.scalars(known).one()

    def of_attempt(self, attempt_id: int) -> dict[str, Any] | None:
        """Return the environment of an attempt; None while the attempt has not ended."""
        with self._transactions.reading() as session:
            return session.scalar(
                select(EnvironmentRow.body)
                .join(AttemptRow, AttemptRow.environment_id == EnvironmentRow.id)
                .where(AttemptRow.id == attempt_id)
            )


class NoiseRecords:
    """Run-to-run noise of studies, for the study that found it and for later ones."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(
        self,
        lease: Lease,
        study_id: int,
        environment_id: int,
        noise: StoredNoise,
        *,
        workload: str,
        world_size: int,
    ) -> None:
        """Store the run-to-run noise that a study found, for itself and for later studies."""
        with self._transactions.fenced(lease) as session:
            session.add(
                NoiseRow(
                    study_id=study_id,
                    environment_id=environment_id,
                    workload=workload,
                    world_size=world_size,
                    at=self._transactions.now(session),
                    **vars(noise),
                )
            )

    def of(self, study_id: int) -> StoredNoise | None:
        """Return the newest noise that a study itself found; None if there is none."""
        return self._newest(NoiseRow.study_id == study_id)

    def of_others(
        self, study_id: int, environment_id: int, *, workload: str, world_size: int
    ) -> StoredNoise | None:
        """Return the newest noise that other studies found in this environment; None if none."""
        return self._newest(
            NoiseRow.study_id != study_id,
            NoiseRow.environment_id == environment_id,
            NoiseRow.workload == workload,
            NoiseRow.world_size == world_size,
        )

    def _newest(self, *conditions: ColumnElement[bool]) -> StoredNoise | None:
        with self._transactions.reading() as session:
            row = session.scalar(
                select(NoiseRow).where(*conditions).order_by(NoiseRow.id.desc()).limit(1)
            )
            return StoredNoise(row.sigma_run, row.runs, row.drift_per_hour) if row else None


class Choices:
    """Choices of finalists, of all studies: which trials were measured again, which not, and why.

    A study whose finalists change, or that is continued, chooses again; earlier choices stay.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(self, lease: Lease, study_id: int, several: Sequence[FinalistChoice]) -> None:
        """Store the next choice of a study, all of its trials in one transaction."""
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            own = ChoiceRow.study_id == study_id
            number = (session.scalar(select(func.max(ChoiceRow.choice)).where(own)) or 0) + 1
            session.add_all(
                ChoiceRow(study_id=study_id, choice=number, at=at, **vars(one)) for one in several
            )

    def newest_of(self, study_id: int) -> list[FinalistChoice]:
        """Return the newest choice of a study, in its order; empty if it has not chosen."""
        own = ChoiceRow.study_id == study_id
        newest = select(func.max(ChoiceRow.choice)).where(own).scalar_subquery()
        wanted = select(ChoiceRow).where(own, ChoiceRow.choice == newest).order_by(ChoiceRow.id)
        with self._transactions.reading() as session:
            return [
                record_of(FinalistChoice, row, reason=ChoiceReason(row.reason))
                for row in session.scalars(wanted)
            ]


class Recommendations:
    """Recommendations of all studies, as they are exported.

    A study that is continued adds another.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(self, lease: Lease, study_id: int, trial: int, body: dict[str, Any]) -> None:
        """Store a recommendation of a study, as it is exported."""
        with self._transactions.fenced(lease) as session:
            created = self._transactions.now(session)
            session.add(
                RecommendationRow(study_id=study_id, trial=trial, body=body, created=created)
            )

    def newest_of(self, study_id: int) -> dict[str, Any] | None:
        """Return the newest recommendation of a study; None if it has none yet."""
        with self._transactions.reading() as session:
            return session.scalar(
                select(RecommendationRow.body)
                .where(RecommendationRow.study_id == study_id)
                .order_by(RecommendationRow.id.desc())
                .limit(1)
            )

    def of_others(self, study_id: int) -> list[Recommended]:
        """Return the newest recommendations of other studies, the newest first."""
        with self._transactions.reading() as session:
            rows = session.execute(
                select(StudyRow.name, StudyRow.spec, RecommendationRow.body)
                .join(StudyRow, StudyRow.id == RecommendationRow.study_id)
                .where(StudyRow.id != study_id)
                .order_by(RecommendationRow.id.desc())
                .limit(_NEWEST)
            )
            return [Recommended(*row) for row in rows]


class Repository:
    """Studies, leases, attempts and what belongs to them, in one database."""

    def __init__(self, database: Database, command: str = "") -> None:
        transactions = self._transactions = Transactions(database)
        self.database = database
        self.events = Events(database, transactions, Author.of_this_process(command))
        self.quotas = Quotas(transactions)
        self.studies = Studies(database, transactions, self.events)
        self.claims = Claims(transactions, self.events)
        self.leases = Leases(transactions)
        self.attempts = AttemptRecords(transactions)
        self.environments = Environments(transactions)
        self.noise = NoiseRecords(transactions)
        self.messages = Messages(transactions)
        self.choices = Choices(transactions)
        self.recommendations = Recommendations(transactions)

    def now(self) -> float:
        """Return the seconds since the epoch by the database's clock, as in all records.

        Clocks of other machines may differ from it.
        """
        with self._transactions.reading() as session:
            return self._transactions.now(session)


def study_names(url: str) -> frozenset[str]:
    """Read the names of all studies; none where the storage is not there yet, or cannot be read.

    Args:
        url: SQLAlchemy URL of a SQLite file or a PostgreSQL database.

    Raises:
        BadInput: the URL cannot be used.
    """
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        return _of_file(Path(str(parsed.database)))
    with contextlib.suppress(SQLAlchemyError):
        return _of_server(parsed)
    return frozenset()


def _of_file(path: Path) -> frozenset[str]:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    statement = str(select(StudyRow.name))
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(address, timeout=_PATIENCE, uri=True)
        with contextlib.closing(connection):
            return frozenset(name for (name,) in connection.execute(statement))
    return frozenset()


def _of_server(url: URL) -> frozenset[str]:
    engine = create_engine(url, connect_args={"connect_timeout": _PATIENCE})
    try:
        with engine.connect() as connection:
            return frozenset(connection.scalars(select(StudyRow.name)))
    finally:
        engine.dispose()
