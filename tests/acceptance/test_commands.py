"""Every command as a user gives it: a real process, real databases, real signals."""

import contextlib
import csv
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from torch.utils.data import DataLoader
from typer.main import get_command

import autotune as library
from autotune.analysis.verdict import Verdict
from autotune.cli import app
from autotune.config import load
from autotune.errors import StudyNotFound
from autotune.views.answer import final_block
from autotune.views.figures import figures_of
from autotune.views.study_figures import gain_as_json
from autotune.views.verdict_text import shown
from search_spaces import preset_names, preset_summary
from storage import StoredAttempt
from tests.support.steering import (
    StudyFolder,
    alive,
    ask,
    autotune,
    quick_measurement,
    study_folder,
    tiny_study,
)
from tests.support.waiting import wait_for

SLOW = {"name": "tiny:build", "args": {"sleep": 0.02}}
ONE_RANK = {"workers": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyFolder]:
    """A study that `autotune start` ran to its end; whoever uses it leaves it as it is."""
    with study_folder(tmp_path_factory.mktemp("finished")) as found:
        found.write(budget={"trials": 3})
        ran = found.run("start", "study.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found.started_output = ran.stdout  # type: ignore[attr-defined]
        yield found


# Without a study


def test_version_is_the_packages_own(tmp_path: Path) -> None:
    found = autotune("--version", cwd=tmp_path, check=True)
    assert found.stdout.strip() == library.__version__


def test_every_command_and_option_has_a_help_text(tmp_path: Path) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    expected = "init start resume stop watch status list logs export report dashboard doctor schema"
    assert {*expected.split(), "daemon"} <= set(commands)
    for command in commands.values():
        assert command.help, command.name
        assert all(parameter.help for parameter in command.params), command.name
    overview = ask("--help", cwd=tmp_path, check=True).stdout
    assert all(name in overview for name in commands)


def test_shell_completes_the_names_of_commands(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "autotune rep", "COMP_CWORD": "1", "_AUTOTUNE_COMPLETE": "complete_bash"}
    command = Path(sys.executable).with_name("autotune")
    found = subprocess.run(
        [command], cwd=tmp_path, env={**os.environ, **words}, capture_output=True, check=True
    )
    assert found.stdout.split() == [b"report"]


def test_init_writes_a_study_that_loads_and_never_overwrites(tmp_path: Path) -> None:
    assert ask("init", cwd=tmp_path, check=True).stdout.startswith("study.yaml written")
    written = (tmp_path / "study.yaml").read_text()
    load(tmp_path / "study.yaml")
    (tmp_path / "study.yaml").write_text("mine")
    again = ask("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "study.yaml exists already" in again.stderr
    assert (tmp_path / "study.yaml").read_text() == "mine"
    ask("init", "other.yaml", cwd=tmp_path, check=True)
    assert (tmp_path / "other.yaml").read_text() == written
    for name in preset_names():
        assert f"#   {name}: {preset_summary(name)}" in written
    nowhere = ask("init", "no/such/folder.yaml", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert "Traceback" not in nowhere.stderr


def test_init_writes_a_workload_that_trains_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "my_workload.py written" in ask("init", cwd=tmp_path, check=True).stdout
    study = yaml.safe_load((tmp_path / "study.yaml").read_text())
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**study, "workload": "my_workload:build"}))
    load(tmp_path / "own.yaml")
    monkeypatch.syspath_prepend(tmp_path)
    workload = import_module("my_workload").build(width=16)
    optimizer = workload.optimizer(workload.model.parameters())
    batch = next(iter(DataLoader(workload.dataset, batch_size=8)))
    workload.loss(workload.model, batch).backward()
    optimizer.step()
    (tmp_path / "my_workload.py").write_text("mine")
    assert "my_workload" not in ask("init", "another.yaml", cwd=tmp_path, check=True).stdout
    assert (tmp_path / "my_workload.py").read_text() == "mine"


def test_presets_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    listed = ask("presets", cwd=tmp_path, check=True).stdout
    for name in preset_names():
        assert f"{name}: {preset_summary(name)}\n" in listed
    assert "  precision: fp32, bf16\n" in listed


