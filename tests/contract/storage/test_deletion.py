"""A study that is deleted leaves nothing, and others as they were."""

import optuna
import pytest
from optuna.storages._rdb.models import BaseModel
from sqlalchemy import event, inspect, text

from autotune.errors import BadInput, StaleLease, StudyNotFound
from autotune.study.dashboard_sync import tell_result
from storage import (
    AttemptResult,
    AttemptState,
    ChoiceReason,
    FinalistChoice,
    Lease,
    LeaseHolder,
    Repository,
    StoredNoise,
    StoredStudy,
    StudyState,
    TrialLedger,
)
from storage.models import EventRow, UsageRow
from tests.contract.storage.making import CLUSTER, LONG, block, claim, end, rows, submit

KNOBS = {"micro_batch": optuna.distributions.CategoricalDistribution([1, 2])}


def fill(repository: Repository, lease: Lease, study: StoredStudy) -> None:
    """A row of everything that is kept of a study."""
    environment = repository.environments.record(lease, {"cpu": "x"})
    attempt = repository.attempts.begin(lease, study.id, 0, {})
    result = AttemptResult("COMPLETE", throughput=2.0)
    repository.attempts.finish(lease, attempt.id, result, [block()], environment)
    repository.messages.say(lease, study.id, "hello")
    noise = StoredNoise(0.01, 3, None)
    repository.noise.record(lease, study.id, environment, noise, workload="w", world_size=1)
    repository.choices.record(lease, study.id, [FinalistChoice(0, ChoiceReason.FINALIST)])
    repository.recommendations.record(lease, study.id, 0, {"knobs": {}})
    ledger = TrialLedger(repository.database, study.name, None, lease)
    ledger.enqueue({"micro_batch": 1}, "baseline")
    asked = ledger.ask(KNOBS)
    optunas = repository.database.optuna()
    optunas.set_trial_intermediate_value(asked._trial_id, 0, 1.0)
    optunas.record_heartbeat(asked._trial_id)
    tell_result(ledger, 0, result, "note")
    ledger.note("note")
    of_study = optunas.get_study_id_from_name(study.name)
    optunas.set_study_user_attr(of_study, "key", "value")
    optunas.set_study_system_attr(of_study, "key", "value")


def counted(repository: Repository) -> dict[str, int]:
    """Rows of each table."""
    with repository.database.engine.connect() as connection:
        return {
            name: connection.execute(text(f'select count(*) from "{name}"')).scalar_one()
            for name in inspect(connection).get_table_names()
            if name not in (EventRow.__tablename__, UsageRow.__tablename__)  # they stay
        }


@pytest.mark.long
def test_nothing_is_left_of_it(repository: Repository, lease: Lease) -> None:
    other = submit(repository, "other one")
    fill(repository, lease, other)
    before = counted(repository)
    gone = submit(repository, "gone")
    fill(repository, lease, gone)
    filled = counted(repository)
    assert sum(filled.values()) > sum(before.values()) + 10
    optunas = BaseModel.metadata.tables.keys() - {"version_info"}
    assert [name for name in optunas if filled[name] <= before[name]] == []
    end(repository, lease, gone)
    repository.studies.delete("gone")
    assert counted(repository) == before
    with pytest.raises(StudyNotFound):
        repository.studies.delete("gone")
    TrialLedger(repository.database, "other one").trials()
    end(repository, lease, other)
    repository.studies.delete("other one")


def statements_of_deletion(repository: Repository, lease: Lease, trials: int) -> int:
    """Return the number of SQL statements that delete a study of so many trials."""
    study = submit(repository, "gone")
    fill(repository, lease, study)
    ledger = TrialLedger(repository.database, study.name, None, lease)
    for _ in range(trials):
        ledger.ask(KNOBS)
    end(repository, lease, study)
    seen: list[str] = []

    def note(_1: object, _2: object, statement: str, *_: object) -> None:
        seen.append(statement)

    engine = repository.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        repository.studies.delete(study.name)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return len(seen)


@pytest.mark.long
def test_many_trials_take_no_more_statements_than_few(repository: Repository, lease: Lease) -> None:
    few = statements_of_deletion(repository, lease, 1)
    assert statements_of_deletion(repository, lease, 20) == few


def test_one_whose_trials_somebody_has_deleted_in_the_dashboard(
    repository: Repository, lease: Lease
) -> None:
    study = submit(repository, "half gone")
    fill(repository, lease, study)
    optuna.delete_study(study_name="half gone", storage=repository.database.optuna())
    end(repository, lease, study, StudyState.STOPPED)
    repository.studies.delete("half gone")
    assert repository.studies.all() == []


def test_what_waits_or_runs_is_not_deleted(repository: Repository, lease: Lease) -> None:
    study = submit(repository, "kept")
    with pytest.raises(BadInput, match="kept is QUEUED; stop it"):
        repository.studies.delete("kept")
    assert claim(repository, lease) is not None
    with pytest.raises(BadInput, match="kept is RUNNING; stop it"):
        repository.studies.delete("kept")
    assert repository.studies.named("kept").id == study.id


def test_a_daemon_that_wakes_after_its_study_was_deleted_writes_nothing(
    repository: Repository,
) -> None:
    """It slept beyond its lease, which nobody took: so the study could be stopped, and deleted. SQLite
    gives its number to the next one."""
    study = submit(repository, "deleted under it")
    claimed = repository.claims.take(CLUSTER, LeaseHolder("here", 1, LONG))
    assert claimed is not None
    lease = claimed.lease
    attempt = repository.attempts.begin(lease, study.id, 0, {})
    repository.leases.release(lease)
    repository.studies.request_stop(study.name)
    repository.studies.delete(study.name)
    later = submit(repository, "another one", "host:elsewhere")
    other = repository.claims.take("host:elsewhere", LeaseHolder("here", 1, LONG))
    assert other is not None
    elsewhere = other.lease
    running = repository.attempts.begin(elsewhere, later.id, 0, {})
    if repository.database.folder:
        assert (later.id, running.id) == (study.id, attempt.id)
    before = rows(repository)
    done = AttemptResult(AttemptState.COMPLETE)
    for write in (
        lambda: repository.leases.renew(lease, 10.0),
        lambda: repository.claims.add_elapsed(lease, study.id, 1.0),
        lambda: repository.claims.stop(lease, study.id),
        lambda: repository.claims.put_back(lease, study.id),
        lambda: repository.claims.conclude(lease, study, {}),
        lambda: repository.claims.end_search(lease, study, "enough", []),
        lambda: repository.attempts.begin(lease, study.id, 1, {}),
        lambda: repository.attempts.finish(lease, attempt.id, done, []),
    ):
        with pytest.raises(StaleLease):
            write()
    assert rows(repository) == before
    assert elsewhere.token != lease.token
