"""What is wrong with the machines is no end of a study: it waits, says why, and tries again."""

import contextlib
import dataclasses
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text, update

from autotune.cli import running
from autotune.errors import (
    AutotuneError,
    GaveUp,
    LauncherError,
    NotHere,
    StorageError,
    StorageUnreachable,
    UnfitNodes,
)
from autotune.service import daemon as service
from autotune.service import follow, study_run, submission
from autotune.service.daemon import Daemon
from autotune.service.follow import held_back_by
from autotune.service.queues import this_queue
from autotune.service.submission import InProcessRunner
from autotune.views import queue_table
from autotune.views.overview import describe, status_of, table
from autotune.views.progress import ProgressLines
from autotune.views.queue_table import queue_of
from autotune.worker.protocol import Outcome
from launchers.replay import ENVIRONMENT, Answer, Launch, ReplayLauncher
from storage import EVERY_OWNER, Database, LeaseHolder, Quota, Repository
from storage.database import _NOW
from storage.models import StudyRow
from storage.owner import user_name
from tests.control.replayed import PLAIN, Machine, Replayed
from tests.support.behaviours import where
from tests.support.steering import write_study
from tests.support.waiting import wait_for

SHORT = {
    "budget": {"trials": 3, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}


@dataclasses.dataclass
class Down(Machine):
    """No launcher opens for the study of this name so many times; then one does."""

    name: str = "played"
    times: int = 2
    error: type[LauncherError] = LauncherError

    def open(self, *given: Any) -> ReplayLauncher:
        if given[0].name == self.name and self.times:
            self.times -= 1
            raise self.error("no Ray cluster at head:6379")
        return super().open()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.3)


def test_a_study_goes_on_once_its_launcher_opens(played: Replayed) -> None:
    played.submit(**SHORT)
    played.machine = Down()
    played.serve()
    played.assert_complete(trials=3)
    told = "no Ray cluster at head:6379; tried again now and then."
    assert played.said().count(told) == 1


@dataclasses.dataclass
class Read(Down):
    """Machine that is down at first, with a call that reads the study's messages before each try."""

    read: Callable[[], object] = list

    def open(self, *given: Any) -> ReplayLauncher:
        self.read()
        return super().open(*given)


def test_line_that_is_printed_after_a_try_stays_true_after_the_next_one(played: Replayed) -> None:
    printed: list[str] = []
    played.submit(**SHORT)
    lines = ProgressLines(played.repository, played.study())
    played.machine = Read(read=lambda: printed.extend(lines.new()))
    played.serve()
    [waits] = [line.partition("Waiting: ")[2] for line in printed if "Waiting: " in line]
    assert waits in played.said().splitlines()


