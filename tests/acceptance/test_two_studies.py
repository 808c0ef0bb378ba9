"""Two studies in two folders of one machine: the second waits, so that neither spoils the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.steering import Command, StudyFolder, quick_measurement, study_folder
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)

ENDLESS = {"micro_batch": [1, 2, 4, 8], "log_interval": list(range(1, 200))}


def elapsed(of: StudyFolder) -> float:
    """Seconds of its budget that are used."""
    return of.repository.studies.named(of.name).elapsed


@dataclass(frozen=True)
class Pair:
    """A study that measures and one that waits for it."""

    first: StudyFolder
    second: StudyFolder
    following: Command
    """Of the second."""
    told: str


@contextmanager
def one_waits_for_the_other(folder: Path, launcher: str) -> Iterator[Pair]:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    with study_folder(folder / "a") as first, study_folder(folder / "b") as second:
        first.write(budget={"trials": 1000}, search_space=ENDLESS, sampler="random")
        first.spawn("start", "study.yaml", "--detach")
        wait_for(first.recorded, "the first measures")
        second.write(budget={"trials": 2}, launcher=launcher, measurement=quick_measurement())
        following = second.spawn("start", "study.yaml")
        told = f"Waiting: process {first.wait_lease().pid}, working in {first.folder}, measures on"
        wait_for(lambda: told in following.output(), "the second waits")
        yield Pair(first, second, following, told)


LAUNCHERS = pytest.mark.parametrize(
    "launcher", ["local", pytest.param("ray", marks=pytest.mark.errand)]
)


@pytest.mark.errand
@LAUNCHERS
def test_the_second_begins_when_the_first_has_ended(tmp_path: Path, launcher: str) -> None:
    with one_waits_for_the_other(tmp_path, launcher) as pair:
        first, second = pair.first, pair.second
        assert second.status()["waiting"].rstrip("01.") in pair.told + " processor "
        spent, begun = elapsed(second), elapsed(first)
        wait_for(lambda: elapsed(first) > begun + 2, "the first goes on")
        assert elapsed(second) == spent
        assert not second.recorded()
        assert first.run("stop", first.name).returncode == 0
        assert pair.following.wait(600) == 0, pair.following.output()
        second.assert_complete(trials=2)


@pytest.mark.errand
@LAUNCHERS
def test_one_that_waits_can_be_stopped_and_started_again(tmp_path: Path, launcher: str) -> None:
    with one_waits_for_the_other(tmp_path, launcher) as pair:
        first, second = pair.first, pair.second
        assert "warn  local launcher: process" in first.run("doctor").stdout
        assert second.run("stop", second.name).returncode == 0
        assert pair.following.wait(30) == 1
        assert second.status()["state"] == "STOPPED"
        assert not second.recorded()
        again = second.spawn("start", "study.yaml")
        wait_for(lambda: pair.told in again.output(), "the second waits again")
        assert first.run("stop", first.name).returncode == 0
        assert again.wait(600) == 0, again.output()
        second.assert_complete(trials=2)