def test_schema_accepts_our_studies_and_refuses_mistakes(tmp_path: Path) -> None:
    schema = json.loads(ask("schema", cwd=tmp_path, check=True).stdout)
    ask("init", cwd=tmp_path, check=True)
    jsonschema.validate(yaml.safe_load((tmp_path / "study.yaml").read_text()), schema)
    jsonschema.validate(tiny_study(), schema)
    for mistake in ({"bugdet": {}}, {"search_space": {"no_knob": [1]}}, {"sampler": "luck"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tiny_study(**mistake), schema)


@pytest.mark.long
def test_doctor_reports_as_json(tiny: StudyFolder) -> None:
    tiny.write()
    found = tiny.ask("doctor", "study.yaml", "--json")
    assert "what the workload writes is really written" in found.stdout
    checks = {check["name"]: check for check in json.loads(found.stdout)}
    assert found.returncode == 0, checks
    assert {"system", "packages", "storage", "local launcher", "baseline"} <= set(checks)
    assert checks["baseline"]["text"].startswith("built and trained in ")
    assert {check["level"] for check in checks.values()} <= {"ok", "warn"}


def test_doctor_fails_where_a_study_cannot_run(tiny: StudyFolder) -> None:
    tiny.write(resources={"workers": 1000})
    found = tiny.ask("doctor", "study.yaml")
    assert found.returncode == 1
    failed = [line for line in found.stdout.splitlines() if line.startswith("fail")]
    assert len(failed) == 1
    assert "1000" in failed[0]
    assert "lower resources.workers" in failed[0]


@pytest.mark.errand
def test_doctor_fails_where_the_baseline_does_not_train(tiny: StudyFolder) -> None:
    tiny.write(workload={"name": "tiny:build", "args": {"trouble": "raise", "at": 2}})
    found = tiny.ask("doctor", "study.yaml")
    assert found.returncode == 1
    assert "fail  baseline: ERROR: rank 1: ValueError: planted error" in found.stdout


def test_a_folder_without_studies_says_so(tmp_path: Path) -> None:
    for command in (["status", "tiny"], ["list"], ["resume", "tiny"]):
        found = ask(*command, cwd=tmp_path)
        assert found.returncode == 2, command
        assert "autotune.db" in found.stderr
        assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.errand
def test_a_space_of_one_configuration_is_tried_once(tiny: StudyFolder) -> None:
    one = {"micro_batch": [2]}
    tiny.write(resources=ONE_RANK, search_space=one, baseline={"micro_batch": 2})
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=1)


# A finished study


def answer(study: StudyFolder) -> dict[str, Any]:
    """Return the study's verdict as commands print it in JSON."""
    stored = study.study().verdict
    assert stored is not None
    verdict = Verdict.from_dict(stored)
    body = {**shown(verdict), **gain_as_json(verdict.speedup, "samples/s")}
    return dict(json.loads(json.dumps(body)))


def final(study: StudyFolder) -> str:
    """Return the final block of the study, as commands print it in its folder."""
    figures = figures_of(study.repository, study.study())
    return final_block(figures, exported="best.yaml" if figures.answer.trial is not None else "")


def test_start_prints_a_verdict_and_writes_best_yaml(finished: Any) -> None:
    verdict = answer(finished)
    assert final(finished) in finished.started_output
    assert "best.yaml" in finished.started_output
    finished.assert_complete(trials=3)
    best = library.load(finished.folder / "best.yaml")
    assert dict(best) == verdict["knobs"]
    assert best["micro_batch"] == best.knobs["micro_batch"]
    assert best.world_size == 2
    assert best.throughput["unit"] == "samples/s"
    assert best.provenance["study"] == "tiny"
    assert best.provenance["trial"] == verdict["trial"]


def test_start_of_a_finished_study_prints_its_verdict_again(finished: StudyFolder) -> None:
    before = finished.attempts()
    found = finished.ask("start", "study.yaml", "--json")
    assert found.returncode == 0
    assert json.loads(found.stdout)["verdict"] == answer(finished)
    assert final(finished) in found.stderr
    assert finished.attempts() == before


