"""A daemon that sleeps in the middle of a study while another one ends it, and then wakes."""

import subprocess
from typing import Any

import optuna
import pytest
from optuna.storages._cached_storage import _CachedStorage
from sqlalchemy import text

from autotune.service.queues import this_queue
from launchers import DeviceHolder
from launchers.replay import Answer, Launch, ReplayLauncher
from storage import LeaseHolder, StudyState
from storage.host import this_host
from tests.control.replayed import PLAIN, Machine, Replayed

SHORT = {
    "budget": {"trials": 4, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2},
}
ENTERED = {"create_new_trial": 2, "set_trial_param": 5, "set_trial_state_values": 4}
"""Method of Optuna's storage -> the call in which the daemon sleeps: while it asks or tells."""


@pytest.mark.long
@pytest.mark.fault(3)
@pytest.mark.parametrize("method", ENTERED)
def test_one_that_wakes_in_optuna_leaves_nothing_open(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    calls = []
    plain = getattr(_CachedStorage, method)

    def sleeping(*arguments: Any, **options: Any) -> Any:
        calls.append(method)
        if len(calls) == ENTERED[method]:
            played.bury_daemon()
            played.serve()
            assert played.study().state == StudyState.DONE
        return plain(*arguments, **options)

    monkeypatch.setattr(_CachedStorage, method, sleeping)
    played.submit(**SHORT)
    played.serve()
    assert len(calls) > ENTERED[method]
    played.assert_complete(trials=4)
    assert played.study().state == StudyState.DONE


def launched(played: Replayed) -> set[int]:
    return {attempt.trial for attempt in played.recorded("search")}


def test_a_trial_that_somebody_else_has_asked_for_is_run(played: Replayed) -> None:
    """A daemon of an earlier version, which woke late; or a person."""
    launches = []

    def asking(launch: Launch) -> Answer:
        launches.append(launch)
        if len(launches) == 3:
            storage = played.repository.database.optuna()
            optuna.load_study(study_name=played.name, storage=storage).ask()
        return PLAIN(launch)

    played.on(asking).run(**SHORT)
    assert [trial.number for trial in played.trials() if not trial.state.is_finished()] == []
    assert launched(played) == {0, 1, 2, 3, 4}


def test_one_that_was_asked_for_in_the_confirmation_is_closed(played: Replayed) -> None:
    def asking(launch: Launch) -> Answer:
        if "/0-confirm1-1/" in launch.request.trial:
            storage = played.repository.database.optuna()
            optuna.load_study(study_name=played.name, storage=storage).ask()
        return PLAIN(launch)

    played.on(asking).run(**SHORT)
    states = [trial.state.name for trial in played.trials()]
    assert states == ["COMPLETE"] * 4 + ["FAIL"]
    assert played.trials()[4].user_attrs["cause"] == "asked for after the search had ended"


@pytest.mark.long
@pytest.mark.parametrize("same", [True, False])
def test_only_the_predecessor_itself_is_not_waited_for(played: Replayed, same: bool) -> None:
    """Another process may have its number by now: that one measures, and is waited for."""
    asked = []

    class Busy(Machine):
        def open(self, *given: Any) -> ReplayLauncher:
            asked.append(given[2](DeviceHolder(process.pid, "process measures on the processors")))
            return super().open()

    with subprocess.Popen(["sleep", "600"]) as process:
        played.submit(**SHORT)
        holder = LeaseHolder(this_host(), process.pid, 600.0)
        before = played.repository.claims.take(this_queue(), holder)
        assert before is not None
        played.repository.leases.release(before.lease)
        if not same:
            with played.repository.database.writing() as connection:
                connection.execute(text("update autotune_lease set started = started - 1"))
        played.machine = Busy()
        played.serve()
        process.kill()
    assert asked == [same]
    assert ("process measures on the processors" in played.said()) != same
