"""What the tests of the storage make and look at."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import select, text, update

from storage import Lease, LeaseHolder, Repository, StoredBlock, StoredStudy, StudyState
from storage.models import Base, LeaseRow
from tests.support.records import end_lease

CLUSTER = "host:here"
LONG = 60.0


def submit(repository: Repository, name: str, queue: str = CLUSTER) -> StoredStudy:
    return repository.studies.submit(name, queue, {"name": name}, "/somewhere")


def taken(repository: Repository, queue: str = CLUSTER, seconds: float = LONG) -> Lease:
    lease = repository.leases.acquire(queue, LeaseHolder("here", 1, seconds))
    assert lease is not None
    return lease


def pass_time(repository: Repository, seconds: float) -> None:
    """Make all leases so many seconds older."""
    aged = {column: column - seconds for column in (LeaseRow.expires, LeaseRow.boot_expires)}
    with repository.database.writing() as connection:
        connection.execute(update(LeaseRow).values(aged))


def taken_over(repository: Repository) -> Lease:
    """The lease of the study that runs, or else of the queue, in the hands of another daemon."""
    with repository.database.engine.connect() as connection:
        keys = list(connection.scalars(select(LeaseRow.key).where(LeaseRow.epoch > 0)))
    held = [state for key in keys if (state := repository.leases.state(key)) is not None]
    for state in held:
        end_lease(repository, state)
    return taken(repository, max(keys))  # those of studies come behind those of hosts


def end(
    repository: Repository,
    lease: Lease,
    study: StoredStudy,
    state: StudyState = StudyState.DONE,
    verdict: dict[str, Any] | None = None,
) -> None:
    """End a study as its daemon does."""
    if verdict is not None or state == StudyState.DONE:
        repository.claims.conclude(lease, study, verdict or {})
    if state == StudyState.STOPPED:
        repository.claims.stop(lease, study.id)
    if state == StudyState.FAILED:
        repository.claims.fail(lease, study.id, "why")


def claim(repository: Repository, lease: Lease) -> StoredStudy | None:
    """The study that the holder of a lease, of a queue or of a study, runs next."""
    queue = CLUSTER if lease.key.startswith("study:") else lease.key
    found = repository.claims.take(queue, LeaseHolder("here", 1, LONG), before=lease)
    return found.study if found else None


def block(index: int = 0, **changes: Any) -> StoredBlock:
    values: dict[str, Any] = {
        "index": index,
        "steps": 10,
        "samples": 320,
        "tokens": 0,
        "seconds": 0.25,
        "rank_seconds": [0.25, 0.24],
        "wait_seconds": 0.01,
        "loss": 1.5,
        "peak_bytes": 1024,
        "kept": True,
        "contended": False,
        "observed": {"step_p50": 0.025, "exposed_seconds": [0.001, 0.002]},
    }
    return StoredBlock(**{**values, **changes})


def rows(repository: Repository) -> dict[str, list[Any]]:
    """Everything in our tables."""
    with repository.database.engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in Base.metadata.sorted_tables
        }


def database_time(repository: Repository) -> float:
    with repository.database.engine.connect() as connection:
        return float(connection.scalar(text(f"select {repository.database.now()}")))


def at_once(action: Callable[[int], Any], count: int = 8) -> list[Any]:
    """Results of action(0), action(1), ... that threads begin at the same moment."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait(30)
        return action(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))
