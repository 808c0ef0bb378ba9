"""A daemon dies right before or after any commit; another one goes on. Nothing is lost or repeated."""

import pytest

from tests.control.deaths import HEARTBEATS, Commit, Died, mortal, writers
from tests.control.replayed import Replayed

pytestmark = pytest.mark.usefixtures("shown_at_once")

# A study of so many trials that its baseline runs again, and its finals; what it says and tells of
# itself is counted below.
SHORT = {
    "budget": {"trials": 5},
    "search_space": {"micro_batch": [1, 2, 4, 8, 16]},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 2},
}
COMMITS = [
    Commit("Leases.acquire", 1),
    Commit("Claims.take", 1),
    Commit("Claims.record_facts", 1),
    Commit("Environments.record", 1),
    Commit("Messages.say", 3),
    Commit("Claims.record_slots", 1),
    Commit("Claims.record_standing", 3),
    Commit("Claims.end_search", 1),
    Commit("AttemptRecords.begin", 3),
    Commit("AttemptRecords.finish", 3),
    Commit("NoiseRecords.record", 1),
    Commit("Recommendations.record", 1),
    Commit("Claims.conclude", 1),
    Commit("TrialLedger.enqueue", 2),
    Commit("TrialLedger.ask", 3),
    Commit("TrialLedger.tell", 3),
    Commit("TrialLedger.name_objective", 1),
    Commit("TrialLedger.note", 3),
    Commit("TrialLedger.set_attributes", 3),
    Commit("Optuna.create_new_trial", 3),
    Commit("Optuna.set_trial_param", 3),
    Commit("Optuna.set_trial_state_values", 3),
    Commit("Optuna.set_trial_intermediate_value", 2),
    Commit("Optuna.set_trial_user_attr", 3),
    Commit("Optuna.set_trial_system_attr", 3),
    Commit("Optuna.set_study_system_attr", 3),
    Commit("Optuna.set_study_user_attr", 3),
]
METHODS = writers()
# Before a commit nearly everything is as it was after the last one, and the last call of a method
# finds more recorded than the first.
POINTS = [
    pytest.param(*point, marks=() if point == commit.points[-1] else pytest.mark.slow)
    for commit in COMMITS
    for point in commit.points
]


@pytest.mark.long
@pytest.mark.parametrize(("method", "when", "call"), POINTS)
def test_a_death_at_any_commit(played: Replayed, method: str, when: str, call: int) -> None:
    played.submit(**SHORT)
    with mortal(METHODS, (method, when, call)) as daemon, pytest.raises(Died):
        played.serve()
    assert daemon.dead
    played.bury_daemon()
    played.serve()
    played.assert_complete(trials=5)
    assert (played.folder / "best.yaml").exists()


def test_no_commit_is_left_out(played: Replayed) -> None:
    played.submit(**SHORT)
    with mortal(METHODS) as daemon:
        played.serve()
    counted = {method: min(calls, 3) for method, calls in daemon.calls.items()}
    # Progress is shown every few seconds of the clock, so it comes more or less often.
    beside = {*HEARTBEATS, "Leases.release", "Messages.set_status"}
    beside.add("Optuna.create_new_study")  # which finds that there is one, since the submission
    assert {method: counted[method] for method in counted.keys() - beside} == {
        commit.method: commit.calls for commit in COMMITS
    }


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_end_of_a_search_is_told_once_with_its_reason(played: Replayed, when: str) -> None:
    played.submit(**SHORT)
    with mortal(METHODS, ("Recommendations.record", when, 1)), pytest.raises(Died):
        played.serve()
    before = [attempt.id for attempt in played.attempts("search")]
    played.bury_daemon()
    played.serve()
    told = played.repository.messages.of(played.study().id)
    assert sum(message.text.startswith("The search ends: ") for message in told) == 1
    assert [attempt.id for attempt in played.attempts("search")] == before
