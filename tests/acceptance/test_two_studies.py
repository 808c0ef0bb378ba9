"""Two studies in two folders of one machine: the second waits, so that neither spoils the other."""

from pathlib import Path

import pytest

from tests.steering import StudyFolder, study_folder, wait_for

pytestmark = pytest.mark.timeout(180)

ENDLESS = {"micro_batch": [1, 2, 4, 8], "log_interval": list(range(1, 200))}


def elapsed(of: StudyFolder) -> float:
    """Seconds of its budget that are used."""
    return of.repository.study(of.name).elapsed


@pytest.mark.parametrize("launcher", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_second_waits_for_the_first(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with study_folder(tmp_path / "a") as first, study_folder(tmp_path / "b") as second:
        first.write(budget={"trials": 1000}, search_space=ENDLESS, sampler="random")
        first.spawn("start", "study.yaml", "--detach")
        wait_for(first.recorded, "the first measures")
        second.write(budget={"trials": 2}, launcher=launcher)
        command = second.spawn("start", "study.yaml")
        told = f"Waiting: process {first.wait_lease().pid}, working in {first.folder}, measures on"
        wait_for(lambda: told in command.output(), "the second waits")
        assert "warn  local launcher: process" in first.run("doctor").stdout

        assert second.status()["waiting"] in told + " processor 0."
        spent, begun = elapsed(second), elapsed(first)
        wait_for(lambda: elapsed(first) > begun + 4, "the first goes on")
        assert elapsed(second) == spent
        assert second.run("stop", second.name).returncode == 0
        assert command.wait(30) == 1
        assert second.status()["state"] == "STOPPED"
        assert not second.recorded()

        again = second.spawn("start", "study.yaml")
        wait_for(lambda: told in again.output(), "the second waits again")
        assert first.run("stop", first.name).returncode == 0
        assert again.wait(120) == 0, again.output()
        second.assert_complete(trials=2)
