"""A day of two users on one machine, in minutes: whatever may befall a service befalls it.

    python -m tests.faults.a_day FOLDER [--disk]

prints what happens, and what the daemons say of it, as a story; the last line is its sums as JSON. With
`--disk` one user's folder lies on a small disk of its own, which fills up: for that, the process has to
be root in a mount namespace.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from optuna.exceptions import StorageInternalError
from sqlalchemy import text

from autotune.errors import StorageUnreachable
from autotune.worker.protocol import PROTOCOL
from storage import Database, MessageKind, Repository, StoredAttempt, StoredStudy
from tests.contract.launchers import sites
from tests.support.postgres import bring_back, own_server
from tests.support.steering import TINY_WORKLOAD, StudyFolder, ask, processes_in
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
STUDIES = 10
"""Of each user."""
TRIALS = 2
CUT_OFF_SECONDS = 10.0
READ_ONLY_SECONDS = 5.0
RESTART_SECONDS = 1.0
"""Until a daemon that has left without being told to is started again: RestartSec of the unit."""
LONGEST = 240.0
"""Seconds in which any single thing must come about; an agent is given up after 60 s of silence."""
DATABASE = "day"
_TIME = re.compile(r"^[-\d]+ [:\d]+,\d+ ")
"""What a line of a daemon's log begins with: the story has a time of its own."""

Found = TypeVar("Found")


