"""Commands about the storage, on files that are a storage and on files that are none."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from autotune.cli import storage as commands
from autotune.errors import AutotuneError, BadInput, StorageError
from storage import Database, LeaseHolder, Repository, database, schema
from storage.host import this_host
from storage.schema import VERSION_TABLE
from tests.support.steering import ask, autotune
from tests.unit.database.opening import execute, in_private_mounts, needs_mounts, opened, raw

EMPTY_INDEX = bytes((10, 0, 0, 0, 0, 16, 0, 0))
"""Beginning of a page of 4096 bytes of an index without entries."""


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


@pytest.mark.parametrize(
    "words", ["list", "queue", "status some", "history", "move some --priority 1"]
)
def test_command_about_studies_on_a_file_without_studies_writes_nothing(
    foreign: Path, words: str
) -> None:
    before = content(foreign.parent)
    told = ask(*words.split(), "--storage", url(foreign), cwd=foreign.parent)
    assert told.returncode == 2, told.stdout
    assert "some.db holds no studies of autotune" in told.stderr
    assert content(foreign.parent) == before


def test_storage_in_a_file_of_another_program_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.db"
    execute(url(path), "create table mine (id integer)")
    before = content(tmp_path)
    with pytest.raises(BadInput, match=r"mine\.db holds no studies of autotune"):
        Database(url(path))
    assert content(tmp_path) == before


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A storage with one study, which no process has open."""
    path = tmp_path / "source" / "a storage.db"
    path.parent.mkdir()
    with opened(url(path)) as database:
        Repository(database).studies.submit("first", "host:elsewhere", {}, "/w")
        database.optuna().engine.dispose()
    return path


