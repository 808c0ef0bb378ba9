"""A whole study over a replaying launcher: a real database, daemon, session and tuner, no rank."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import update

from autotune.config import load
from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from autotune.service.submission import submit
from autotune.worker.protocol import Knobs
from launchers.replay import Behaviour, ReplayLauncher
from launchers.replay.behaviours import running_at
from storage import Database, Repository, StoredAttempt
from storage.models import StudyRow
from tests.support.records import Records, end_lease
from tests.support.steering import write_study

SPACE: dict[str, list[Any]] = {"micro_batch": [1, 2, 4, 8, 16], "accumulation_steps": [1, 2]}
MEASUREMENT = {
    "block_seconds": 1.0,
    "min_steps": 2,
    "warmup": 1.0,
    "max_measure_time": 5.0,
    "baseline_runs": 1,
    "finalists": 2,
    "rounds": 3,
    "ablation_rounds": 0,
    "startup_timeout": 60,
    "step_timeout": 20,
}


def rate(knobs: Knobs) -> float:
    """Samples per second of a step of fixed and proportional parts; the larger, the better."""
    samples = knobs["micro_batch"] * knobs["accumulation_steps"]
    return 100.0 * samples / (samples + 2.0 * knobs["accumulation_steps"] + 3.0)


PLAIN = running_at(rate)


@dataclasses.dataclass
class Machine:
    """What a launcher is opened over, each time that a daemon opens one."""

    behaviour: Behaviour = PLAIN
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    opened: list[ReplayLauncher] = dataclasses.field(default_factory=list)

    def open(self, *_: object) -> ReplayLauncher:
        self.opened.append(ReplayLauncher(self.behaviour, **self.options))
        return self.opened[-1]


class Replayed(Records):
    """A study in a folder, and the machine that it runs on."""

    def __init__(self, folder: Path, database: Database, name: str = "played") -> None:
        super().__init__(database.url.render_as_string(hide_password=False), name)
        self.folder = folder
        self.machine = Machine()
        self.repository = Repository(database)

    def on(self, behaviour: Behaviour, **options: Any) -> "Replayed":
        """Launches come to this from now on; options are the launcher's."""
        self.machine = Machine(behaviour, options)
        return self

    def submit(self, **changes: Any) -> None:
        """Put the study into the queue; `measurement` changes single fields, all else whole sections."""
        measurement = {**MEASUREMENT, **changes.pop("measurement", {})}
        defaults = {"search_space": SPACE, "baseline": {"micro_batch": 2}, "sampler": "random"}
        given = {**defaults, "name": self.name, "storage": self.url, **changes}
        path = write_study(self.folder, measurement=measurement, **given)
        submit(self.repository, load(path), self.folder)

    def serve(self) -> None:
        """Have a new daemon run what is in the queue."""
        repository = Repository(self.repository.database)  # which keeps nothing but connections
        daemon = Daemon(repository, this_queue(), open_launcher=self.machine.open)
        daemon.serve(idle_seconds=0.0)

    def run(self, **changes: Any) -> dict[str, Any]:
        """Submit and serve; the verdict, as it is stored."""
        self.submit(**changes)
        self.serve()
        return self.verdict

    def run_once(self, name: str, **changes: Any) -> None:
        """Submit and serve a study, or copy the records of the run that had this name.

        The machine is the same in all runs of a name.
        """
        database = self.repository.database
        path = Path(str(database.url.database))
        kept = path.with_suffix(f".{name}")
        if not kept.exists():
            self.run(**changes)
        for engine in (database.engine, database.optuna().engine):
            engine.dispose()
        if not kept.exists():
            shutil.copy(path, kept)
            return
        shutil.copy(kept, path)
        with database.writing() as connection:
            connection.execute(update(StudyRow).values(workdir=str(self.folder)))

    def run_until_it_fails(self, **changes: Any) -> None:
        """Submit and serve a study that ends without a verdict."""
        self.submit(**changes)
        self.serve()

    def trials_of_optuna(self) -> optuna.Study:
        """Return the study as Optuna has it."""
        return optuna.load_study(study_name=self.name, storage=self.repository.database.optuna())

    @property
    def verdict(self) -> dict[str, Any]:
        study = self.study()
        assert study.verdict is not None, f"{study.state}: {study.error}"
        return study.verdict

    @property
    def seconds(self) -> float:
        """Virtual ones, of the last launcher."""
        return self.machine.opened[-1].clock()

    def said(self) -> str:
        """All messages."""
        found = self.repository.messages.of(self.study().id)
        return "\n".join(message.text for message in found)

    def states(self, purpose: str = "search") -> list[str]:
        """Of the attempts for one purpose, in order."""
        return [attempt.result.state for attempt in self.attempts(purpose)]

    def bury_daemon(self) -> None:
        """End the leases of a daemon that is dead."""
        for lease in self.leases():
            end_lease(self.repository, lease)


def configuration(attempt: StoredAttempt) -> tuple[int, int]:
    """What varies in SPACE."""
    return attempt.knobs["micro_batch"], attempt.knobs["accumulation_steps"]