@pytest.mark.long
def test_meanwhile_another_study_runs_and_everybody_is_told(
    played: Replayed, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_SECONDS", 5.0)  # long enough for the other to be first
    folder = tmp_path / "other"
    folder.mkdir()
    other = Replayed(folder, database, "other")
    seen: list[dict[str, Any]] = []

    def looking(launch: Launch) -> Answer:
        seen.append(status_of(played.repository, "played"))
        return PLAIN(launch)

    played.submit(**SHORT)
    other.submit(**SHORT)
    played.machine = Down(looking, times=1)
    played.serve()
    other.assert_complete(trials=3)
    played.assert_complete(trials=3)
    first = seen[0]
    assert first["state"] == "QUEUED"
    assert first["waiting"].startswith("no Ray cluster at head:6379; tried again at ")
    assert first["retry_at"] == pytest.approx(time.time(), abs=60)
    assert "  waits     no Ray cluster at head:6379; tried again at " in describe(first)
    assert "no Ray cluster at head:6379" in table([first], played.repository.now())
    after = status_of(played.repository, "played")
    assert (after["waiting"], after["retry_at"], after["error"]) == (None, None, None)


@dataclasses.dataclass
class Shrunken(Machine):
    """A machine that has one device less the first time."""

    def open(self, *_: object) -> ReplayLauncher:
        self.options = {"workers": 2 if self.opened else 1}
        return super().open()


@pytest.mark.parametrize("of_an_older_study", [False, True])
@pytest.mark.long
def test_a_study_waits_for_the_ranks_that_its_figures_are_of(
    played: Replayed, of_an_older_study: bool
) -> None:
    played.run(**SHORT)
    if of_an_older_study:
        facts = {"device": "cpu", "world_size": 2}
        with played.repository.database.writing() as connection:
            connection.execute(update(StudyRow).values(facts=facts))
    played.machine = Shrunken()
    played.submit(**{**SHORT, "budget": {"trials": 5, "min_improvement": 0}})
    played.serve()
    told = "its figures are of 2 ranks on cpu, and here are 1 rank on cpu: it goes on where it"
    assert played.said().count(told) == 1
    assert played.study().facts["world_size"] == 2
    played.assert_complete(trials=5)


H200 = {"name": "NVIDIA H200", "memory_bytes": 141 * 2**30, "capability": [9, 0]}
OTHER_DEVICES = [
    (
        {**H200, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * 2**30},
        "H100 80GB HBM3 (80 GiB)",
    ),
    ({**H200, "memory_bytes": 96 * 2**30}, "H200 (96 GiB)"),
]


@dataclasses.dataclass
class Exchanged(Machine):
    """A machine that has devices of another kind the first time."""

    other: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def open(self, *_: object) -> ReplayLauncher:
        device = H200 if self.opened else self.other
        self.options = {"environment": {**ENVIRONMENT, "devices": [device] * 2}}
        return super().open()


@pytest.mark.parametrize(("other", "named"), OTHER_DEVICES)
@pytest.mark.long
def test_a_study_waits_for_the_kind_of_device_that_its_figures_are_of(
    played: Replayed, other: Mapping[str, Any], named: str
) -> None:
    """H100 and H200 have one compute capability; devices of one name may have other memory."""
    played.on(PLAIN, environment={**ENVIRONMENT, "devices": [H200] * 2}).run(**SHORT)
    played.machine = Exchanged(other=other)
    played.submit(**{**SHORT, "budget": {"trials": 5, "min_improvement": 0}})
    played.serve()
    told = f"its figures are of NVIDIA H200 (141 GiB), and here is NVIDIA {named}: it goes on where"
    assert played.said().count(told) == 1
    assert {one["name"] for one in devices_of(played)} == {"NVIDIA H200"}
    played.assert_complete(trials=5)


def devices_of(played: Replayed) -> list[Mapping[str, Any]]:
    """Return the devices on which attempts of the study ran."""
    environments = played.repository.environments
    found = [environments.of_attempt(one.id) or {} for one in played.recorded("search")]
    return [device for body in found for device in body["devices"]]


def test_study_without_figures_takes_what_there_is(played: Replayed) -> None:
    broken = where(PLAIN, lambda _: True, outcome=Outcome.ERROR, cause="rank 0: planted error")
    played.on(broken).run_until_it_fails(**SHORT)
    played.on(PLAIN, workers=1).submit(**SHORT)
    played.serve()
    played.assert_complete(trials=3)


class Slow(Down):
    """It takes its time to say so, longer than a heartbeat."""

    played: Replayed
    elapsed: list[float]

    def open(self, *given: Any) -> ReplayLauncher:
        self.elapsed.append(self.played.study().elapsed)
        time.sleep(1.2 if self.times else 0.0)
        return super().open(*given)


@pytest.mark.long
def test_time_before_the_first_launch_is_not_counted(played: Replayed) -> None:
    machine = played.machine = Slow()
    machine.played, machine.elapsed = played, []
    played.run(**SHORT)
    assert machine.elapsed == [0.0, 0.0, 0.0]


def test_a_study_whose_agents_cannot_be_replaced_goes_on_later(played: Replayed) -> None:
    launches = []

    def losing(launch: Launch) -> Answer:
        launches.append(launch)
        if len(launches) == 2:
            raise LauncherError("an agent was not ready after 180 s")
        return PLAIN(launch)

    played.submit(**SHORT)
    played.on(losing).serve()
    played.assert_complete(trials=3)


@pytest.mark.parametrize("error", [NotHere, UnfitNodes])
def test_what_can_never_be_here_fails(played: Replayed, error: type[NotHere]) -> None:
    played.submit(**SHORT)
    played.machine = Down(times=1, error=error)
    played.serve()
    assert played.study().state == "FAILED"


def test_study_with_figures_waits_for_nodes_that_fit(played: Replayed) -> None:
    """Its batch job was requeued on fewer nodes, or on those with another kind of device."""
    played.run(**SHORT)
    played.machine = Down(times=1, error=UnfitNodes)
    played.submit(**{**SHORT, "budget": {"trials": 5, "min_improvement": 0}})
    played.serve()
    told = "its figures are of 2 ranks on cpu: no Ray cluster at head:6379; tried again"
    assert told in played.said()
    played.assert_complete(trials=5)


def test_its_daemon_keeps_the_lease_and_hears_of_a_stop(played: Replayed) -> None:
    """Else whoever follows would start one daemon after another."""
    found: list[object] = []

    repository = Repository(played.repository.database)
    daemon = Daemon(repository, this_queue(), Down(times=100).open)
    claim = repository.claims.take

    def looked_at(*given: Any, **options: Any) -> Any:
        claimed = claim(*given, **options)
        if claimed is None and not found:
            found.append(played.lease())
            played.repository.studies.request_stop(played.name)
        return claimed

    repository.claims.take = looked_at  # type: ignore[method-assign]
    played.submit(**SHORT)
    daemon.serve(idle_seconds=0.0)
    assert found[0] is not None
    assert played.study().state == "STOPPED"
    assert played.lease() is None


def test_ctrl_c_in_the_foreground_stops_a_study_that_waits(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_SECONDS", 60.0)
    played.submit(**SHORT)
    daemon = Daemon(played.repository, this_queue(), Down(times=100).open)
    here = InProcessRunner(played.repository, played.study(), daemon)
    here()
    wait_for(lambda: played.study().retry_at is not None, "the study waits for its next try")
    daemon.stop()

    def stopped() -> bool:
        here()  # as whoever follows does, again and again
        return played.study().state == "STOPPED"

    wait_for(stopped, "the daemon leaves, and the study is stopped")
    assert played.lease() is None


def test_process_that_waits_for_its_study_is_known_to(played: Replayed) -> None:
    waits = Foreground(played)
    serving = played.repository.leases.serving
    wait_for(lambda: serving(played.study()), "it is known")
    waits.looks_again()
    played.repository.studies.move(played.name, "host:elsewhere ann 0a")
    assert serving(played.study()) is None, "it waits for no study of another queue"


class Foreground:
    """A process of `start --foreground`, whose study waits for a quota."""

    def __init__(self, played: Replayed) -> None:
        self._played = played
        self._looks = 0
        played.submit(**SHORT)
        played.repository.quotas.set(Quota(EVERY_OWNER, studies=0))
        repository = Repository(played.repository.database)
        self._any_open = repository.studies.any_open
        repository.studies.any_open = self._look  # type: ignore[method-assign]
        study = played.study()
        daemon = Daemon(repository, study.queue, played.machine.open, only=study.id)
        self.check = InProcessRunner(repository, study, daemon)
        self.check()

    def _look(self, *given: Any) -> bool:
        self._looks += 1
        return self._any_open(*given)

    def looks_again(self) -> None:
        """Wait until it has looked for its study several times."""
        until = self._looks + 5

        def seen() -> bool:
            self.check()
            return self._looks >= until

        wait_for(seen, "it looks for its study")


def test_study_that_is_held_in_the_foreground_goes_on_once_it_is_released(
    played: Replayed,
) -> None:
    here = Foreground(played)
    played.repository.studies.arrange(played.name, held=True)
    here.looks_again()
    assert held_back_by(played.repository, played.study()) == "held; autotune release played"
    played.repository.quotas.remove(EVERY_OWNER)
    played.repository.studies.arrange(played.name, held=False)

    def ended() -> bool:
        here.check()
        return played.study().state.ended

    wait_for(ended, "the study ends")
    played.assert_complete(trials=3)


@pytest.mark.parametrize("lacks", ["quota", "release", "machine", "lease"])
def test_study_in_the_foreground_that_cannot_run_is_given_up(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """A batch job would keep its nodes idle."""
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.05)
    played.submit(**SHORT)
    if lacks == "quota":
        played.repository.quotas.set(Quota(EVERY_OWNER, studies=0))
    elif lacks == "release":
        played.repository.studies.arrange(played.name, held=True)
    elif lacks == "machine":
        played.machine = Down(times=1000)
    else:
        other = LeaseHolder(f"elsewhere {uuid.uuid4()}", 1, 600.0)
        assert played.repository.claims.take(this_queue(), other)
    study = played.study()
    daemon = Daemon(played.repository, study.queue, played.machine.open, only=study.id)
    here = InProcessRunner(played.repository, study, daemon, longest_wait=1.0)
    why = {
        "quota": "quota of .*: 0 of 0 studies run",
        "release": "held; autotune release played",
        "machine": "no Ray cluster at head:6379",
        "lease": "process 1 on elsewhere has it",
    }[lacks]

    def gave_up() -> bool:
        with contextlib.suppress(GaveUp):
            here()
            return False
        return True

    wait_for(gave_up, "it gives up")
    with pytest.raises(GaveUp, match=f"played has not run here for .*: .*{why}"):
        here()
    assert played.study().state == ("RUNNING" if lacks == "lease" else "QUEUED")


@pytest.mark.parametrize("devices", [[], ["0"]])
def test_study_with_figures_of_the_cpu_asks_for_no_device_where_there_is_none(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, devices: list[str]
) -> None:
    monkeypatch.setattr(study_run, "visible_devices", lambda: devices)
    asked: list[float | None] = []

    class Asked(Machine):
        def open(self, *given: Any) -> ReplayLauncher:
            asked.append(given[0].resources.gpus_per_worker)
            return super().open()

    played.machine = Asked()
    played.run(**SHORT)
    facts = text("update autotune_study set facts = replace(facts, '\"cuda\"', '\"cpu\"')")
    with played.repository.database.writing() as connection:
        connection.execute(facts)
    played.run(**{**SHORT, "budget": {"trials": 4, "min_improvement": 0}})
    assert asked[1] == (None if devices else 0)


@pytest.mark.parametrize(
    ("job", "terminal", "wait"), [("7", False, "10m"), ("7", True, None), ("", False, None)]
)
def test_study_in_a_job_of_slurm_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, job: str, terminal: bool, wait: str | None
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setattr(running.os, "isatty", lambda _: terminal)
    assert running._wait_of_job() == wait


def test_study_in_the_foreground_whose_tries_fail_with_an_open_launcher_is_given_up(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(service, "MOST_SECONDS", 0.1)
    tries: list[None] = []

    def gone(*_: object) -> None:
        time.sleep(0.05)  # it is seen to run
        tries.append(None)
        raise LauncherError("its slots are gone")

    monkeypatch.setattr(study_run, "LargestBatch", gone)
    # A slow machine may not come to a try within a second: the wait is counted by tries.
    clock = SimpleNamespace(monotonic=lambda: 0.6 * len(tries))
    monkeypatch.setattr(submission, "time", clock)
    played.submit(**SHORT)
    study = played.study()
    daemon = Daemon(played.repository, study.queue, played.machine.open, only=study.id)
    here = InProcessRunner(played.repository, study, daemon, longest_wait=1.0)
    with pytest.raises(GaveUp, match=r"has not run here for .*: .*its slots are gone"):
        wait_for(lambda: here() is not None, "it gives up")


def test_storage_that_stays_away_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "_LONGEST_ABSENCE_SECONDS", 0.05)
    monkeypatch.setattr(follow, "_CHECK_SECONDS", 0.01)

    def away() -> Repository:
        raise StorageUnreachable("storage postgresql://db: connection refused")

    with pytest.raises(GaveUp, match="refused; it has been away for") as given_up:
        follow.through_outages(away)
    assert given_up.value.exit_code == 69
    assert capsys.readouterr().err.count("connection refused; waiting for it.") == 1


def test_study_in_the_foreground_is_queued_once_the_storage_may_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A standby answers, and cannot be written before it is the primary."""
    monkeypatch.setattr(follow, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    file = write_study(tmp_path, name="standby")
    tried: list[str] = []
    original = submission.submit

    def submit(*given: Any) -> Any:
        tried.append("submit")
        if len(tried) < 3:
            raise StorageUnreachable("storage postgresql://db: read-only transaction")
        return original(*given)

    followed: list[str] = []
    monkeypatch.setattr(submission, "submit", submit)
    monkeypatch.setattr(
        running, "_follow_until_done", lambda _, study, *__: followed.append(study.name)
    )
    running.start([str(file)], storage=f"sqlite:///{tmp_path}/s.db", foreground=True)
    assert (len(tried), followed) == (3, ["standby"])


def test_study_in_the_foreground_that_runs_is_not_given_up(played: Replayed) -> None:
    def slow(launch: Launch) -> Answer:
        time.sleep(0.3)
        return PLAIN(launch)

    played.submit(**SHORT)
    study = played.study()
    daemon = Daemon(played.repository, study.queue, Machine(slow).open, only=study.id)
    here = InProcessRunner(played.repository, study, daemon, longest_wait=0.5)
    here()
    wait_for(lambda: played.study().state == "RUNNING", "the study has begun")

    def ended() -> bool:
        here()
        return played.study().state.ended

    wait_for(ended, "the study ends")
    played.assert_complete(trials=3)


def test_study_in_the_foreground_runs_where_its_waiting_cannot_be_recorded(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StorageError("storage postgresql://db: permission denied")

    monkeypatch.setattr(played.repository.leases, "acquire", refused)
    played.submit(**SHORT)
    study = played.study()
    daemon = Daemon(played.repository, study.queue, played.machine.open, only=study.id)
    daemon.serve(idle_seconds=0.0)
    played.assert_complete(trials=3)


def test_study_that_is_moved_away_from_the_foreground_is_left_to_its_new_queue(
    played: Replayed,
) -> None:
    here = Foreground(played)
    played.repository.studies.move(played.name, "host:elsewhere ann - -")
    with pytest.raises(AutotuneError, match="moved to another queue, and runs on host:elsewhere"):
        here.looks_again()
    assert played.study().state == "QUEUED"


@pytest.mark.parametrize("off_by", [0, -3600, 3600])
def test_reason_of_a_study_that_is_tried_again_is_told_until_then(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, off_by: int
) -> None:
    """Whatever the clock of the database says.

    Both clocks stand still: between two looks, the time that is told would move on with them.
    """
    at = time.time()
    still = SimpleNamespace(time=lambda: at, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(queue_table, "time", still)
    monkeypatch.setitem(_NOW, "sqlite", f"{at + off_by}")
    played.submit(**SHORT)
    repository = played.repository
    due = repository.now() + 600.0

    def reasons(retry_at: float) -> tuple[str | None, str]:
        with repository.database.writing() as connection:
            error = "no Ray cluster at head:6379"
            connection.execute(update(StudyRow).values(retry_at=retry_at, error=error))
        [row] = queue_of(repository, repository.studies.order())
        return status_of(repository, played.name)["waiting"], row["reason"]

    before = reasons(due)
    assert before[0] == before[1]
    assert before[1].startswith("no Ray cluster at head:6379; tried again at ")
    assert " UTC, in " in before[1] and " min; autotune resume" in before[1]
    assert reasons(due - 700.0) == (None, "no daemon runs it; autotune resume played starts one")
    repository.quotas.set(Quota(EVERY_OWNER, studies=0))
    after = reasons(due - 700.0)
    assert after[0] == after[1] == f"quota of {user_name()}: 0 of 0 studies run"


def test_pauses_grow_up_to_a_limit_and_begin_anew_after_a_long_run() -> None:
    pauses = [
        service.retry_after(count, LauncherError("why"), ran=1.0).seconds for count in range(20)
    ]
    assert pauses[:3] == [0.3, 0.6, 1.2]
    assert pauses[-1] == service.MOST_SECONDS
    assert service.retry_after(19, LauncherError("why"), ran=service.MOST_SECONDS).seconds == 0.3
