"""A real database of each kind in turn, empty, and what most tests begin with."""

from collections.abc import Iterator

import pytest
from optuna.storages._rdb.models import BaseModel

from storage import Claim, Database, Lease, LeaseHolder, Repository, StoredStudy
from storage.models import Base
from tests.contract.storage.making import CLUSTER, LONG, submit, taken


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database of each kind for all tests here; each test finds it empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('storage')}/autotune.db"
    server = request.getfixturevalue("postgres_server")
    server.psql("create database contract")
    return str(server.get_uri(database="contract"))


@pytest.fixture(scope="session")
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def repository(database: Database) -> Repository:
    optunas = [t for t in BaseModel.metadata.sorted_tables if t.name != "version_info"]
    with database.writing() as connection:
        for table in reversed([*optunas, *Base.metadata.sorted_tables]):
            connection.execute(table.delete())
    return Repository(database)


@pytest.fixture
def claimed(repository: Repository) -> Claim:
    """A study that a daemon has claimed, and its lease."""
    submit(repository, "first")
    found = repository.claims.take(CLUSTER, LeaseHolder("here", 1, LONG))
    assert found is not None
    return found


@pytest.fixture
def study(claimed: Claim) -> StoredStudy:
    return claimed.study


@pytest.fixture
def lease(repository: Repository, request: pytest.FixtureRequest) -> Lease:
    """The lease of `study`; in a test without it, one of the queue."""
    if "study" in request.fixturenames:
        found: Claim = request.getfixturevalue("claimed")
        return found.lease
    return taken(repository)
