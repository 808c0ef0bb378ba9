"""Commands about the storage, on files that are a storage and on files that are none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli import storage as commands
from autotune.errors import BadInput
from tests.unit.database.opening import execute


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(params=["empty", "of another program", "of Optuna"])
def foreign(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A SQLite file that is no storage of autotune."""
    path = tmp_path / "foreign" / "some.db"
    path.parent.mkdir()
    path.touch()
    if request.param == "of another program":
        execute(url(path), "create table mine (id integer)")
    if request.param == "of Optuna":
        execute(url(path), "create table alembic_version (version_num varchar(32))")
    return path


@pytest.mark.parametrize("command", [commands.check, commands.upgrade])
def test_command_on_a_file_without_studies_is_refused_and_writes_nothing(
    foreign: Path, command: Callable[[str], None]
) -> None:
    before = content(foreign.parent)
    with pytest.raises(BadInput, match=r"some\.db holds no studies of autotune"):
        command(url(foreign))
    assert content(foreign.parent) == before