def overwrite(path: Path, name: str, start: bytes = b"") -> None:
    """Put zeros in the place of the first page of a table or an index, as a bad disk does.

    Args:
        start: how the page begins instead.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        [size] = connection.execute("pragma page_size").fetchone()
        query = "select rootpage from sqlite_master where name = ?"
        [number] = connection.execute(query, [name]).fetchone()
    with path.open("r+b") as file:
        file.seek((number - 1) * size)
        file.write(start.ljust(size, b"\0"))


def checked(path: Path) -> str:
    """What `storage check` prints of a storage that it finds unsound, or of another version."""
    told = ask("storage", "check", "--storage", url(path), cwd=path.parent)
    assert told.returncode == 1 and "Traceback" not in told.stderr, told.stderr
    return told.stdout


def test_check_of_an_older_storage_is_of_its_own_file(tmp_path: Path) -> None:
    older = tmp_path / "older.db"
    with raw(url(older)) as engine:
        schema.create(engine, "0007")
    execute(url(older), "insert into studies (study_name) values ('a')")
    assert f"{url(older)}: sound." in checked(older)
    overwrite(older, "ix_studies_study_name", EMPTY_INDEX)
    told = checked(older)
    assert "sound" not in told
    assert "row 1 missing from index ix_studies_study_name" in told


def test_check_says_that_a_file_is_damaged_where_it_cannot_be_read_on(source: Path) -> None:
    overwrite(source, "autotune_attempt")
    assert "is damaged (database disk image is malformed)" in checked(source)


def make_newer(path: Path) -> None:
    execute(url(path), f"update {VERSION_TABLE} set version_num = '0099'")


def test_restore_copies_the_studies_and_leaves_the_source_as_it_was(
    source: Path, tmp_path: Path
) -> None:
    before = content(source.parent)
    commands.restore(source, url(tmp_path / "target.db"))
    assert content(source.parent) == before
    with opened(url(tmp_path / "target.db")) as database:
        assert [study.name for study in Repository(database).studies.all()] == ["first"]


def refused_restore(source: Path, target: Path, kind: type[AutotuneError]) -> str:
    """Restore a source that is refused; return the message."""
    before, there = content(source.parent), set(target.parent.iterdir())
    with pytest.raises(kind) as caught:
        commands.restore(source, url(target))
    assert content(source.parent) == before
    assert set(target.parent.iterdir()) == there
    return str(caught.value)


def test_restore_of_a_file_without_studies_is_refused(foreign: Path, tmp_path: Path) -> None:
    said = refused_restore(foreign, tmp_path / "target.db", BadInput)
    assert "some.db holds no studies of autotune" in said


def test_restore_of_a_newer_schema_is_refused(source: Path, tmp_path: Path) -> None:
    make_newer(source)
    said = refused_restore(source, tmp_path / "target.db", StorageError)
    assert "newer autotune (schema 0099" in said


def test_restore_of_a_folder_says_that_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "dir.db").mkdir()
    said = refused_restore(tmp_path / "dir.db", tmp_path / "target.db", BadInput)
    assert "dir.db is a folder" in said


def test_restore_that_fails_half_way_leaves_no_target(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(_: Engine, target: Engine) -> None:
        if "target.db" in str(target.url):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("storage.schema.copy_rows", copied)
    said = refused_restore(source, tmp_path / "target.db", BadInput)
    assert "No space left on device" in said


def test_restore_beside_another_into_the_same_file_leaves_what_that_has_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, original = tmp_path / "target.db", database.copy_of_file

    @contextlib.contextmanager
    def overtaken(path: Path) -> Iterator[Engine]:
        with original(path) as backup:
            if not target.exists():
                monkeypatch.setattr(database, "copy_of_file", original)
                commands.restore(source, url(target))
            yield backup

    monkeypatch.setattr(database, "copy_of_file", overtaken)
    with pytest.raises(BadInput):
        commands.restore(source, url(target))
    with opened(url(target)) as restored:
        assert [study.name for study in Repository(restored).studies.all()] == ["first"]


def test_restored_lease_of_a_daemon_is_over_at_once(source: Path, tmp_path: Path) -> None:
    with opened(url(source)) as running:
        holder = LeaseHolder(this_host(), os.getpid(), 1e6)
        assert Repository(running).claims.take("host:elsewhere", holder)
        running.optuna().engine.dispose()
    commands.restore(source, url(tmp_path / "target.db"))
    with opened(url(tmp_path / "target.db")) as restored:
        later = LeaseHolder(this_host(), os.getppid(), 10.0)
        claim = Repository(restored).claims.take("host:elsewhere", later)
        *_, taken_over = Repository(restored).events.of("first")
    assert claim is not None and claim.study.name == "first"
    assert claim.lease.predecessor is None, (
        "the daemon of the source lives, and is to be waited for"
    )
    assert taken_over.detail == f"process {later.pid}"


@needs_mounts
@pytest.mark.long
def test_restore_from_a_file_system_that_cannot_be_written_succeeds(
    source: Path, tmp_path: Path
) -> None:
    script = """
