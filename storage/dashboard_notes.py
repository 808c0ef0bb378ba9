"""Notes of optuna-dashboard on a study and its trials."""

import json
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.storages._rdb.models import StudySystemAttributeModel
from optuna.trial import Trial
from sqlalchemy import select

from storage.database import Database


def save_note(
    database: Database, study: optuna.Study, body: str, trial: Trial | None = None
) -> None:
    """Write the note of a study or of one of its trials; do nothing without optuna-dashboard.

    Args:
        database: where the study is stored.
        body: text of the note, in Markdown.
        trial: the trial, which may have ended; None: the note is that of the study.
    """
    try:
        import optuna_dashboard
    except ModuleNotFoundError:
        return
    number = None if trial is None else trial._trial_id
    prefix = "dashboard:" if number is None else f"dashboard:{number}:"
    storage = _AttributesOfANote(database, study._storage, f"{prefix}note_")
    optuna_dashboard.save_note(_Noted(study, storage, number), body)


@dataclass(frozen=True)
class _AttributesOfANote:
    """Optuna storage as a note needs it, which reads the attributes of this note alone.

    The notes of all trials are attributes of one study, and Optuna reads all attributes at once.
    """

    database: Database
    storage: optuna.storages.BaseStorage
    prefix: str

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the attributes of the note by name."""
        rows = StudySystemAttributeModel
        wanted = select(rows.key, rows.value_json).where(
            rows.study_id == study_id, rows.key.startswith(self.prefix, autoescape=True)
        )
        with self.database.engine.connect() as connection:
            return {key: json.loads(value) for key, value in connection.execute(wanted)}

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Write an attribute as Optuna does."""
        self.storage.set_study_system_attr(study_id, key, value)


@dataclass(frozen=True)
class _Noted:
    """Owner of a note, as far as optuna-dashboard asks for it: like a trial."""

    study: optuna.Study
    storage: _AttributesOfANote
    _trial_id: int | None
