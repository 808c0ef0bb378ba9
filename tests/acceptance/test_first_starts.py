"""Many processes that open one empty database at the same moment: all of them succeed."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from storage import Database, Repository, TrialLedger
from storage.schema import VERSION_TABLE

PROCESSES = 16
ROUNDS = 3
"""Databases, one after another: a race that is lost now and then is lost in one of them."""
ROOT = Path(__file__).parents[2]

OPENER = """
import gc, sys, traceback
import optuna
from storage import Database, Repository, TrialLedger

optuna.logging.set_verbosity(optuna.logging.WARNING)
who = sys.argv[1]
print("ready", flush=True)
for line in sys.stdin:
    try:
        database = Database(line.strip())
        ledger = TrialLedger(database, "shared")
        repository = Repository(database)
        repository.studies.submit(f"study {who}", "host:here", {"who": who}, "/w")
        assert repository.studies.named(f"study {who}").spec == {"who": who}
        database.engine.dispose()
        ledger._study._storage._backend.engine.dispose()
        del database, ledger, repository
        gc.collect()
        print("ok", flush=True)
    except BaseException as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}".replace(chr(10), " "), flush=True)
"""


@pytest.fixture(scope="module")
def openers() -> Iterator[list[subprocess.Popen[str]]]:
    """As many as start at once."""
    with several(PROCESSES) as found:
        yield found


@contextlib.contextmanager
def several(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have imported everything and wait for the URL of a database."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(opener(str(number))) for number in range(count)]
        assert [answer(process) for process in started] == ["ready"] * count
        yield started


@contextlib.contextmanager
def opener(who: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OPENER, who],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], url: str) -> None:
    assert process.stdin is not None
    process.stdin.write(url + "\n")
    process.stdin.flush()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_databases(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "sqlite":
        return [f"sqlite:///{tmp_path}/{number}.db" for number in range(ROUNDS)]
    server: Any = request.getfixturevalue("postgres_server")
    for number in range(ROUNDS):
        server.psql(f"create database first_starts_{number}")
    return [server.get_uri(database=f"first_starts_{number}") for number in range(ROUNDS)]


@pytest.mark.fault(13)
@pytest.mark.slow
def test_all_of_many_processes_open_an_empty_database_at_once(
    openers: list[subprocess.Popen[str]], empty_databases: list[str]
) -> None:
    for url in empty_databases:
        for process in openers:
            tell(process, url)
        answers = [answer(process) for process in openers]
        assert answers == ["ok"] * PROCESSES
        assert_sound(url)


def assert_sound(url: str) -> None:
    """Everything is there, and there once."""
    database = Database(url)
    studies = Repository(database).studies.all()
    submitted = [f"study {number}" for number in range(PROCESSES)]
    assert sorted(study.name for study in studies) == sorted(submitted)
    assert TrialLedger(database, "shared").trials() == []
    counts = {
        "alembic_version": 1,
        "version_info": 1,
        VERSION_TABLE: 1,
        "autotune_study": PROCESSES,
    }
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connection:
        # A study that is submitted has one of Optuna from the beginning.
        of_optuna = connection.scalars(text("select study_name from studies")).all()
        assert sorted(of_optuna) == sorted(["shared", *submitted])
        for table, count in counts.items():
            assert connection.scalar(text(f"select count(*) from {table}")) == count, table
    engine.dispose()
    database.engine.dispose()


@pytest.mark.long
@pytest.mark.sample
@pytest.mark.fault(13)
def test_a_process_that_was_killed_while_it_made_the_tables_blocks_nobody(
    postgres_url: str,
) -> None:
    """Its lock on the server goes with it."""
    with several(4) as (doomed, *others):
        tell(doomed, postgres_url)
        time.sleep(0.1)
        doomed.kill()
        doomed.wait()
        for process in others:
            tell(process, postgres_url)
        assert [answer(process) for process in others] == ["ok"] * 3


DYING = """
import json, os, signal, sqlite3, sys
from pathlib import Path
from sqlalchemy import Engine, event
from storage import Database

def open_in_child(url, writes):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done = 0
    def write():
        nonlocal done
        if done == writes:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
    @event.listens_for(Engine, "before_cursor_execute")
    def statement(connection, cursor, statement, *_):
        if statement.strip().upper().startswith(("CREATE", "INSERT", "UPDATE", "ALTER")):
            write()
    @event.listens_for(Engine, "commit")
    def commit(connection):
        write()
    try:
        Database(url)
        os._exit(0)
    finally:
        os._exit(1)

def contents(path):
    connection = sqlite3.connect(path)
    everything = connection.execute("select type, name, tbl_name, sql from sqlite_master").fetchall()
    for table in ("alembic_version", "version_info", "autotune_alembic_version"):
        everything += connection.execute(f"select '{table}', * from {table}").fetchall()
    connection.close()
    return {json.dumps(row) for row in everything}

assert open_in_child("sqlite:///whole.db", -1) == 0
whole = contents("whole.db")
killed, findings = 0, []
while True:
    path = f"{killed}.db"
    if open_in_child(f"sqlite:///{path}", killed) == 0:
        break
    if open_in_child(f"sqlite:///{path}", -1) != 0:
        findings.append([killed, "cannot be opened any more"])
    elif contents(path) != whole:
        findings.append([killed, sorted(contents(path) ^ whole)])
    for file in Path.cwd().glob(path + "*"):
        file.unlink()
    killed += 1
print(json.dumps({"killed": killed, "findings": findings}))
"""


@pytest.mark.fault(13)
@pytest.mark.slow
def test_a_first_start_that_is_killed_before_any_write_is_made_good(tmp_path: Path) -> None:
    """However little it got done, the next one ends with the same tables, indexes and versions."""
    found = subprocess.run(
        [sys.executable, "-c", DYING],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=400,
        check=True,
    )
    outcome = json.loads(found.stdout)
    assert outcome["killed"] > 30, "so many tables and indexes there are at least"
    assert outcome["findings"] == []
