"""kill -9 of the daemon in mid study, then `autotune start` again."""

import json
import os
import signal
from pathlib import Path

import pytest

from storage import Database, Purpose, Repository
from tests.support.steering import autotune, write_study
from tests.support.waiting import wait_for


@pytest.mark.slow
@pytest.mark.fault(1)
def test_nothing_is_lost_or_recorded_twice(project: Path) -> None:
    path = write_study(project, budget={"trials": 6})
    autotune("start", str(path), "--detach", cwd=project, check=True)
    repository = Repository(Database(f"sqlite:///{project}/autotune.db"))
    study = repository.studies.named("tiny")

    def recorded() -> int:
        return sum(a.recorded for a in repository.attempts.of(study.id))

    wait_for(lambda: recorded() >= 2, "two attempts are recorded")
    status = json.loads(autotune("status", "tiny", "--json", cwd=project, check=True).stdout)
    os.kill(status["daemon"]["pid"], signal.SIGKILL)

    found = autotune("start", str(path), cwd=project)

    assert found.returncode == 0, found.stdout + found.stderr
    attempts = repository.attempts.of(study.id)
    searched = [a.trial for a in attempts if a.purpose == Purpose.SEARCH and a.recorded]
    assert sorted(searched) == list(range(6))
    assert not any(a.running for a in repository.attempts.of(study.id))
