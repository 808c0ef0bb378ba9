"""The daemon dies by SIGKILL right before or after a commit; `autotune start` then goes on."""

import json

import pytest

from autotune.service.submission import submit as enqueue
from autotune.spec import load
from tests.steering import StudyFolder, quick_measurement

pytestmark = pytest.mark.timeout(600)

ONE_RANK = {"workers": 1}


def submit(tiny: StudyFolder, **changes: object) -> None:
    """Put the study into the queue, and leave it there."""
    tiny.write(resources=ONE_RANK, **changes)
    enqueue(tiny.repository, load(tiny.folder / "study.yaml"), tiny.folder)


def go_on(tiny: StudyFolder) -> None:
    found = tiny.run("start", "study.yaml", "--foreground" if tiny.lease() is None else "--json")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_deaths_all_through_the_search_lose_and_repeat_nothing(tiny: StudyFolder) -> None:
    submit(tiny, budget={"trials": 4})
    tiny.die("after", "Studies.claim")
    tiny.die("after", "Optuna.set_trial_param")  # the baseline is asked for, half of it stored
    tiny.die("after", "AttemptRecords.begin")
    tiny.die("after", "AttemptRecords.finish")  # recorded, not told
    go_on(tiny)
    tiny.assert_complete(trials=4)
    again = tiny.run("report", tiny.name, "--recompute", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["trial"] == tiny.study().verdict["trial"]  # type: ignore[index]


@pytest.mark.slow
def test_deaths_between_two_trials_lose_and_repeat_nothing(tiny: StudyFolder) -> None:
    submit(tiny, budget={"trials": 4})
    tiny.die("after", "Optuna.create_new_trial", 2)  # asked for, nothing of it stored
    tiny.die("after", "Optuna.set_trial_user_attr")  # half told
    tiny.die("after", "TrialLedger.ask")  # asked for, not launched
    go_on(tiny)
    tiny.assert_complete(trials=4)


@pytest.mark.slow
def test_a_death_in_the_last_trial_of_the_budget_leaves_no_trial_open(tiny: StudyFolder) -> None:
    submit(tiny, budget={"trials": 2})
    tiny.die("after", "AttemptRecords.begin", 2)
    go_on(tiny)
    tiny.assert_complete(trials=2)


@pytest.mark.slow
def test_deaths_in_confirmation_and_verdict_measure_nothing_twice(tiny: StudyFolder) -> None:
    submit(tiny, budget={"trials": 2})
    tiny.die("after", "AttemptRecords.finish", 3)
    tiny.die("after", "Recommendations.record")
    go_on(tiny)
    tiny.assert_complete(trials=2)
    assert (tiny.folder / "best.yaml").exists()


@pytest.mark.slow
def test_a_death_after_the_last_feasible_configuration(tiny: StudyFolder) -> None:
    submit(tiny, budget={"trials": 30}, search_space={"micro_batch": [1, 2]})
    tiny.die("before", "Studies.finish")
    go_on(tiny)
    tiny.assert_complete(trials=2)


@pytest.mark.slow
def test_a_half_stored_configuration_is_finished_to_a_feasible_one(tiny: StudyFolder) -> None:
    """Its first knob was drawn by a daemon that is dead; the second must still fit to it."""
    submit(
        tiny,
        budget={"trials": 4},
        search_space={"micro_batch": [1, 2, 4, 8], "accumulation_steps": [1, 2, 4, 8]},
        objective={"global_batch": 8},
        baseline={"micro_batch": 8},
    )
    tiny.die("after", "Optuna.set_trial_param", 5)
    go_on(tiny)
    batches = [t.params["micro_batch"] * t.params["accumulation_steps"] for t in tiny.trials()]
    assert batches == [8, 8, 8, 8]
    tiny.assert_complete(trials=4)


EVERY_COMMIT = [
    *[f"Studies.{name}" for name in ("claim", "record_facts", "finish")],
    *[f"AttemptRecords.{name}" for name in ("begin", "finish")],
    *["Messages.say", "Environments.record", "Recommendations.record"],
    *[f"TrialLedger.{name}" for name in ("enqueue", "ask", "tell", "name_objective", "note")],
    *[f"Optuna.{name}" for name in ("create_new_study", "create_new_trial")],
    *[f"Optuna.{name}" for name in ("set_trial_param", "set_trial_state_values")],
    *[f"Optuna.{name}" for name in ("set_trial_user_attr", "set_trial_system_attr")],
]


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", EVERY_COMMIT)
def test_a_death_at_any_commit(tiny: StudyFolder, when: str, method: str, call: int) -> None:
    once = ("Studies", "Environments", "Recommendations", "Optuna.create_new_study")
    once += ("TrialLedger.note", "TrialLedger.name_objective", "TrialLedger.enqueue")
    if call > 1 and method.startswith(once):
        pytest.skip("happens once in a study")
    submit(tiny, budget={"trials": 3}, measurement=quick_measurement(rounds=3))
    tiny.die(when, method, call)
    go_on(tiny)
    tiny.assert_complete(trials=3)