class Story:
    """What happens, line by line."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._out = sys.stdout  # which a command that is asked in this process has for itself
        self.lines: list[str] = []

    def tell(self, who: str, text: str) -> None:
        """Add a line, and print it."""
        line = f"{self.seconds:6.1f} s  {who:14} {text}"
        self.lines.append(line)
        print(line, file=self._out, flush=True)

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._began


class Unit:
    """A daemon as systemd keeps it: leaves by SIGTERM, and is started again if it leaves by itself."""

    def __init__(self, user: str, folder: Path, env: dict[str, str], story: Story) -> None:
        self._name = f"{user}'s daemon"
        self._folder = folder
        self._env = {**os.environ, **env}
        self._story = story
        self._told_to_leave = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self.exits: list[int] = []

    @property
    def pid(self) -> int:
        """Of the daemon that runs now."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """`systemctl start`."""
        self._told_to_leave.clear()
        self._spawn()
        self._thread = threading.Thread(target=self._keep, name=self._name)
        self._thread.start()

    def stop(self) -> None:
        """`systemctl stop`: SIGTERM to the daemon alone, and wait."""
        self._told_to_leave.set()
        os.kill(self.pid, signal.SIGTERM)
        assert self._thread is not None
        self._thread.join(LONGEST)
        assert not self._thread.is_alive(), f"{self._name} does not leave"

    def restart(self) -> None:
        """`systemctl restart`."""
        self.stop()
        self.start()

    def _spawn(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune", "daemon"],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _keep(self) -> None:
        while True:
            assert self._process is not None
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._story.tell(self._name, _TIME.sub("", line.rstrip()))
            self.exits.append(self._process.wait())
            if self._told_to_leave.is_set():
                return
            self._story.tell("systemd", f"{self._name} has ended by {-self.exits[-1]}; once more")
            time.sleep(RESTART_SECONDS)
            self._spawn()


class User:
    """Somebody with a folder, studies and a daemon of their own."""

    def __init__(self, name: str, folder: Path, url: str, env: dict[str, str], day: "Day") -> None:
        folder.mkdir(parents=True)
        (folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
        self.name = name
        self.folder = folder
        self._env = env
        self._day = day
        self.studies = [StudyFolder(folder, url, f"{name}-{n}") for n in range(1, STUDIES + 1)]
        everything = {**env, "AUTOTUNE_STORAGE": url, sites.RUN_MARK: day.mark}
        self.unit = Unit(name, folder, everything, day.story)

    def queue(self) -> None:
        """All studies, as `autotune start --detach` does it."""
        for study in self.studies:
            study.write(
                resources={"workers": 1, "gpus_per_worker": 0},
                workload={"name": "tiny:build", "args": {"sleep": 0.02}},
                budget={"trials": TRIALS, "min_improvement": 0},
                export=f"{study.name}.yaml",
            )
            ask("start", "study.yaml", "--detach", cwd=self.folder, env=self._env, check=True)
        self._day.story.tell(self.name, f"queues {len(self.studies)} studies")

    def agent(self) -> int | None:
        """Process of the agent that runs a trial of theirs."""
        for pid, command in processes_in(self.folder).items():
            if "autotune.worker.node.agent" in command:
                return pid
        return None


class Day:
    """Two users, one PostgreSQL, and what befalls them."""

    def __init__(self, folder: Path, server: Any, *, disk: bool) -> None:
        self.story = Story()
        self.mark = str(folder)
        self._server = server
        self._repository = Repository(Database(server.get_uri(database=DATABASE)))
        self._told: set[object] = set()
        self._installed = folder / "installed"
        self._disk = folder / "disk" if disk else None
        if self._disk:
            self._disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", self._disk]
            subprocess.run(mount, check=True)
        url = server.get_uri(database=DATABASE)
        install(self._installed)
        upgradable = {"PYTHONPATH": str(self._installed)}
        self.alice = User("alice", folder / "alice", url, upgradable, self)
        own = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        self.bob = User("bob", (self._disk or folder) / "bob", url, own, self)
        self.users = (self.alice, self.bob)

    # What is seen

    def look(self) -> list[StoredStudy]:
        """All studies; what is new of them is told."""
        studies = self._repository.studies.all()
        for study in studies:
            if study.state.ended and study.name not in self._told:
                self._told.add(study.name)
                self.story.tell(study.name, f"is {study.state}")
            if study.state == "RUNNING":
                self._tell_waiting(study)
        return studies

    def _tell_waiting(self, study: StoredStudy) -> None:
        for message in self._repository.messages.of(study.id):
            if message.kind == MessageKind.WAITING and message.number not in self._told:
                self._told.add(message.number)
                self.story.tell(study.name, message.text)

    def until(self, condition: Callable[[], Found], what: str) -> Found:
        """What the condition returns once that is true, whether or not the storage is there."""

        def looked() -> Found | None:
            with contextlib.suppress(StorageUnreachable, StorageInternalError):
                self.look()
                return condition()
            return None

        found = wait_for(looked, what, LONGEST)
        assert found is not None
        return found

    def done(self, count: int) -> None:
        """So many studies have ended."""
        ended = f"{count} studies have ended"
        self.until(lambda: sum(s.state.ended for s in self.look()) >= count, ended)

    def hear(self, text: str, since: int) -> None:
        """Somebody says this: a daemon by itself, or of a study in the storage."""

        def said() -> bool:
            with contextlib.suppress(StorageUnreachable, StorageInternalError):
                self.look()
            return any(text in line for line in self.story.lines[since:])

        wait_for(said, f"somebody says {text!r}", LONGEST)

    def running(self, at_most: int) -> tuple[User, StudyFolder, StoredAttempt]:
        """An attempt that runs, in a study with at most so many that have ended."""

        def found() -> tuple[User, StudyFolder, StoredAttempt] | None:
            states = {study.name: study.state for study in self.look()}
            for user, study in ((u, s) for u in self.users for s in u.studies):
                if states[study.name] != "RUNNING":
                    continue
                attempts = study.attempts()
                if attempts and attempts[-1].running and len(attempts) <= at_most + 1:
                    return user, study, attempts[-1]
            return None

        return self.until(found, "an attempt runs")

    def _holders(self) -> set[int]:
        with self._repository.database.engine.connect() as connection:
            return set(connection.execute(text("select pid from autotune_lease")).scalars())

    # What happens

    def restart(self, user: User) -> None:
        """A reboot, or an upgrade of the system."""
        self.story.tell("systemd", f"restarts {user.name}'s daemon")
        user.unit.restart()

    def kill_daemon(self, user: User) -> None:
        """As the kernel does it where memory is short."""
        self.story.tell("the kernel", f"kills {user.name}'s daemon")
        os.kill(user.unit.pid, signal.SIGKILL)

    def strike_agent(self, number: signal.Signals, what: str) -> None:
        """A signal to an agent in the middle of a trial; until that has been given up."""
        while True:
            user, study, attempt = self.running(at_most=2)
            agent = user.agent()
            if agent is None:
                continue
            self.story.tell("somebody", f"{what} the agent of {study.name} in {attempt.name}")
            os.kill(agent, number)
            found = self.until(lambda: ended(study, attempt), "its trial is given up")  # noqa: B023
            self.story.tell(
                study.name, f"{found.name} is {found.result.state} {found.result.cause}"
            )
            if found.result.state == "LOST":  # else it had just come to its end
                return

    def restart_postgres(self) -> None:
        """Away until its clients have noticed."""
        since = len(self.story.lines)
        self.story.tell("PostgreSQL", "is stopped")
        self._server.stop()
        self.hear("waiting: ", since)
        bring_back(self._server)
        self.story.tell("PostgreSQL", "is back")
        self.hear("waiting no more", since)

    def cut_off_postgres(self) -> None:
        """Nothing answers any more, and nothing says so: as with a machine that froze."""
        server = psutil.Process(self._server.get_pid())
        self.story.tell("PostgreSQL", f"does not answer for {CUT_OFF_SECONDS:g} s")
        frozen = [server]
        server.suspend()
        for process in server.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                frozen.append(process)
        time.sleep(CUT_OFF_SECONDS)
        for process in frozen:
            process.resume()
        self.story.tell("PostgreSQL", "answers again")

    def make_postgres_read_only(self) -> None:
        """As a standby is in a fail-over."""
        since = len(self.story.lines)
        self.story.tell("PostgreSQL", "is read-only")
        self._read_only("on")
        self.hear("read-only", since + 1)
        time.sleep(READ_ONLY_SECONDS)
        self._read_only("off")
        self.story.tell("PostgreSQL", "can be written again")
        self.hear("waiting no more", since)

    def _read_only(self, mode: str) -> None:
        self._server.psql(f"alter database {DATABASE} set default_transaction_read_only = {mode}")
        ended = (
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{DATABASE}'"
        )
        self._server.psql(ended)

    def fill_disk(self) -> None:
        """Until the study on it waits for room."""
        if self._disk is None:
            return
        since = len(self.story.lines)
        self.story.tell("the disk", f"of {self.bob.name} is full")
        filler = self._disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        self.hear("no room is left", since)
        filler.unlink()
        self.story.tell("the disk", "has room again")

    def upgrade(self) -> None:
        """The package changes under a daemon that runs: its next agents are of another version."""
        since = len(self.story.lines)
        self.story.tell("pip", f"upgrades {self.alice.name}'s autotune")
        protocol = self._installed / "autotune" / "worker" / "protocol.py"
        old = protocol.read_text()
        new = old.replace(f"\nPROTOCOL = {PROTOCOL}\n", f"\nPROTOCOL = {PROTOCOL + 1}\n")
        assert new != old
        beside = protocol.with_suffix(".new")
        beside.write_text(new)
        beside.replace(protocol)
        self.hear("restart the daemon", since)
        self.restart(self.alice)

    def live(self) -> None:
        """The day, from the first study in the queue to the last one's end."""
        for user in self.users:
            user.unit.start()
        # Else `autotune start` would start one beside it.
        self._wait_for_daemons()
        for user in self.users:
            user.queue()
        happens: list[Callable[[], None]] = [
            lambda: self.restart(self.alice),
            lambda: self.strike_agent(signal.SIGKILL, "kills"),
            self.restart_postgres,
            self.fill_disk,
            self.cut_off_postgres,
            self.upgrade,
            self.make_postgres_read_only,
            lambda: self.kill_daemon(self.bob),
            lambda: self.strike_agent(signal.SIGSTOP, "freezes"),
            lambda: self.restart(self.bob),
        ]
        for count, event in enumerate(happens, start=1):
            self.done(count)
            # One that cannot open the storage as it starts leaves, and is started again.
            self._wait_for_daemons()
            event()
        for count in range(len(happens) + 1, STUDIES * len(self.users) + 1):
            self.done(count)
        for user in self.users:
            user.unit.stop()

    def _wait_for_daemons(self) -> None:
        def working() -> bool:
            return {user.unit.pid for user in self.users} <= self._holders()

        self.until(working, "the daemons have their leases")

    def sums(self) -> dict[str, Any]:
        """What of the day's work is lost, done twice, left over."""
        studies = list(itertools.chain(*(user.studies for user in self.users)))
        for study in studies:
            study.assert_complete(trials=TRIALS)
        losses = [study.losses(TRIALS) for study in studies]
        return {
            "studies": len(studies),
            "lost": sum(lost for lost, _ in losses),
            "duplicated": sum(duplicated for _, duplicated in losses),
            "parked": sum(study.state != "DONE" for study in self._repository.studies.all()),
            "leaked": sites.commands(self.mark).splitlines(),
            "exits": {user.name: user.unit.exits for user in self.users},
            "tracebacks": [line for line in self.story.lines if "Traceback" in line],
            "seconds": round(self.story.seconds),
        }

    def clear_away(self) -> None:
        """What a day that failed leaves behind."""
        for user in self.users:
            with contextlib.suppress(AssertionError, ProcessLookupError):
                user.unit.stop()
        sites.kill_all(self.mark)


def ended(study: StudyFolder, attempt: StoredAttempt) -> StoredAttempt | None:
    """The attempt, once it is no longer running."""
    return next((a for a in study.attempts() if a.id == attempt.id and not a.running), None)


def install(folder: Path) -> None:
    """The package, where it can be upgraded."""
    for name in ("autotune", "launchers", "search_spaces", "storage"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def main(folder: Path, *, disk: bool) -> None:
    """Live it and print its sums."""
    with own_server() as server:
        server.psql(f"create database {DATABASE}")
        day = Day(folder, server, disk=disk)
        try:
            day.live()
            print(json.dumps(day.sums()), flush=True)
        finally:
            day.clear_away()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), disk="--disk" in sys.argv)