def test_start_finds_the_storage_of_the_environment(finished: StudyFolder, tmp_path: Path) -> None:
    """study.yaml names none, so the environment's comes before the default.

    The study of this name that is there is of another folder, which is told.
    """
    study = yaml.safe_load((finished.folder / "study.yaml").read_text())
    del study["storage"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    command = ["start", "study.yaml"]
    found = ask(*command, cwd=tmp_path, env={"AUTOTUNE_STORAGE": finished.url})
    assert not (tmp_path / "autotune.db").exists(), "a storage of its own"
    assert found.returncode == 2
    assert str(finished.folder) in found.stderr


def test_changed_settings_under_the_same_name_are_refused(finished: StudyFolder) -> None:
    changed = yaml.safe_load((finished.folder / "study.yaml").read_text())
    changed["seed"] = 7
    changed["measurement"]["rounds"] = 4
    changed["search_space"]["micro_batch"] = [1, 2]
    (finished.folder / "changed.yaml").write_text(yaml.safe_dump(changed))
    before = finished.study()
    found = finished.ask("start", "changed.yaml")
    assert found.returncode == 2
    for name in ("seed", "measurement.rounds", "search_space.micro_batch"):
        assert name in found.stderr
    assert "budget" not in found.stderr
    assert finished.study() == before


@pytest.mark.long
@pytest.mark.parametrize("command", ["status", "logs", "report"])
def test_a_question_is_answered_without_imports_of_seconds(
    finished: StudyFolder, command: str
) -> None:
    found = finished.run(command, finished.name, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert found.returncode == 0, found.stderr
    imported = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert "storage.repository" in imported
    assert not imported & {"torch", "ray", "pandas", "scipy.stats"}


def test_status_and_list(finished: StudyFolder) -> None:
    status = finished.status()
    assert status["state"] == "DONE"
    assert status["trials"] == 3
    assert sum(status["trials_by_state"].values()) == 3
    assert status["verdict"] == answer(finished)
    text = finished.ask("status", "study.yaml").stdout
    assert "tiny: DONE" in text
    assert final(finished) in text
    assert final(finished) in finished.ask("watch", "tiny").stdout
    listed = json.loads(finished.ask("list", "--json").stdout)
    assert [row["study"] for row in listed] == ["tiny"]
    assert listed[0]["verdict"] == status["verdict"]
    lines = finished.ask("list").stdout.splitlines()
    assert len(lines) == 2
    state = lines[0].index("state")
    assert lines[1].startswith("tiny ")
    assert lines[1][state:].split()[:2] == ["DONE", "3"]


def test_logs_of_study_and_trial(finished: StudyFolder) -> None:
    text = finished.ask("logs", "tiny").stdout
    rounds = [a.round for a in finished.recorded("confirm") if a.trial == 0]
    assert text.count(" round ") >= len(rounds) > 0
    assert "The search ends" in text
    assert "trial 0, 0-search-1: COMPLETE" in finished.ask("logs", "tiny", "--trial", "0").stdout
    unknown = finished.ask("logs", "tiny", "--trial", "99")
    assert unknown.returncode == 2
    assert "has not launched a trial 99" in unknown.stderr


def test_report_and_its_recomputation_from_the_blocks(finished: StudyFolder) -> None:
    verdict = answer(finished)
    assert verdict["sentence"] in finished.ask("report", "tiny").stdout
    again = json.loads(finished.ask("report", "tiny", "--recompute", "--json").stdout)
    ran = again["running"]
    assert again["verdict"] == json.loads(json.dumps(verdict))
    assert ran["blocks"] > 0
    assert 0 < ran["step_p50"] <= ran["step_p95"] <= ran["step_max"]


def test_export_of_all_attempts_as_csv(finished: StudyFolder, tmp_path: Path) -> None:
    table = tmp_path / "attempts.csv"
    found = finished.ask("export", "tiny", "--trials", str(table))
    assert found.returncode == 0, found.stderr
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in rows] == [a.trial for a in finished.attempts()]
    assert [row["state"] for row in rows] == [a.result.state for a in finished.attempts()]
    printed = finished.ask("export", "tiny", "--trials", "-")
    assert printed.stdout == table.read_text()
    nowhere = finished.ask("export", "tiny", "--trials", str(tmp_path / "no" / "folder.csv"))
    assert nowhere.returncode == 2
    assert "Traceback" not in nowhere.stderr


def test_export_writes_what_the_study_recommends(finished: StudyFolder, tmp_path: Path) -> None:
    target = tmp_path / "exported.yaml"
    found = finished.ask("export", "tiny", "--output", str(target))
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == str(target)
    assert library.load(target) == library.load(finished.folder / "best.yaml")
    nowhere = finished.ask("export", "tiny", "-o", str(tmp_path / "no" / "folder.yaml"))
    assert nowhere.returncode == 2
    assert "Traceback" not in nowhere.stderr


@pytest.mark.parametrize("command", ["status", "stop", "resume"])
def test_an_unknown_study_is_answered_with_the_known_ones(
    finished: StudyFolder, command: str
) -> None:
    found = finished.ask(command, "tyni")
    assert found.returncode == 2
    assert "'tyni'" in found.stderr
    assert "the newest are: tiny" in found.stderr


@pytest.mark.errand
def test_no_change_does_not_replace_what_another_study_found(
    finished: StudyFolder, tiny: StudyFolder
) -> None:
    found = (finished.folder / "best.yaml").read_text().replace("study: tiny", "study: other")
    (tiny.folder / "best.yaml").write_text(found)
    tiny.write(resources=ONE_RANK, search_space={"micro_batch": [2]}, budget={"trials": 1})
    ended = tiny.run("start", "study.yaml", "--foreground")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tiny.folder / "best.yaml").read_text() == found
    assert "best.yaml is not written (it belongs to another study" in ended.stdout
    assert "autotune.load(" not in ended.stdout
    assert tiny.ask("export", "tiny", "-o", "mine.yaml").returncode == 0
    assert library.load(tiny.folder / "mine.yaml").provenance["study"] == "tiny"


