"""Two studies in two folders of one machine: the second waits, so that neither spoils the other."""

from pathlib import Path

import pytest

from tests.steering import study_folder, wait_for

pytestmark = pytest.mark.timeout(180)

ENDLESS = {"micro_batch": [1, 2, 4, 8], "log_interval": list(range(1, 200))}


@pytest.mark.parametrize("launcher", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_second_waits_for_the_first(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with study_folder(tmp_path / "a") as first, study_folder(tmp_path / "b") as second:
        first.write(budget={"trials": 1000}, search_space=ENDLESS)
        first.spawn("start", "study.yaml", "--detach")
        wait_for(first.recorded, "the first measures")
        second.write(budget={"trials": 2}, launcher=launcher)
        command = second.spawn("start", "study.yaml")
        wait_for(lambda: "Waiting: process" in command.output(), "the second waits")
        told = f"Waiting: process {first.daemon_pid()}, working in {first.folder}, measures on"
        assert told in command.output()
        assert "warn  local launcher: process" in first.run("doctor").stdout

        assert first.run("stop", first.name).returncode == 0
        assert command.wait(120) == 0, command.output()
        assert command.output().count("Waiting:") == 1
        second.assert_complete(trials=2)


def test_one_that_waits_can_be_stopped_and_its_time_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with study_folder(tmp_path / "a") as first, study_folder(tmp_path / "b") as second:
        first.write(budget={"trials": 1000}, search_space=ENDLESS)
        first.spawn("start", "study.yaml", "--detach")
        wait_for(first.recorded, "the first measures")
        second.write(budget={"trials": 2})
        command = second.spawn("start", "study.yaml")
        wait_for(lambda: "Waiting: process" in command.output(), "the second waits")
        begun = len(first.recorded())
        wait_for(lambda: len(first.recorded()) > begun + 8, "the first goes on", 60)
        assert second.run("stop", second.name).returncode == 0
        assert command.wait(30) == 1
        assert second.status()["state"] == "STOPPED"
        assert second.repository.study(second.name).elapsed < 3.0
        assert not second.recorded()
