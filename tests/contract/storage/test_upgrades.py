"""A database of an older version is read as it is; brought to this one, it keeps what it held."""

import itertools
import math
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from alembic import command
from alembic.config import Config
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from sqlalchemy import Connection, Engine, MetaData, Row, create_engine, event, select, text

import storage
from autotune.analysis.outcomes import Failure
from autotune.analysis.run_digest import run_digest
from autotune.analysis.verdict import Verdict
from autotune.config.secrets_withheld import as_stored
from autotune.errors import StorageError
from autotune.measurement.estimate import Ratio
from autotune.views.verdict_text import text_of
from launchers.sections import RaySection
from search_spaces import defaults
from storage import (
    AttemptResult,
    AttemptState,
    ChoiceReason,
    Database,
    Fault,
    FinalistChoice,
    LeaseHolder,
    MessageCode,
    MessageKind,
    Purpose,
    Quota,
    Repository,
    RunDigest,
    SearchEndCause,
    SlotHealth,
    StoredBlock,
    StudyState,
    TrialLedger,
    schema,
)
from storage.database import copy_of_file
from storage.lease_keys import key_of, waiting_key
from storage.models import UsageRow
from storage.schema import revisions
from storage.urls import parse

# What each version wrote, as it wrote it: never to be changed, only added to.
FROZEN = {
    "0001": """
insert into autotune_study (name, cluster, spec, workdir, state, stop_requested, elapsed, created)
    values ('first', 'host:here', '{"name": "first"}', '/w', 'RUNNING', false, 12.5, 100.0);
insert into autotune_lease (cluster, epoch, host, pid, expires)
    values ('host:here', 3, 'here', 7, 0.0);
insert into autotune_environment (fingerprint, body) values ('abc', '{"cpu": "x"}');
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, throughput, half_width, steady, peak_bytes, wall_seconds, started, ended)
    values (1, 1, 0, 'search', 0, 1, 3, '{"micro_batch": 2}',
        'COMPLETE', '', '', 80.0, 0.02, true, 1024, 3.5, 101.0, 105.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, peak_bytes, wall_seconds, started)
    values (1, null, 1, 'search', 0, 1, 3, '{"micro_batch": 4}', 'RUNNING', '', '', true, 0, 0.0, 106.0);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept)
    values (1, 0, 10, 40, 0, 0.5, '[0.5, 0.25]', 0.0, 1.5, 1024, true);
insert into autotune_message (study_id, at, text) values (1, 100.0, '2 ranks on a CPU.');
insert into autotune_message (study_id, at, text) values (1, 101.0, 'Waiting: process 8 measures.');
insert into autotune_recommendation (study_id, trial, body, created)
    values (1, 0, '{"knobs": {"micro_batch": 2}}', 110.0);
""",
    "0002": """
insert into autotune_noise (study_id, environment_id, workload, world_size, sigma_run, runs,
        drift_per_hour, at)
    values (1, 1, 'gpt', 2, 0.01, 3, null, 104.0);
update autotune_attempt set contended = true, block_half_width = 0.01, sigma_run = 0.005
    where id = 1;
update autotune_block set observed = '{"step_p50": 0.025}';
""",
    "0003": """
update autotune_study set search_ended = 'the budget of 2 trials is spent';
""",
    "0004": """
update autotune_lease set started = 12345;
""",
    "0005": """
update autotune_study set retries = 2;
""",
    "0006": """
update autotune_study set file = '/w/study.yaml';
""",
    "0007": """
update autotune_lease set token = 'abcd', boot = 'another', boot_expires = 20.0;
""",
    "0008": """
update autotune_attempt set resident_of = 1 where id = 2;
""",
    "0009": """
update autotune_attempt set block_freedom = 4.0 where id = 1;
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (1, 1, 2, 'search', 0, 1, 3, '{}', 'LOST', 'not of its own making: node b was lost', '',
        true, false, 0, 1.0, 107.0, 108.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, resident_of, started, ended)
    values (1, 1, 2, 'search', 0, 2, 3, '{}', 'LOST',
        'not of its own making: CRASH in the processes of trial 0, which it took over: rank 0: x', '',
        true, false, 0, 1.0, 1, 109.0, 110.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (1, 1, 2, 'search', 0, 3, 3, '{}', 'LOST', 'a disk was full: no space left', '', true, false,
        0, 1.0, 111.0, 112.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (1, null, 2, 'search', 0, 4, 3, '{}', 'ABANDONED', 'its daemon died', '', true, false, 0, 0.0,
        113.0, 114.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (1, 1, 2, 'search', 0, 5, 3, '{}', 'CRASH', 'its daemon died', '', true, false, 0, 1.0,
        115.0, 116.0);
insert into autotune_message (study_id, at, kind, text)
    values (1, 117.0, 'slots', '{"alive": 1, "planned": 2, "away": {"b lost": 116.5}}');
""",
    "0010": """
update autotune_study set verdict = '{"kind": "better", "sentence": "2.00x yours", "trial": 1,
    "rounds": 5, "knobs": {"micro_batch": 4}, "speedup": {"value": 2.0, "low": 1.9, "high": null},
    "finalists": []}';
""",
    "0011": """
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, throughput, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (1, 1, 0, 'pace', 3, 1, 3, '{"micro_batch": 2}', 'COMPLETE', '', '', 100.0, true, false,
        0, 1.0, 118.0, 119.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, throughput, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (1, 1, 3, 'search', 0, 1, 3, '{"micro_batch": 8}', 'COMPLETE', '', '', 120.0, true, false,
        0, 1.0, 118.5, 119.5);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (8, 0, 10, 50, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (8, 1, 10, 50, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (8, 2, 10, 50, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (8, 3, 10, 50, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (9, 0, 10, 75, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (9, 1, 10, 75, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (9, 2, 10, 75, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended)
    values (9, 3, 10, 75, 0, 0.5, '[0.5, 0.5]', 0.0, 1.5, 1024, true, false);
insert into autotune_message (study_id, at, kind, text)
    values (1, 120.0, 'said', 'Left out: micro_batch 64, as it has no partner.');
insert into autotune_message (study_id, at, kind, text)
    values (1, 121.0, 'said', '1,192 configurations remain, of any global batch.');
insert into autotune_message (study_id, at, kind, text)
    values (1, 122.0, 'said',
        'The model takes a=1.5 for the best, with 9 t/s, and expects one more trial to bring 4.27%.');
""",
    "0012": """
insert into autotune_study (name, cluster, spec, workdir, state, stop_requested, resume_requested,
        elapsed, retries, created)
    values ('second', 'host:here alice 12ab34cd', '{}', '/w', 'QUEUED', false, false, 0.0, 0, 200.0);
""",
    "0013": """
update autotune_study set priority = 4, held = true where name = 'second';
""",
    "0014": """
insert into autotune_quota (owner, studies, device_hours, days) values ('alice', 2, null, 1.0);
""",
    "0015": """
update autotune_quota set weight = 2.0 where owner = 'alice';
""",
    "0016": """
update autotune_attempt set sigma_run = 0.02 where purpose = 'paired';
""",
    "0017": """
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, throughput, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (1, 1, 7, 'search', 0, 1, 3, '{"micro_batch": 8}', 'COMPLETE', '', '', 80.0, true, false,
        0, 1.0, 130.0, 131.0);
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended, observed)
    values (10, 0, 1, 8, 0, 9.0, '[9.0]', 0.0, 1.5, 1024, false, false, '{"energy_joules": 900.0}');
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended, observed)
    values (10, 1, 2, 16, 0, 0.5, '[0.5]', 0.0, 1.5, 1024, false, true, '{"foreign_cpu": 0.9}');
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended, observed)
    values (10, 2, 2, 16, 0, 0.5, '[0.5]', 0.0, 1.5, 1024, true, false,
        '{"energy_joules": 40.0, "foreign_cpu": 0.1, "clock_mhz": 1400.0, "step_p50": 0.25,
        "step_p95": 0.25}');
insert into autotune_block (attempt_id, "index", steps, samples, tokens, seconds, rank_seconds,
        wait_seconds, loss, peak_bytes, kept, contended, observed)
    values (10, 3, 2, 16, 0, 0.3, '[0.3]', 0.0, 1.5, 1024, true, false,
        '{"energy_joules": 24.0, "foreign_cpu": 0.3, "clock_mhz": 1500.0, "step_p50": 0.15,
        "step_p95": 0.15}');
insert into autotune_message (study_id, at, kind, text, code, data)
    values (1, 140.0, 'said', 'Measured again with yours: trial 1.', 'finalists',
        '{"choices": [{"trial": 1, "expected": 1.5, "reason": "finalist", "detail": ""}]}');
insert into autotune_message (study_id, at, kind, text, code, data)
    values (1, 141.0, 'said', 'Measured again with yours: trial 7.', 'finalists',
        '{"choices": [{"trial": 7, "expected": 1.4, "reason": "finalist", "detail": ""},
        {"trial": 1, "expected": null, "reason": "refused", "detail": "another loss"}]}');
""",
    "0018": """
update autotune_study set facts = '{"world_size": 2}' where name = 'second';
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (2, 1, 0, 'search', 0, 1, 1, '{}', 'COMPLETE', '', '', true, false, 0, 10.0, 3591.0, 3601.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (2, 1, 1, 'search', 0, 1, 1, '{}', 'ERROR', '', '', true, false, 0, 20.0, 3701.0, 3721.0);
""",
    "0019": """
update autotune_study set facts = '{"device": "cpu", "world_size": 2, "global_batch": 64}',
    spec = '{"name": "second", "ray_address": "h:1", "launcher": "ray",
        "workload": {"script": "train.py", "args": ["--loader_workers", "4"],
            "flags": {"micro_batch": "--bs", "loader_workers": "--loader_workers"},
            "over_all_ranks": ["micro_batch"]},
        "search_space": {"loader_workers": [0, 2], "parallelism": ["ddp", "fsdp_keep"]},
        "constraints": ["loader_workers < 2 or global_batch >= 64"],
        "resources": {"slots": 1}, "budget": {"least_gain": 0.01},
        "objective": {"global_batch": null, "batch_dependent": "refuse", "job_hours": 24},
        "measurement": {"longest": 3.0, "search_precision": 0.02, "confirm_precision": 0.01,
            "attribution": 2, "unchecked_numerics": "refuse", "startup_deadline": 60.0,
            "step_deadline": 20.0}}'
    where name = 'second';
update autotune_study set verdict = '{"kind": "better", "version": 2, "study": "second",
    "numerics": {"unchecked": "no reference"}, "long_failure": {"trial": 1, "state": "OOM",
    "cause": "no memory"}, "left_out": null, "long_run": null, "unchecked": null}'
    where name = 'second';
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (2, 1, 1, 'attribute', 1, 1, 1, '{"loader_workers": 2, "parallelism": "fsdp_keep"}',
        'COMPLETE', '', '', true, false, 0, 1.0, 3731.0, 3732.0);
insert into autotune_attempt (study_id, environment_id, trial, purpose, round, attempt, epoch, knobs,
        state, cause, log_tail, steady, contended, peak_bytes, wall_seconds, started, ended)
    values (2, 1, 1, 'long', 1, 1, 1, '{}', 'LOST', '', '', true, false, 0, 1.0, 3733.0, 3734.0);
update autotune_attempt set fault = 'turns' where purpose = 'long';
insert into autotune_message (study_id, at, kind, text, code, data)
    values (2, 3740.0, 'said', 'The search ends: loader_workers=2.', 'search_end',
        '{"cause": "least_gain"}');
""",
}


