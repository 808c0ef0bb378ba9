"""A study over a replaying launcher, for every test one."""

import math
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.study import dashboard_sync
from storage import Database
from tests.control.replayed import Replayed

_MEMORY = Path("/dev/shm")
"""No test here is about power cuts, so no commit needs to wait for a disk."""
_LOOKS, _JOIN_SECONDS = 30, 3.0


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    """One for all tests, as it takes longer to open one, and to compile all statements for it, than to
    run a study; each test finds it empty."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "autotune.db"
        found = Database(f"sqlite:///{path}")
        _close(found)
        shutil.copy(path, path.with_suffix(".empty"))
        yield found


@pytest.fixture
def played(tmp_path: Path, database: Database) -> Replayed:
    """A study over a launcher that replays."""
    _empty(database)
    _await_daemons(database)
    return Replayed(tmp_path, database)


@pytest.fixture(autouse=True)
def shown_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard has a study at its beginning and its end, however slow this machine is."""
    monkeypatch.setattr(dashboard_sync, "EVERY_SECONDS", math.inf)


@pytest.fixture
def shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard has everything as soon as it is recorded."""
    monkeypatch.setattr(dashboard_sync, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(dashboard_sync, "LARGEST_SHARE", math.inf)


def _empty(database: Database) -> None:
    _close(database)
    path = Path(str(database.url.database))
    fresh = path.with_suffix(".fresh")
    shutil.copy(path.with_suffix(".empty"), fresh)
    # A daemon in a thread of an earlier test finds one file or the other, and never one without tables.
    fresh.replace(path)
    for left in path.parent.glob("autotune.db-*"):
        left.unlink()


def _await_daemons(database: Database) -> None:
    """Wait until the daemons in threads of an earlier test have seen that nothing is left to run.

    One that still looks for its study would take that of the next test, which has the same id. One that
    has connected while the file was emptied may see what is no more there: it is emptied once more.
    """
    for _ in range(_LOOKS):
        found = [thread for thread in threading.enumerate() if thread.name == "daemon"]
        if not found:
            return
        found[0].join(_JOIN_SECONDS)
        _empty(database)
    raise AssertionError(f"daemons of an earlier test run on: {found}")


def _close(database: Database) -> None:
    database.engine.dispose()
    database.optuna().engine.dispose()
