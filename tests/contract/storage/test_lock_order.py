"""Whoever locks a lease and something else takes the lease first: or two could wait for each other."""

import re
from collections.abc import Iterator

import pytest
from optuna.storages._rdb.models import BaseModel
from sqlalchemy import Connection, event, update

from storage import Lease, Repository, Retry, StoredStudy
from storage.models import AttemptRow, Base
from tests.contract.storage.making import claim, submit, taken_over
from tests.contract.storage.test_fence import FENCED

LEASE = "autotune_lease"
USAGE = "autotune_usage"
_TABLES = re.compile("|".join((*Base.metadata.tables, *BaseModel.metadata.tables)))


class Locks:
    """What each transaction locks, in order: rows that it writes, or reads to write them."""

    def __init__(self, repository: Repository) -> None:
        self.transactions: list[list[str]] = []
        self._engine = repository.database.engine

    def __enter__(self) -> "Locks":
        event.listen(self._engine, "begin", self._begin)
        event.listen(self._engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "begin", self._begin)
        event.remove(self._engine, "before_cursor_execute", self._note)

    def _begin(self, _: Connection) -> None:
        self.transactions.append([])

    def _note(self, *given: object) -> None:
        statement = str(given[2])
        # An insert locks what it refers to: with us that is a study, or an attempt of it. Nothing waits
        # for the new lease of a new study, and an event refers to nothing.
        if re.match(f"INSERT INTO ({LEASE}|autotune_event)", statement):
            return
        if re.match("UPDATE|DELETE|INSERT", statement) or "FOR UPDATE" in statement:
            found = _TABLES.search(statement)
            assert found, statement
            self.transactions[-1].append(found[0])

    def late(self) -> list[list[str]]:
        """Transactions that lock a lease after something else."""
        return [
            locked for locked in self.transactions if LEASE in locked[1:] and locked[0] != LEASE
        ]

    def after_usage(self) -> list[list[str]]:
        """Transactions that lock something after the sum that daemons of an owner share.

        SQLite locks the whole file, and has no words for a row that is to be written later.
        """
        if self._engine.dialect.name == "sqlite":
            return []
        shared = [locked for locked in self.transactions if USAGE in locked]
        return [
            locked
            for locked, first in ((locked, locked.index(USAGE)) for locked in shared)
            if not {*locked[first:]} <= {*locked[: first + 1]}
        ]


@pytest.fixture
def locks(repository: Repository) -> Iterator[Locks]:
    with Locks(repository) as found:
        yield found


@pytest.mark.parametrize("write", FENCED)
def test_a_daemon(
    repository: Repository, lease: Lease, study: StoredStudy, locks: Locks, write: str
) -> None:
    repository.environments.record(lease, {})
    attempt = repository.attempts.begin(lease, study.id, 0, {})
    submit(repository, "second")
    FENCED[write](repository, lease, study.id, attempt.id)
    assert any(LEASE in locked for locked in locks.transactions)
    assert locks.late() == []
    assert locks.after_usage() == []


def begin_earlier(repository: Repository, lease: Lease, study: StoredStudy) -> None:
    """Begin an attempt a minute ago."""
    begun = repository.attempts.begin(lease, study.id, 0, {})
    with repository.database.writing() as connection:
        own = update(AttemptRow).where(AttemptRow.id == begun.id)
        connection.execute(own.values(started=begun.started - 60.0))


def test_people(repository: Repository, lease: Lease, study: StoredStudy, locks: Locks) -> None:
    studies = repository.studies
    submit(repository, "second")
    studies.request_stop(study.name)
    studies.enqueue(study.name, {"name": "other"}, "/elsewhere")
    begin_earlier(repository, lease, study)
    repository.claims.put_back(lease, study.id, Retry("no cluster", 0.0, 1))
    studies.request_stop("second")
    later = taken_over(repository)
    claim(repository, later)
    studies.delete("second")
    begin_earlier(repository, later, study)
    repository.leases.release(later)
    studies.move(study.name, "host:there")
    if repository.database.folder is None:  # SQLite locks the whole file, and has no such words
        assert [LEASE, "autotune_study"] in [locked[:2] for locked in locks.transactions]
    assert locks.late() == []
    assert sum(USAGE in locked for locked in locks.transactions) == 2
    assert locks.after_usage() == []