class Sqlite:
    """Files of SQLite in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"

    def copy(self, source: str, name: str) -> None:
        """Copy a database that no process has open."""
        shutil.copy(self._folder / f"{source}.db", self._folder / f"{name}.db")

    def drop(self, name: str) -> None:
        """Remove a database."""
        (self._folder / f"{name}.db").unlink()


class Postgres:
    """Databases of a PostgreSQL server, which several of these may use one after another."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._own = uuid.uuid4().hex
        server.psql(f'create database "{self._own}_grown"')

    def url(self, name: str) -> str:
        return str(self._server.get_uri(database=f"{self._own}_{name}"))

    def copy(self, source: str, name: str) -> None:
        """Copy a database that no process has open."""
        own = self._own
        self._server.psql(f'create database "{own}_{name}" template "{own}_{source}"')

    def drop(self, name: str) -> None:
        """Remove a database; hundreds of them would take minutes at the end."""
        self._server.psql(f'drop database "{self._own}_{name}" with (force)')


class Frozen:
    """Databases of one kind, of each older version and as upgraded from it; each is made once."""

    def __init__(self, databases: Sqlite | Postgres) -> None:
        self._databases = databases
        self._numbers = itertools.count()
        self._copies: list[str] = []
        config = Config()
        migrations = Path(storage.__file__).parent / "migrations"
        config.set_main_option("script_location", str(migrations))
        url = databases.url("grown")
        RDBStorage(parse(url).render_as_string(hide_password=False)).engine.dispose()
        engine = create_engine(parse(url))
        for version, written in FROZEN.items():
            with engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, version)
                for statement in written.strip().split(";\n"):
                    connection.execute(text(statement.replace(":", "\\:").removesuffix(";")))
            engine.dispose()
            databases.copy("grown", version)
        self._versions: dict[str, str] = {}
        self._upgraded: set[str] = set()

    def older(self, version: str) -> str:
        """Return the URL of a new copy of the database of a version."""
        url = self._copied(version)
        self._versions[url] = version
        return url

    def upgraded(self, older: str) -> str:
        """Return the URL of a new copy of what a database of `older` is upgraded to."""
        version = self._versions[older]
        upgraded = f"upgraded_{version}"
        if version not in self._upgraded:
            self._databases.copy(version, upgraded)
            database = Database(self._databases.url(upgraded))
            database.upgrade()
            database.engine.dispose()
            database.optuna().engine.dispose()
            self._upgraded.add(version)
        return self._copied(upgraded)

    def _copied(self, source: str) -> str:
        name = f"{source}_{next(self._numbers)}"
        self._databases.copy(source, name)
        self._copies.append(name)
        return self._databases.url(name)

    def drop_copies(self) -> None:
        """Remove the copies that were given out."""
        while self._copies:
            self._databases.drop(self._copies.pop())


