"""Somebody renames or deletes the study in the dashboard: it does not go on over trials of others."""

import optuna
import pytest

from autotune.views.dashboard import Addresses, serve
from launchers.replay import Answer, Launch
from storage import StudyState
from tests.control.replayed import PLAIN, Replayed

TWO = {"budget": {"trials": 2, "min_improvement": 0}, "measurement": {"finalists": 1, "rounds": 2}}
FOUR = {**TWO, "budget": {"trials": 4, "min_improvement": 0}}


def rename(played: Replayed, old: str, new: str) -> None:
    """As optuna-dashboard does it: a copy, and the original is deleted."""
    storage = played.repository.database.optuna()
    source = optuna.load_study(study_name=old, storage=storage)
    target = optuna.create_study(storage=storage, study_name=new, direction="maximize")
    target.add_trials(source.get_trials())
    optuna.delete_study(study_name=old, storage=storage)


def delete(played: Replayed) -> None:
    optuna.delete_study(study_name=played.name, storage=played.repository.database.optuna())


def assert_told(played: Replayed) -> None:
    study = played.study()
    assert study.state == StudyState.FAILED
    assert study.error is not None
    assert "it was renamed or deleted in the dashboard" in study.error


@pytest.mark.long
def test_renamed_and_named_back(played: Replayed) -> None:
    played.run(**TWO)
    rename(played, played.name, "mine")
    played.submit(**FOUR)
    played.serve()
    assert_told(played)
    rename(played, "mine", played.name)
    played.repository.studies.enqueue(played.name)
    played.serve()
    played.assert_complete(trials=4)


@pytest.mark.long
@pytest.mark.parametrize("others", [0, 3])
def test_deleted_and_perhaps_made_anew(played: Replayed, others: int) -> None:
    played.run(**TWO)
    delete(played)
    if others:
        storage = played.repository.database.optuna()
        foreign = optuna.create_study(storage=storage, study_name=played.name)
        for number in range(others):
            foreign.enqueue_trial({"micro_batch": 7 + number})
            trial = foreign.ask({"micro_batch": optuna.distributions.IntDistribution(1, 64)})
            foreign.tell(trial, 1.0)
    played.submit(**FOUR)
    played.serve()
    assert_told(played)
    played.repository.studies.delete(played.name)
    played.run(**TWO)
    played.assert_complete(trials=2)


def test_deleted_in_mid_study(played: Replayed) -> None:
    launches = []

    def deleting(launch: Launch) -> Answer:
        launches.append(launch)
        if len(launches) == 3:
            delete(played)
        return PLAIN(launch)

    played.on(deleting).submit(**FOUR)
    played.serve()
    assert_told(played)


def test_the_dashboard_itself_makes_no_study(played: Replayed) -> None:
    """Or the name would be taken when somebody wants to give it back."""
    opened = []

    def ready(addresses: Addresses) -> None:
        opened.append(addresses.trials.rpartition("/dashboard/")[2].partition("?")[0])
        raise KeyboardInterrupt

    played.run(**TWO)
    rename(played, played.name, "mine")
    for name in (played.name, "mine"):
        serve(played.repository.database, name, 0, ready, lambda _: "best.yaml")
    storage = played.repository.database.optuna()
    [known] = storage.get_all_studies()
    assert (known.study_name, opened) == ("mine", ["", f"studies/{known._study_id}"])