# Studies that are stopped, left, and gone on with


@pytest.mark.errand
def test_a_larger_budget_goes_on_where_the_study_stood(tiny: StudyFolder) -> None:
    tiny.write(resources=ONE_RANK, budget={"trials": 2})
    assert tiny.run("start", "study.yaml", "--foreground").returncode == 0
    before = tiny.attempts("search")
    tiny.write(resources=ONE_RANK, budget={"trials": 4})
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete()
    after = tiny.attempts("search")
    assert after[: len(before)] == before
    assert [a.trial for a in after] == [0, 1, 2, 3]
    assert in_turn(tiny.attempts(), members=finalists(tiny))


def finalists(tiny: StudyFolder) -> set[int]:
    verdict = tiny.study().verdict
    assert verdict is not None
    return {finalist["trial"] for finalist in verdict["finalists"]}


def in_turn(attempts: list[StoredAttempt], members: set[int]) -> bool:
    """Whether the newest measurements of each round were taken side by side: a verdict that says
    'in turn' compares nothing of today with something from before the search went on."""
    newest_search = max(a.id for a in attempts if a.purpose == "search")
    confirmed = [a for a in attempts if a.purpose == "confirm" and a.id > newest_search]
    return {a.trial for a in confirmed} == members


@pytest.mark.errand
def test_detach_stop_resume(tiny: StudyFolder) -> None:
    slower = {"name": "tiny:build", "args": {"sleep": 0.05}}
    tiny.write(resources=ONE_RANK, workload=slower, budget={"trials": 2, "min_improvement": 0})
    detached = tiny.run("start", "study.yaml", "--detach")
    assert detached.returncode == 0
    assert "autotune watch tiny" in detached.stdout
    watching = tiny.spawn("watch", "tiny")
    tiny.wait_running()
    assert "stops within seconds" in tiny.ask("stop", "tiny").stdout
    assert watching.wait() == 1
    assert "Stopped." in watching.output()
    assert tiny.study().state == "STOPPED"
    assert "not running" in tiny.ask("stop", "tiny").stdout
    tiny.wait_nothing_runs()
    resumed = tiny.run("resume", "tiny")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    tiny.assert_complete(trials=2)


@pytest.mark.errand
def test_resume_before_a_stop_is_done_goes_on(tiny: StudyFolder) -> None:
    """The daemon has heard of the stop and clears away when the user thinks better of it."""
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 3})
    tiny.run("start", "study.yaml", "--detach")
    tiny.wait_running()
    tiny.repository.studies.request_stop(tiny.name)
    before = tiny.study().elapsed
    wait_for(lambda: tiny.study().elapsed > before, "the daemon's heartbeat")
    tiny.repository.studies.enqueue(tiny.name)
    tiny.wait_state("DONE", "STOPPED")
    assert tiny.study().state == "DONE"
    tiny.assert_complete(trials=3)


@pytest.mark.errand
def test_a_stop_is_carried_out_though_a_resume_follows_at_once(tiny: StudyFolder) -> None:
    """The daemon hears of both together: the trial that runs is given up, and run again."""
    hanging = {"trouble": "hang", "rank": 0, "at": 1, "above": 4}
    tiny.write(
        resources=ONE_RANK,
        workload={"name": "tiny:build", "args": hanging},
        search_space={"micro_batch": [2, 8]},
        measurement=quick_measurement(step_timeout=10),
        budget={"trials": 2},
    )
    tiny.run("start", "study.yaml", "--detach")

    def hangs() -> bool:
        return any(a.running and a.knobs["micro_batch"] == 8 for a in tiny.attempts())

    wait_for(hangs, "the second trial is launched")
    assert tiny.run("stop", "tiny").returncode == 0
    tiny.repository.studies.enqueue(tiny.name)
    tiny.wait_state("DONE", "STOPPED", "FAILED")
    assert tiny.study().state == "DONE"
    states = [a.result.state for a in tiny.attempts() if a.knobs["micro_batch"] == 8]
    assert states == ["ABANDONED", "HANG"]
    tiny.assert_complete(trials=2)


