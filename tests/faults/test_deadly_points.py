"""The daemon dies by SIGKILL right before or after a commit; `autotune start` then goes on."""

import json
import os

import pytest

from autotune.config import load
from autotune.service.daemon import LEASE_SECONDS
from autotune.service.submission import submit as enqueue
from storage import LeaseHolder
from storage.host import this_host
from storage.lease_keys import key_of
from tests.faults.replaying import ReplayedFolder
from tests.support.fault_table import Tally
from tests.support.steering import StudyFolder

pytestmark = [pytest.mark.timeout(1800), pytest.mark.fault(1)]

ONE_RANK = {"workers": 1}


def submit(tiny: StudyFolder, **changes: object) -> None:
    """Put the study into the queue, and leave it there."""
    tiny.write(resources=ONE_RANK, **changes)
    enqueue(tiny.repository, load(tiny.folder / "study.yaml"), tiny.folder)


def go_on(tiny: StudyFolder) -> None:
    found = tiny.go_on()
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_deaths_all_through_the_search_lose_and_repeat_nothing(
    tiny: StudyFolder, tally: Tally
) -> None:
    submit(tiny, budget={"trials": 4})
    die(tiny, tally, "after", "Claims.take")
    die(tiny, tally, "after", "Optuna.set_trial_param")  # the baseline, half of it stored
    die(tiny, tally, "after", "AttemptRecords.begin")
    die(tiny, tally, "after", "AttemptRecords.finish")  # recorded, not told
    end_whole(tiny, tally, trials=4)
    again = tiny.run("report", tiny.name, "--recompute", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["verdict"]["trial"] == tiny.study().verdict["trial"]  # type: ignore[index]


@pytest.mark.slow
def test_deaths_between_two_trials_lose_and_repeat_nothing(tiny: StudyFolder, tally: Tally) -> None:
    submit(tiny, budget={"trials": 4})
    die(tiny, tally, "after", "Optuna.create_new_trial", 2)  # asked for, nothing of it stored
    die(tiny, tally, "after", "Optuna.set_trial_user_attr")  # half told
    die(tiny, tally, "after", "TrialLedger.ask")  # asked for, not launched
    end_whole(tiny, tally, trials=4)


@pytest.mark.slow
def test_a_death_in_the_last_trial_of_the_budget_leaves_no_trial_open(
    tiny: StudyFolder, tally: Tally
) -> None:
    submit(tiny, budget={"trials": 2})
    die(tiny, tally, "after", "AttemptRecords.begin", 2)
    end_whole(tiny, tally, trials=2)


@pytest.mark.slow
def test_deaths_in_confirmation_and_verdict_measure_nothing_twice(
    tiny: StudyFolder, tally: Tally
) -> None:
    submit(tiny, budget={"trials": 2})
    die(tiny, tally, "after", "AttemptRecords.finish", 3)
    die(tiny, tally, "after", "Recommendations.record")
    end_whole(tiny, tally, trials=2)
    assert (tiny.folder / "best.yaml").exists()


@pytest.mark.slow
def test_a_death_after_the_last_feasible_configuration(tiny: StudyFolder, tally: Tally) -> None:
    submit(tiny, budget={"trials": 30}, search_space={"micro_batch": [1, 2]})
    die(tiny, tally, "before", "Claims.conclude")
    end_whole(tiny, tally, trials=2)


@pytest.mark.slow
def test_a_half_stored_configuration_is_finished_to_a_feasible_one(tiny: StudyFolder) -> None:
    """Its first knob was drawn by a daemon that is dead; the others must still fit to it."""
    submit(
        tiny,
        budget={"trials": 4},
        search_space={
            "micro_batch": [1, 2, 4, 8],
            "accumulation_steps": [1, 2, 4, 8],
            "log_interval": [1, 10],
        },
        objective={"global_batch_size": 8},
        baseline={"micro_batch": 8},
    )
    tiny.die("after", "Optuna.set_trial_param", 5)
    go_on(tiny)
    knobs = [attempt.knobs for attempt in tiny.recorded()]
    assert {each["micro_batch"] * each["accumulation_steps"] for each in knobs} == {8}
    tiny.assert_complete(trials=4)


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.fault(2)
def test_what_dies_before_its_first_heartbeat_is_taken_over(tiny: StudyFolder) -> None:
    submit(tiny, budget={"trials": 2})
    tiny.die("after", "Claims.take")
    leases, key = tiny.repository.leases, key_of(tiny.study().id)
    state = leases.state(key)
    assert state is not None
    assert state.seconds_left <= LEASE_SECONDS, "a daemon on another machine waits no longer"
    lease = leases.acquire(key, LeaseHolder(this_host(), os.getpid(), LEASE_SECONDS))
    assert lease is not None, "one on this machine sees at once that its holder is dead"
    leases.release(lease)
    rival = tiny.spawn("daemon", "--idle-exit", "0", "--storage", tiny.url)
    assert rival.wait() == 0, rival.output()
    tiny.assert_complete(trials=2)


ONCE = [
    "Claims.end_search",
    *["Claims.take", "Claims.record_facts", "Claims.conclude", "Environments.record"],
    *["Recommendations.record", "TrialLedger.enqueue", "TrialLedger.name_objective"],
    *["TrialLedger.note", "Messages.say"],
]
"""Commits that a study makes once, as it begins or ends."""
OFTEN = [
    *["TrialLedger.ask", "Optuna.create_new_trial", "Optuna.set_trial_param"],
    *["AttemptRecords.begin", "AttemptRecords.finish", "TrialLedger.tell"],
    *["Optuna.set_trial_state_values", "Optuna.set_trial_user_attr"],
    "Optuna.set_trial_system_attr",
]
"""Commits that come with every trial."""
SPACE = {"micro_batch": [1, 2, 4, 8, 16], "log_interval": [1, 2, 5, 10]}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ONCE)
def test_a_death_at_a_commit_that_comes_once(
    replayed: ReplayedFolder, tally: Tally, when: str, method: str
) -> None:
    submit(replayed, budget={"trials": 2})
    die(replayed, tally, when, method)
    end_whole(replayed, tally, trials=2)


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_deaths_at_every_commit_of_a_trial(
    replayed: ReplayedFolder, tally: Tally, when: str, call: int
) -> None:
    submit(replayed, budget={"trials": 16, "min_improvement": 0}, search_space=SPACE)
    for method in OFTEN:
        die(replayed, tally, when, method, call)
    end_whole(replayed, tally, trials=16)


def die(tiny: StudyFolder, tally: Tally, when: str, method: str, call: int = 1) -> None:
    tiny.die(when, method, call)
    tally.tried += 1


def end_whole(tiny: StudyFolder, tally: Tally, trials: int) -> None:
    """The study goes on to its end; nothing is lost, nothing is there twice."""
    go_on(tiny)
    lost, duplicated = tiny.losses(trials)
    tally.lost += lost
    tally.duplicated += duplicated
    tiny.assert_complete(trials=trials)
    tally.survived = tally.tried
