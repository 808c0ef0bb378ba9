"""PostgreSQL with a password goes away in mid study and comes back."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import inspect, text

from tests.support.postgres import bring_back, own_server
from tests.support.steering import Command, StudyFolder, processes_in, study_folder
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

SECRET = "hunter2secret"
PASSWORD = f"p@ss/w:rd %{SECRET}'\""
TRIALS = 5


@dataclass
class Outage:
    """A study that went through it."""

    study: StudyFolder
    following: Command
    follower_exit: int = 0
    state_after: str = ""
    command_lines: set[str] = field(default_factory=set)

    @property
    def daemon_log(self) -> str:
        return (self.study.folder / ".autotune" / "daemon.log").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A PostgreSQL of its own whose user `tuner` needs the password."""
    with own_server() as found:
        quoted = PASSWORD.replace("'", "''")
        found.psql(f"create role tuner login password '{quoted}'")
        found.psql("create database studies owner tuner")
        access = found.pgdata / "pg_hba.conf"
        access.write_text("local all tuner scram-sha-256\n" + access.read_text())
        found.psql("select pg_reload_conf()")
        yield found


def url(server: Any, password: str = PASSWORD) -> str:
    query = server.get_uri(database="studies").partition("?")[2]
    return f"postgresql://tuner:{quote(password, safe='')}@/studies?{query}"