@pytest.mark.errand
def test_resume_from_another_folder_with_a_relative_storage(tiny: StudyFolder) -> None:
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 2})
    tiny.run("start", "study.yaml", "--detach")
    tiny.wait_running()
    tiny.run("stop", "tiny")
    tiny.wait_state("STOPPED")
    tiny.wait_nothing_runs()
    storage = f"sqlite:///{tiny.folder.name}/autotune.db"
    found = autotune("resume", "tiny", "--storage", storage, cwd=tiny.folder.parent)
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=2)


@pytest.mark.errand
def test_a_larger_budget_reaches_a_study_that_runs(tiny: StudyFolder) -> None:
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 2})
    tiny.run("start", "study.yaml", "--detach")
    tiny.wait_running()
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 4})
    found = tiny.run("start", "study.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=4)


@pytest.mark.errand
def test_ctrl_c_leaves_the_study_running(tiny: StudyFolder) -> None:
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 3})
    following = tiny.spawn("start", "study.yaml")
    tiny.wait_running()
    following.send(signal.SIGINT)
    assert following.wait() == 0, following.output()
    assert "Detached; tiny runs on" in following.output()
    assert "Traceback" not in following.output()
    assert tiny.study().state == "RUNNING"
    watched = tiny.run("watch", "tiny")
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert final(tiny) in watched.stdout
    tiny.assert_complete(trials=3)


@pytest.mark.errand
def test_ctrl_c_stops_a_study_in_the_foreground(tiny: StudyFolder) -> None:
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 3})
    running = tiny.spawn("start", "study.yaml", "--foreground")
    tiny.wait_running(after=1)
    assert tiny.wait_lease().pid == running.pid
    running.send(signal.SIGINT)
    assert running.wait() == 1
    assert "Stopped. `autotune resume tiny`" in running.output()
    assert "Traceback" not in running.output()
    assert tiny.study().state == "STOPPED"
    assert tiny.lease() is None
    tiny.wait_nothing_runs()
    again = tiny.run("start", "study.yaml", "--foreground")
    assert again.returncode == 0, again.stdout + again.stderr
    tiny.assert_complete(trials=3)
    assert tiny.lease() is None
    assert tiny.status()["daemon"] is None
    assert not (tiny.folder / ".autotune" / "daemon.log").exists()


@pytest.mark.errand
def test_sigterm_puts_a_study_in_the_foreground_back_into_the_queue(tiny: StudyFolder) -> None:
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 3})
    running = tiny.spawn("start", "study.yaml", "--foreground")
    tiny.wait_running(after=1)
    running.send(signal.SIGTERM)
    assert running.wait() == 75, running.output()
    assert "tiny is QUEUED." in running.output()
    assert (tiny.study().state, tiny.lease()) == ("QUEUED", None)
    tiny.wait_nothing_runs()
    again = tiny.run("start", "study.yaml", "--foreground")
    assert again.returncode == 0, again.stdout + again.stderr
    tiny.assert_complete(trials=3)


def on_a_terminal(folder: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Run a command on a terminal of its own; return its process and the other end of the terminal."""
    ours, its = pty.openpty()
    os.set_blocking(ours, False)

    def begin() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = [sys.executable, "-P", "-m", "autotune", *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=begin,
    )
    os.close(its)
    return process, ours


@pytest.mark.long
def test_closed_terminal_puts_a_study_in_the_foreground_back_into_the_queue(
    tiny: StudyFolder,
) -> None:
    tiny.write(resources=ONE_RANK, workload=SLOW, budget={"trials": 1000})
    process, terminal = on_a_terminal(tiny.folder, "start", "study.yaml", "--foreground")

    def runs() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 2**20)  # a full terminal would stop the process
        with contextlib.suppress(StudyNotFound):
            return any(attempt.running for attempt in tiny.attempts())
        return False

    try:
        wait_for(runs, "an attempt runs")
        os.close(terminal)
        assert process.wait(300) == 75
    finally:
        process.kill()
        process.wait()
    assert (tiny.study().state, tiny.lease()) == ("QUEUED", None)
    tiny.wait_nothing_runs()


def test_the_daemon_leaves_when_its_queue_is_empty(finished: StudyFolder) -> None:
    """A finished study leaves no process behind, whoever started it."""
    finished.wait_nothing_runs()
    lease = finished.lease()
    assert lease is None or not alive(lease.pid)
