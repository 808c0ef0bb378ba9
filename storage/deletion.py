"""Deletion of a study with everything that is stored about it, in one transaction."""

from optuna.storages._rdb.models import StudyModel
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from storage.models import (
    AttemptRow,
    BlockRow,
    MessageRow,
    NoiseRow,
    RecommendationRow,
    StudyRow,
)


def delete_study(session: Session, row: StudyRow) -> None:
    """Delete a study with its attempts, trials, messages, noise and recommendations."""
    own = select(AttemptRow.id).where(AttemptRow.study_id == row.id)
    session.execute(delete(BlockRow).where(BlockRow.attempt_id.in_(own)))
    for kept in (AttemptRow, MessageRow, NoiseRow, RecommendationRow):
        session.execute(delete(kept).where(kept.study_id == row.id))
    trials = StudyModel.find_by_name(row.name, session)
    if trials is not None:  # they may have been deleted in the dashboard
        session.delete(trials)
    session.delete(row)
