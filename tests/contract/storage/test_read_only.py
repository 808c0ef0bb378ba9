"""A server that has become read-only, as after a fail-over, is away; it is not an error of ours."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import StorageUnreachable
from autotune.service.queues import this_queue
from launchers.replay import Answer, Launch
from storage import Database, Repository
from tests.contract.storage.making import CLUSTER, LONG, taken
from tests.control.replayed import PLAIN, Replayed

pytestmark = pytest.mark.fault(27)

NAME = "read_only"
SHORT = {
    "budget": {"trials": 2, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}


@pytest.fixture(scope="module")
def server(postgres_server: Any) -> Any:
    postgres_server.psql(f"create database {NAME}")
    return postgres_server


@pytest.fixture
def database(server: Any) -> Iterator[Database]:
    opened = Database(server.get_uri(database=NAME))
    yield opened
    opened.engine.dispose()
    opened.optuna().engine.dispose()


def make(server: Any, mode: str) -> None:
    """Of all connections, old and new."""
    server.psql(f"alter database {NAME} set default_transaction_read_only = {mode}")
    server.psql(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{NAME}'")


@contextlib.contextmanager
def read_only(server: Any) -> Iterator[None]:
    make(server, "on")
    try:
        yield
    finally:
        # Connections stay as they are, as those to a former primary do.
        server.psql(f"alter database {NAME} set default_transaction_read_only = off")


@pytest.mark.sample
def test_whoever_writes_is_told_that_it_is_away(server: Any, database: Database) -> None:
    repository = Repository(database)
    lease = taken(repository)
    with read_only(server), pytest.raises(StorageUnreachable, match="read-only"):
        repository.leases.renew(lease, LONG)
    # Not through a connection to the server that is read-only still.
    repository.leases.renew(lease, LONG)
    assert repository.leases.holder(CLUSTER)


@pytest.mark.long
def test_a_study_waits_and_goes_on(server: Any, database: Database, tmp_path: Path) -> None:
    played = Replayed(tmp_path, database)
    launches = []
    over = threading.Timer(3.0, make, (server, "off"))

    def switching(launch: Launch) -> Answer:
        launches.append(launch)
        if len(launches) == 2:
            make(server, "on")
            over.start()
        return PLAIN(launch)

    played.submit(**SHORT)
    played.on(switching)
    try:
        played.serve()
    finally:
        if over.ident:
            over.join()
    assert len(launches) > 2
    played.assert_complete(trials=2)
    state = played.repository.leases.state(this_queue())
    assert state is not None
    assert state.epoch == 1, "the daemon knew its own lease again"