import subprocess, sys
from pathlib import Path
from autotune.cli.storage import restore
source, target = sys.argv[1:]
folder = str(Path(source).parent)
subprocess.run(["mount", "--bind", folder, folder], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
restore(Path(source), f"sqlite:///{target}")
"""
    ran = in_private_mounts(script, str(source), str(tmp_path / "target.db"), cwd=tmp_path)
    assert (ran.returncode, ran.stdout[:1]) == (0, "1"), ran.stderr


@needs_mounts
@pytest.mark.long
def test_restore_through_a_temporary_folder_without_room_names_that(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "temporary").mkdir()
    script = """
import subprocess, sys, tempfile
from pathlib import Path
from autotune.errors import StorageError
from storage.database import copy_of_file
tempfile.tempdir = str(Path("temporary").absolute())
for size in range(16, 256, 24):
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", "temporary"]
    subprocess.run(mount, check=True)
    try:
        with copy_of_file(Path(sys.argv[1])):
            print("copied")
    except StorageError as error:
        print(error)
    subprocess.run(["umount", "-l", "temporary"], check=True)
"""
    ran = in_private_mounts(script, str(source), cwd=tmp_path)
    refusals = [line for line in ran.stdout.splitlines() if line != "copied"]
    assert len(refusals) > 5, ran.stderr
    told = f"no room is left on the disk of {tmp_path}/temporary, where the storage is copied"
    assert [line for line in refusals if not line.startswith(told)] == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("missing/copy.db", "No such file or directory"),
        ("/proc/copy.db", "cannot be created"),
        ("there.db", "File exists"),
        ("sqlite:////tmp/copy.db", "is a URL"),
        ("postgresql://me@host/copy", "is a URL"),
    ],
)
def test_backup_to_a_place_where_none_can_be_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.db").write_text("mine")
    with pytest.raises(BadInput, match=expected):
        commands.backup(Path(file), url(source))
    assert content(tmp_path) == {"there.db": b"mine"}


def test_backup_of_a_newer_schema_is_refused_and_leaves_no_file(
    source: Path, tmp_path: Path
) -> None:
    make_newer(source)
    with pytest.raises(StorageError, match=r"newer autotune \(schema 0099"):
        commands.backup(tmp_path / "copy.db", url(source))
    assert content(tmp_path) == {}


def test_backup_that_fails_half_way_leaves_no_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("storage.schema.copy_rows", fail)
    with pytest.raises(BadInput, match="No space left"):
        commands.backup(tmp_path / "copy.db", url(source))
    assert content(tmp_path) == {}


@pytest.mark.long
def test_files_of_the_user_beside_a_backup_are_left_alone(source: Path, tmp_path: Path) -> None:
    beside = [f"copy.db.new{ending}" for ending in ("", "-wal", "-shm", "-journal")]
    for name in beside:
        (tmp_path / name).write_text("mine")
    commands.backup(tmp_path / "copy.db", url(source))
    commands.restore(tmp_path / "copy.db", url(tmp_path / "copy.db.new.db"))
    found = content(tmp_path)
    assert {found[name] for name in beside} == {b"mine"}
    assert [name for name in found if name.startswith(".")] == []


def test_backup_that_is_killed_half_way_leaves_no_file_that_looks_like_one(
    source: Path, tmp_path: Path
) -> None:
    script = """
import os, sys
from pathlib import Path
from autotune.cli import storage
from storage import schema
schema.copy_rows = lambda *_: os._exit(9)
storage.backup(Path(sys.argv[1]), sys.argv[2])
"""
    words = [sys.executable, "-c", script, str(tmp_path / "copy.db"), url(source)]
    assert subprocess.run(words, check=False).returncode == 9
    said = refused_restore(tmp_path / "copy.db", tmp_path / "target.db", BadInput)
    assert "copy.db holds no studies of autotune" in said


@pytest.fixture
def log_without_its_file(tmp_path: Path) -> Path:
    """The log of a storage whose process was killed and whose file was moved away."""
    path = tmp_path / "killed" / "autotune.db"
    path.parent.mkdir()
    script = """
import os, sys
from storage import Database, Repository
Repository(Database(sys.argv[1])).studies.submit("earlier", "host:elsewhere", {}, "/w")
os._exit(9)
"""
    words = [sys.executable, "-c", script, url(path)]
    assert subprocess.run(words, check=False).returncode == 9
    path.rename(tmp_path / "autotune.db.bad")
    log = path.with_name("autotune.db-wal")
    assert log.stat().st_size
    return log


@pytest.mark.long
def test_new_storage_beside_the_log_of_an_earlier_one_is_refused(
    source: Path, log_without_its_file: Path
) -> None:
    log, target = log_without_its_file, log_without_its_file.with_name("autotune.db")
    before = log.read_bytes()
    for empty in (False, True):
        if empty:
            target.touch()
        for make in (lambda: commands.restore(source, url(target)), lambda: Database(url(target))):
            with pytest.raises(
                BadInput, match=r"of an earlier autotune\.db.*remove autotune\.db-wal"
            ):
                make()
    assert log.read_bytes() == before
    assert target.stat().st_size == 0
    log.unlink()
    commands.restore(source, url(target))


def test_daemon_that_opens_a_storage_logs_nothing_of_its_schema(source: Path) -> None:
    storage = ("--storage", url(source))
    ran = autotune("daemon", "--idle-exit", "0", *storage, cwd=source.parent)
    assert ran.returncode == 0
    assert "SQLiteImpl" not in ran.stderr
    assert "DDL" not in ran.stderr
