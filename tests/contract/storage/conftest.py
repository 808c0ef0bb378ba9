"""A real database of each kind in turn, empty, and what most tests begin with."""

from collections.abc import Iterator

import pytest

from storage import Database, Lease, Repository, StoredStudy
from storage.models import Base
from tests.contract.storage.making import submit, taken


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database of each kind for all tests here; each test finds our tables empty."""
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
    with database.writing() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
    return Repository(database)


@pytest.fixture
def lease(repository: Repository) -> Lease:
    return taken(repository)


@pytest.fixture
def study(repository: Repository, lease: Lease) -> StoredStudy:
    """A study that the lease's holder has claimed."""
    submit(repository, "first")
    claimed = repository.studies.claim(lease)
    assert claimed is not None
    return claimed
