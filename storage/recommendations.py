"""Recommendations of studies."""

from typing import Any

from sqlalchemy import select

from storage.models import RecommendationRow, StudyRow
from storage.records import Lease, Recommended
from storage.transactions import Transactions

_NEWEST = 500
"""Recommendations that a study looks at when it begins: reading thousands would take seconds."""


class Recommendations:
    """Recommendations of all studies, as they are exported.

    A study that is continued adds another.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(self, lease: Lease, study_id: int, trial: int, body: dict[str, Any]) -> None:
        """Store a recommendation of a study, as it is exported."""
        with self._transactions.fenced(lease) as session:
            created = self._transactions.now(session)
            session.add(
                RecommendationRow(study_id=study_id, trial=trial, body=body, created=created)
            )

    def newest_of(self, study_id: int) -> dict[str, Any] | None:
        """Return the newest recommendation of a study; None if it has none yet."""
        with self._transactions.reading() as session:
            return session.scalar(
                select(RecommendationRow.body)
                .where(RecommendationRow.study_id == study_id)
                .order_by(RecommendationRow.id.desc())
                .limit(1)
            )

    def of_others(self, study_id: int) -> list[Recommended]:
        """Return the newest recommendations of other studies, the newest first."""
        with self._transactions.reading() as session:
            rows = session.execute(
                select(StudyRow.name, StudyRow.spec, RecommendationRow.body)
                .join(StudyRow, StudyRow.id == RecommendationRow.study_id)
                .where(StudyRow.id != study_id)
                .order_by(RecommendationRow.id.desc())
                .limit(_NEWEST)
            )
            return [Recommended(*row) for row in rows]