@pytest.fixture(scope="module")
def outage(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """`autotune start` follows while the server is away for longer than anybody's next look."""
    with study_folder(tmp_path_factory.mktemp("outage"), url(server)) as tiny:
        slow = {"name": "tiny:build", "args": {"sleep": 0.02}}
        tiny.write(resources={"workers": 1}, budget={"trials": TRIALS}, workload=slow)
        found = Outage(tiny, tiny.spawn("start", "study.yaml"))
        over = threading.Event()
        watcher = threading.Thread(target=watch_command_lines, args=(found, over))
        watcher.start()
        try:
            tiny.wait_running(after=2)
            server.stop()
            wait_for(lambda: "waiting: " in found.daemon_log, "the daemon notices")
            bring_back(server)
            found.follower_exit = found.following.wait()
            wait_for(lambda: tiny.study().state != "RUNNING" or not daemon_in(tiny), "its end")
            found.state_after = tiny.study().state
            if found.state_after == "RUNNING":
                tiny.run("start", "study.yaml")
        finally:
            over.set()
            watcher.join()
            bring_back(server)
        yield found


def daemon_in(tiny: StudyFolder) -> bool:
    return any("autotune daemon" in line for line in processes_in(tiny.folder).values())


def watch_command_lines(outage: Outage, over: threading.Event) -> None:
    while not over.wait(0.1):
        outage.command_lines.update(processes_in(outage.study.folder).values())


@pytest.mark.sample
@pytest.mark.fault(11)
def test_the_daemon_goes_on_when_the_server_is_back(outage: Outage) -> None:
    assert outage.state_after == "DONE"


@pytest.mark.fault(11)
def test_the_study_completes_with_nothing_lost_or_repeated(outage: Outage) -> None:
    outage.study.assert_complete(trials=TRIALS)
    assert (outage.study.folder / "best.yaml").exists()


@pytest.mark.fault(11)
def test_whoever_follows_is_not_thrown_out(outage: Outage) -> None:
    assert "Traceback" not in outage.following.output()
    assert outage.follower_exit == 0, outage.following.output()


@pytest.mark.fault(11)
def test_study_in_the_foreground_leaves_when_told_while_the_server_is_away(
    server: Any, tmp_path: Path
) -> None:
    """A batch job that is preempted during an outage is to be requeued."""
    with study_folder(tmp_path, url(server), "told") as told:
        slow = {"name": "tiny:build", "args": {"sleep": 0.02}}
        told.write(resources={"workers": 1}, budget={"trials": 1000}, workload=slow)
        running = told.spawn("start", "study.yaml", "--foreground")
        told.wait_running(after=1)
        server.stop()
        try:
            wait_for(lambda: "waiting for it" in running.output(), "the outage is noticed")
            running.send(signal.SIGTERM)
            assert running.wait() == 75, running.output()
        finally:
            bring_back(server)
        told.wait_nothing_runs()


@contextlib.contextmanager
def started_in_an_outage(server: Any, study: StudyFolder) -> Iterator[Command]:
    """Start a study in the foreground while the server is away; bring it back at the end."""
    study.write(resources={"workers": 1}, budget={"trials": 2})
    server.stop()
    try:
        running = study.spawn("start", "study.yaml", "--foreground")
        wait_for(lambda: "waiting for it" in running.output(), "the outage is noticed")
        yield running
    finally:
        bring_back(server)


@pytest.mark.fault(11)
def test_study_in_the_foreground_begins_once_the_server_answers(
    server: Any, tmp_path: Path
) -> None:
    """A job of a batch system may be begun while the server is restarted."""
    with study_folder(tmp_path, url(server), "early") as early:
        with started_in_an_outage(server, early) as running:
            pass
        assert running.wait() == 0, running.output()
        assert SECRET not in running.output()


@pytest.mark.fault(11)
def test_process_in_the_foreground_leaves_when_told_before_the_server_answers(
    server: Any, tmp_path: Path
) -> None:
    with (
        study_folder(tmp_path, url(server), "never") as never,
        started_in_an_outage(server, never) as running,
    ):
        running.send(signal.SIGTERM)
        assert running.wait() == 75, running.output()


@pytest.mark.sample
@pytest.mark.fault(20)
def test_the_password_shows_nowhere(outage: Outage) -> None:
    tiny = outage.study
    assert any("daemon" in line for line in outage.command_lines)
    assert any("autotune.worker.node.agent" in line for line in outage.command_lines)
    assert [line for line in outage.command_lines if SECRET in line] == []
    (tiny.folder / "study.yaml").rename(tiny.folder / "secret.yaml")  # may hold it, of course
    by_environment = {"AUTOTUNE_STORAGE": tiny.url}
    commands = [
        ["status", tiny.name],
        ["status", tiny.name, "--json"],
        ["list"],
        ["logs", tiny.name],
        ["export", tiny.name],
        ["status", "nobody"],
    ]
    for command in commands:
        found = tiny.ask(*command, env=by_environment)
        assert "Traceback" not in found.stderr
        assert SECRET not in found.stdout + found.stderr, command
    assert SECRET not in outage.following.output()
    written = [p for p in tiny.folder.rglob("*") if p.is_file() and p.name != "secret.yaml"]
    assert tiny.folder / ".autotune" / "daemon.log" in written
    assert tiny.folder / "best.yaml" in written
    assert [p for p in written if SECRET.encode() in p.read_bytes()] == []
    assert SECRET not in whole_database(tiny)


def whole_database(tiny: StudyFolder) -> str:
    engine = tiny.repository.database.engine
    found = []
    with engine.connect() as connection:
        for table in inspect(engine).get_table_names():
            found += connection.execute(text(f'select t::text from "{table}" t')).scalars().all()
    assert any("tiny:build" in row for row in found), "the stored study is among it"
    return "\n".join(found)


@pytest.mark.fault(20)
@pytest.mark.parametrize("problem", ["wrong password", "no server", "in the query"])
def test_a_refused_connection_is_told_without_the_password(
    server: Any, tmp_path: Path, problem: str
) -> None:
    address = url(server, password=SECRET)
    if problem == "no server":
        address = f"postgresql://tuner:{SECRET}@/studies?host={tmp_path}"
    if problem == "in the query":
        address = f"{url(server).replace('tuner:' + quote(PASSWORD, safe=''), 'tuner')}"
        address += f"&password={SECRET}"
    with study_folder(tmp_path) as tiny:
        tiny.url = address
        tiny.write()
        found = tiny.ask("start", "study.yaml")
        assert found.returncode == 1, found.stdout + found.stderr
        assert SECRET not in found.stdout + found.stderr
        assert "Traceback" not in found.stderr