KINDS = ("sqlite", "postgresql")


def _of_kind(kind: str, *values: str, slow: bool = False) -> Any:
    """Return parameters of a test that shares the databases of one kind."""
    marks = [pytest.mark.xdist_group(f"older {kind}"), *([pytest.mark.slow] if slow else [])]
    return pytest.param(kind, *values, marks=marks)


@pytest.fixture(scope="session", params=[_of_kind(kind) for kind in KINDS])
def frozen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    if request.param == "sqlite":
        return Frozen(Sqlite(tmp_path_factory.mktemp("older")))
    return Frozen(Postgres(request.getfixturevalue("postgres_server")))


@pytest.fixture
def older(frozen: Frozen, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database of an older version."""
    yield frozen.older(request.param)
    frozen.drop_copies()


@pytest.fixture
def engine(older: str) -> Iterator[Engine]:
    opened = create_engine(parse(older))
    yield opened
    opened.dispose()


@pytest.fixture
def repository(frozen: Frozen, older: str) -> Iterator[Repository]:
    """The newest version, over the database of an older one."""
    database = Database(frozen.upgraded(older))
    yield Repository(database)
    database.engine.dispose()


def test_no_version_is_left_out() -> None:
    versions = Path(storage.__file__).parent / "migrations" / "versions"
    *before, _ = sorted(path.name[1:5] for path in versions.glob("v*.py"))
    assert list(FROZEN) == before


def _marked(version: str) -> Any:
    """Return a version as a parameter: those between the oldest and the newest take long."""
    outer = version in (min(FROZEN), max(FROZEN))
    return version if outer else pytest.param(version, marks=pytest.mark.long)


FROM_EACH_VERSION = pytest.mark.parametrize("older", [*map(_marked, FROZEN)], indirect=True)
FROM_THE_SECOND = pytest.mark.parametrize("older", ["0002"], indirect=True)


@FROM_EACH_VERSION
def test_everything_that_was_there_is_still_read(repository: Repository) -> None:
    study = repository.studies.named("first")
    assert (study.state, study.spec, study.elapsed) == (StudyState.RUNNING, {"name": "first"}, 12.5)
    assert study.facts is None
    recorded, running, *_ = repository.attempts.of(study.id)
    assert recorded.knobs == {**defaults(), "micro_batch": 2}
    assert (recorded.purpose, recorded.result.throughput) == (Purpose.SEARCH, 80.0)
    assert running.running
    [block] = repository.attempts.blocks(recorded.id)
    assert (block.steps, block.rank_seconds) == (10, [0.5, 0.25])
    assert repository.environments.of_attempt(recorded.id) == {"cpu": "x"}
    assert repository.recommendations.newest_of(study.id) == {"knobs": {"micro_batch": 2}}


# A server's is copied into a file of SQLite to be read: then all is as it is with those.
READ = [
    _of_kind(kind, version, slow=kind != "sqlite" and version not in (min(FROZEN), max(FROZEN)))
    for kind in KINDS
    for version in FROZEN
]


@pytest.mark.long
@pytest.mark.parametrize(("frozen", "older"), READ, indirect=True)
def test_database_of_each_version_is_read_without_being_changed(older: str, engine: Engine) -> None:
    before = dumped(engine)
    database = Database(older)
    repository = Repository(database)
    study = repository.studies.named("first")
    recorded, running, *_ = repository.attempts.of(study.id)
    assert (recorded.result.throughput, running.running) == (80.0, True)
    assert repository.recommendations.newest_of(study.id) == {"knobs": {"micro_batch": 2}}
    assert database.optuna().get_all_studies() == []
    for write in (
        lambda: repository.studies.submit("another", "host:here", {}, "/w"),
        lambda: repository.studies.request_stop("first"),
        lambda: repository.leases.acquire("host:here", LeaseHolder("here", 9, 60.0)),
        lambda: repository.claims.take("host:here", LeaseHolder("here", 9, 60.0)),
    ):
        with pytest.raises(StorageError, match="`autotune storage upgrade` brings it"):
            write()
    database.engine.dispose()
    assert dumped(engine) == before


@pytest.mark.long
@pytest.mark.parametrize("older", ["0007"], indirect=True)
def test_upgrade_under_a_daemon_is_refused(older: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("update autotune_lease set expires = 1e12"))
    before = dumped(engine)
    with pytest.raises(StorageError, match="in use by process 7 on here: stop"):
        Database(older).upgrade()
    assert dumped(engine) == before


@pytest.mark.parametrize("older", ["0017"], indirect=True)
def test_process_that_waits_for_its_study_does_not_hinder_an_upgrade(
    older: str, engine: Engine
) -> None:
    with engine.begin() as connection:
        waits = f"update autotune_lease set expires = 1e12, key = key || '{waiting_key('', 1)}'"
        connection.execute(text(f"{waits} where host <> ''"))
    assert Database(older).upgrade()[0] == "0017"


@pytest.mark.long
@pytest.mark.parametrize("older", ["0017"], indirect=True)
def test_upgrade_is_undone_if_a_daemon_was_started_while_it_copied(
    older: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, begun = schema.copied, list[Any]()

    def copied(source: Engine, path: Path, *, newest: bool) -> Engine:
        found = plain(source, path, newest=newest)
        if not newest:
            taken = "update autotune_lease set expires = 1e12 where host <> ''"
            with engine.begin() as connection:
                connection.execute(text(taken))
            begun.append(dumped(engine))
        return found

    database = Database(older)
    monkeypatch.setattr(schema, "copied", copied)
    copy = tmp_path / "copy.db"
    with pytest.raises(StorageError, match="in use by process 7 on here: stop"):
        database.upgrade(copy)
    assert [dumped(engine)] == begun
    assert not copy.exists()


@pytest.mark.long
@pytest.mark.parametrize("older", ["0009"], indirect=True)
def test_upgrade_keeps_a_copy_of_the_old_version(older: str, tmp_path: Path) -> None:
    copy = tmp_path / "old.db"
    assert Database(older).upgrade(copy) == ("0009", revisions()[0])
    assert Database(f"sqlite:///{copy}").schema == "0009"
    assert Repository(Database(f"sqlite:///{copy}")).studies.named("first").elapsed == 12.5


@pytest.mark.long
@pytest.mark.parametrize("older", ["0009"], indirect=True)
def test_upgrade_after_that_of_another_process_changes_nothing(older: str, tmp_path: Path) -> None:
    newest, copy = revisions()[0], tmp_path / "copy.db"
    first, second = Database(older), Database(older)
    assert first.upgrade(copy) == ("0009", newest)
    assert second.upgrade(copy) == (newest, newest)
    second.check_writable()


@pytest.mark.parametrize("older", ["0017"], indirect=True)
def test_migration_may_compute_for_long_between_two_statements(older: str) -> None:
    found: set[str] = set()

    def look(connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("ALTER TABLE") and connection.dialect.name == "postgresql":
            cursor.execute("show idle_in_transaction_session_timeout")
            found.update(cursor.fetchone())

    event.listen(Engine, "before_cursor_execute", look)
    try:
        Database(older).upgrade()
    finally:
        event.remove(Engine, "before_cursor_execute", look)
    assert found == (set() if older.startswith("sqlite") else {"0"})


@pytest.mark.parametrize(("frozen", "older"), [_of_kind("postgresql", "0017")], indirect=True)
def test_rows_of_a_server_are_fetched_a_few_at_a_time(older: str, tmp_path: Path) -> None:
    """To be copied, and to be changed by a migration: a database may have gigabytes."""
    found: list[str] = []

    def look(connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        if connection.dialect.name == "postgresql" and "FROM autotune_block" in statement:
            found.append(type(cursor).__name__)

    event.listen(Engine, "after_cursor_execute", look)
    try:
        database = Database(older)  # an older one is read through a copy
        copied = [*found]
        database.upgrade()
    finally:
        event.remove(Engine, "after_cursor_execute", look)
    assert (copied, found) == (["ServerCursor"], ["ServerCursor"] * 2)


@pytest.mark.parametrize("older", ["0009"], indirect=True)
def test_upgrade_whose_copy_cannot_be_written_changes_nothing(older: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Database(older).upgrade(tmp_path / "missing" / "copy.db")
    assert Database(older).schema == "0009"


@pytest.mark.long
def test_backup_is_restored_into_a_storage_of_either_kind(storage_url: str, tmp_path: Path) -> None:
    repository = Repository(Database(f"sqlite:///{tmp_path}/first.db"))
    repository.studies.submit("first", "host:here", {"name": "first"}, "/w")
    claimed = repository.claims.take("host:here", LeaseHolder("here", 9, 60.0))
    assert claimed is not None
    attempt = repository.attempts.begin(claimed.lease, claimed.study.id, 0, {"micro_batch": 2})
    TrialLedger(repository.database, "first").trials()
    backup = Database(f"sqlite:///{tmp_path}/first.db")
    backup.back_up(tmp_path / "copy.db")
    restored = Repository(Database(storage_url))
    with copy_of_file(tmp_path / "copy.db") as copy:
        restored.database.restore(copy)
    assert restored.studies.named("first") == repository.studies.named("first")
    assert [a.id for a in restored.attempts.of(claimed.study.id)] == [attempt.id]
    assert len(restored.database.optuna().get_all_studies()) == 1
    taken = restored.claims.take("host:here", LeaseHolder("here", 10, 60.0))
    assert taken is not None and taken.lease.epoch == claimed.lease.epoch + 1
    assert restored.attempts.begin(taken.lease, taken.study.id, 0, {}).id > attempt.id
    assert restored.studies.submit("second", "host:here", {}, "/w").id > taken.study.id


def test_restore_into_a_database_with_studies_of_optuna_is_refused(tmp_path: Path) -> None:
    for name in ("first", "second"):
        TrialLedger(Database(f"sqlite:///{tmp_path}/{name}.db"), name).trials()
    second = Database(f"sqlite:///{tmp_path}/second.db")
    with pytest.raises(StorageError, match="has 1 studies of Optuna"):
        second.restore(Database(f"sqlite:///{tmp_path}/first.db").engine)
    assert [study.study_name for study in second.optuna().get_all_studies()] == ["second"]


def test_restore_into_a_storage_with_a_lease_or_a_history_is_refused_in_words(
    storage_url: str, tmp_path: Path
) -> None:
    target = Repository(Database(storage_url))
    source = Database(f"sqlite:///{tmp_path}/source.db")
    Repository(source).studies.submit("first", "host:here", {}, "/w")
    lease = target.leases.acquire("host:here", LeaseHolder("here", 9, 60.0))
    assert lease is not None
    with pytest.raises(StorageError, match=r"it holds rows in autotune_lease .*into a new one"):
        target.database.restore(source.engine)
    target.studies.submit("gone", "host:here", {}, "/w")
    target.studies.request_stop("gone")
    target.studies.delete("gone")
    with pytest.raises(StorageError, match=r"it holds rows in .*autotune_event"):
        target.database.restore(source.engine)
    assert target.studies.all() == []


def dumped(engine: Engine) -> dict[str, list[str]]:
    """Everything in a database."""
    found = MetaData()
    found.reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in found.sorted_tables
        }


@FROM_THE_SECOND
def test_what_a_verdict_rests_on_is_still_read(repository: Repository) -> None:
    recorded, *_ = repository.attempts.of(1)
    assert (recorded.result.block_half_width, recorded.result.sigma_run) == (0.01, 0.005)
    assert recorded.result.contended
    assert repository.attempts.blocks(1)[0].observed == {"step_p50": 0.025}
    noise = repository.noise.of(1)
    assert noise is not None
    assert (noise.sigma_run, noise.runs) == (0.01, 3)


@pytest.mark.parametrize("older", ["0008"], indirect=True)
def test_what_later_versions_have_added_is_still_read(repository: Repository) -> None:
    study = repository.studies.named("first")
    assert study.file == "/w/study.yaml"
    assert study.search_ended == "the budget of 2 trials is spent"
    assert study.retries == 2
    recorded, running, *_ = repository.attempts.of(study.id)
    assert (recorded.result.resident_of, running.result.resident_of) == (None, 1)


FROM_THE_ELEVENTH = pytest.mark.parametrize("older", ["0011"], indirect=True)


@FROM_THE_ELEVENTH
def test_upgrade_tells_raw_rate_and_ratio_of_a_trial_beside_the_baseline_apart(
    repository: Repository,
) -> None:
    alone, *_, baseline, trial = repository.attempts.of(1)
    assert baseline.purpose is Purpose.PAIRED
    assert (trial.result.throughput, trial.result.rate, trial.result.ratio) == (120.0, 150.0, 1.5)
    for other in (alone, baseline):
        assert (other.result.raw_throughput, other.result.ratio) == (None, None)
        assert other.result.rate == other.result.throughput


@FROM_THE_ELEVENTH
def test_upgrade_from_messages_in_words_keeps_their_facts_as_data(repository: Repository) -> None:
    *_, left_out, space, expected = repository.messages.of(1)
    assert left_out.code == MessageCode.LEFT_OUT
    assert left_out.data == {"reason": "micro_batch 64, as it has no partner"}
    assert space.code == MessageCode.SPACE
    assert expected.code == MessageCode.EXPECTATION
    assert expected.data == {"gain": pytest.approx(0.0427)}


FROM_THE_NINTH = pytest.mark.parametrize("older", ["0009"], indirect=True)


@FROM_THE_NINTH
def test_upgrade_from_causes_in_words_gives_each_attempt_its_fault(repository: Repository) -> None:
    assert [attempt.result.fault for attempt in repository.attempts.of(1)] == [
        *(Fault.TRIAL, Fault.TRIAL),  # complete, running
        *(Fault.NODE, Fault.WORKER, Fault.DISK, Fault.DAEMON, Fault.TRIAL),
    ]


@pytest.mark.parametrize("older", ["0010"], indirect=True)
def test_upgrade_from_verdict_in_words_keeps_its_text_and_its_data(repository: Repository) -> None:
    stored = repository.studies.named("first").verdict
    assert stored is not None
    assert "sentence" not in stored
    found = Verdict.from_dict(stored)
    assert (found.version, found.study, found.kind, found.rounds) == (1, "first", "better", 5)
    assert found.speedup == Ratio(2.0, 1.9, math.inf)
    assert text_of(found) == "2.00x yours"


@FROM_THE_NINTH
def test_upgrade_from_slots_in_a_message_keeps_them_as_data(repository: Repository) -> None:
    assert repository.studies.slots(1) == SlotHealth(1, 2, {"b lost": 116.5})
    assert [message.text for message in repository.messages.of(1)] == [
        "2 ranks on a CPU.",
        "process 8 measures.",
    ]


@pytest.mark.parametrize("older", ["0012"], indirect=True)
def test_upgrade_from_leases_of_queues_gives_each_study_its_own(repository: Repository) -> None:
    first, second = repository.studies.all()
    assert (first.owner, second.owner) == ("", "alice")
    states = [repository.leases.state(key_of(study.id)) for study in (first, second)]
    assert [state and (state.epoch, state.pid) for state in states] == [(3, 7), None]


@pytest.mark.parametrize("older", ["0013"], indirect=True)
def test_upgrade_from_columns_named_cluster_keeps_queue_lease_and_place(
    repository: Repository,
) -> None:
    first, second = repository.studies.all()
    assert (first.queue, second.queue) == ("host:here", "host:here alice 12ab34cd")
    assert (second.priority, second.held) == (4, True)
    state = repository.leases.state(key_of(first.id))
    assert state is not None and (state.epoch, state.pid) == (3, 7)
    assert (repository.events.of(), repository.quotas.all()) == ([], [])


@pytest.mark.parametrize("older", ["0014"], indirect=True)
def test_upgrade_from_quotas_without_weights_gives_each_owner_the_weight_one(
    repository: Repository,
) -> None:
    assert repository.quotas.all() == [Quota("alice", studies=2)]
    assert repository.quotas.weight_of("alice") == 1.0


@pytest.mark.parametrize("older", ["0017"], indirect=True)
def test_upgrade_gives_attempts_what_their_blocks_tell_of_the_run(repository: Repository) -> None:
    *others, last = repository.attempts.of(1)
    assert last.digest == RunDigest(
        steps=4,
        disturbed_share=pytest.approx(1 / 3),
        foreign_cpu=pytest.approx(0.2),
        clock_mhz=1450.0,
        watts=pytest.approx(80.0),
        sample_joules=2.0,
        step_mean=pytest.approx(0.2),
        step_median=pytest.approx(0.2),
        step_p95=0.25,
    )
    blocks = repository.attempts.blocks(last.id)
    assert run_digest(blocks) == last.digest, "as a run of today is recorded"
    assert others[1].digest == RunDigest(), "it runs"


@pytest.mark.parametrize("older", ["0017"], indirect=True)
def test_upgrade_from_choices_in_messages_keeps_the_newest(repository: Repository) -> None:
    assert repository.choices.newest_of(1) == [
        FinalistChoice(7, ChoiceReason.FINALIST, expected=1.4),
        FinalistChoice(1, ChoiceReason.REFUSED, "another loss"),
    ]
    assert repository.messages.of(1)[-1].data == {}


@pytest.mark.parametrize("older", ["0018"], indirect=True)
def test_upgrade_counts_the_device_hours_of_the_attempts_that_there_are(
    repository: Repository,
) -> None:
    found = {(row.owner, row.hour): row.device_seconds for row in usage(repository)}
    assert found == {("", 0): pytest.approx(10.5), ("alice", 1): pytest.approx(60.0)}


def usage(repository: Repository) -> Sequence[Row[Any]]:
    with repository.database.engine.connect() as connection:
        return connection.execute(select(UsageRow.__table__)).all()


@pytest.mark.parametrize("older", ["0015", "0016"], indirect=True)
def test_study_of_a_version_without_standings_has_none(repository: Repository) -> None:
    assert repository.studies.named("first").standing is None
    assert repository.quotas.weight_of("alice") == 2.0


@FROM_EACH_VERSION
def test_messages_are_told_apart_that_were_told_apart_by_their_first_word(
    repository: Repository,
) -> None:
    found = [(message.kind, message.text) for message in repository.messages.of(1)]
    assert found[:2] == [
        (MessageKind.SAID, "2 ranks on a CPU."),
        (MessageKind.WAITING, "process 8 measures."),
    ]


@FROM_EACH_VERSION
def test_the_study_goes_on(repository: Repository) -> None:
    claimed = repository.claims.take("host:here", LeaseHolder("here", 9, 60.0))
    assert claimed is not None
    lease = claimed.lease
    assert (lease.epoch, lease.predecessor) == (4, 7)
    assert claimed.study.name == "first"
    assert repository.attempts.of(1)[1].result.state == "ABANDONED"
    again = repository.attempts.begin(lease, 1, 1, {"micro_batch": 4})
    assert again.attempt == 2
    result = AttemptResult("COMPLETE", throughput=90.0)
    block = StoredBlock(0, 10, 40, 0, 0.5, [0.5], 0.0, 1.5, 1024, kept=True)
    repository.attempts.finish(lease, again.id, result, [block])
    repository.claims.record_facts(lease, 1, {"device": "cpu"})
    repository.messages.say(lease, 1, "process 10 measures.", kind=MessageKind.WAITING)
    repository.studies.request_stop("first")
    repository.studies.enqueue("first")
    assert repository.claims.stop(lease, 1) is StudyState.QUEUED
    assert repository.studies.named("first").facts == {"device": "cpu"}
    assert repository.attempts.of(1)[-1].result == result


@pytest.mark.parametrize("older", ["0019"], indirect=True)
def test_upgrade_gives_fields_knobs_and_purposes_the_names_of_today(repository: Repository) -> None:
    second = repository.studies.named("second")
    spec = as_stored(second.spec)
    assert spec.launcher == RaySection(kind="ray", address="h:1")
    assert (spec.resources.max_concurrent_trials, spec.budget.min_improvement) == (1, 0.01)
    assert (spec.objective.global_batch_size, spec.objective.batch_dependent) == ("free", "reject")
    assert spec.objective.expected_job_hours == 24
    assert spec.measurement.model_dump(exclude_unset=True) == {
        "max_measure_time": 3.0,
        "search_ci_half_width": 0.02,
        "confirm_ci_half_width": 0.01,
        "ablation_rounds": 2,
        "unverified_numerics": "reject",
        "startup_timeout": 60.0,
        "step_timeout": 20.0,
    }
    assert second.spec["workload"] == {
        "script": "train.py",
        "args": ["--loader_workers", "4"],
        "flags": {"micro_batch": "--bs", "num_workers": "--loader_workers"},
        "global_flags": ["micro_batch"],
    }
    space = {"num_workers": [0, 2], "parallelism": ["ddp", "fsdp_no_reshard"]}
    assert second.spec["search_space"] == space
    assert spec.constraints == ["num_workers < 2 or global_batch_size >= 64"]
    assert second.facts == {"device": "cpu", "world_size": 2, "global_batch_size": 64}
    *_, ablation, soak = repository.attempts.of(second.id)
    assert (ablation.purpose, soak.purpose) == (Purpose.ABLATION, Purpose.SOAK)
    assert (ablation.knobs["num_workers"], ablation.knobs["parallelism"]) == (2, "fsdp_no_reshard")
    assert soak.result.fault is Fault.INTERLEAVED
    assert repository.messages.of(second.id)[-1].data == {"cause": SearchEndCause.MIN_IMPROVEMENT}
    verdict = Verdict.from_dict(second.verdict or {})
    assert verdict.numerics is not None and verdict.numerics.unverified == "no reference"
    assert verdict.soak_failure == Failure(1, AttemptState.OOM, "no memory")
    assert (verdict.soak, verdict.unverified, verdict.unmeasured_leader) == (None, None, None)


@pytest.mark.parametrize("older", ["0019"], indirect=True)
def test_upgrade_renames_knobs_in_trials_of_optuna(older: str) -> None:
    asked = {"loader_workers": [0, 2], "parallelism": ["ddp", "fsdp_keep"]}
    before = optuna.create_study(storage=RDBStorage(older), study_name="second")
    before.enqueue_trial({"loader_workers": 2, "parallelism": "fsdp_keep"})
    for state in ("COMPLETE", None):
        trial = before.ask()
        for name, values in asked.items():
            trial.suggest_categorical(name, values)
        if state:
            before.tell(trial, 1.0)
    before.enqueue_trial({"loader_workers": 0})
    database = Database(older)
    database.upgrade()
    first, second, waiting = optuna.load_study(
        study_name="second", storage=database.optuna()
    ).trials
    assert first.params == {"num_workers": 2, "parallelism": "fsdp_no_reshard"}
    for trial in (first, second):
        assert trial.distributions["num_workers"] == CategoricalDistribution((0, 2))
        kinds = trial.distributions["parallelism"]
        assert kinds == CategoricalDistribution(("ddp", "fsdp_no_reshard"))
    assert waiting.system_attrs["fixed_params"] == {"num_workers": 0}
