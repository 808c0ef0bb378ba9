"""Choices of finalists: which trials were measured again, which were not, and why."""

from collections.abc import Sequence

from sqlalchemy import func, select

from storage.models import ChoiceRow, record_of
from storage.records import ChoiceReason, FinalistChoice, Lease
from storage.transactions import Transactions


class Choices:
    """Choices of all studies.

    A study whose finalists change, or that is continued, chooses again; earlier choices stay.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(self, lease: Lease, study_id: int, several: Sequence[FinalistChoice]) -> None:
        """Store the next choice of a study, all of its trials in one transaction."""
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            own = ChoiceRow.study_id == study_id
            number = (session.scalar(select(func.max(ChoiceRow.choice)).where(own)) or 0) + 1
            session.add_all(
                ChoiceRow(study_id=study_id, choice=number, at=at, **vars(one)) for one in several
            )

    def newest_of(self, study_id: int) -> list[FinalistChoice]:
        """Return the newest choice of a study, in its order; empty if it has not chosen."""
        own = ChoiceRow.study_id == study_id
        newest = select(func.max(ChoiceRow.choice)).where(own).scalar_subquery()
        wanted = select(ChoiceRow).where(own, ChoiceRow.choice == newest).order_by(ChoiceRow.id)
        with self._transactions.reading() as session:
            return [
                record_of(FinalistChoice, row, reason=ChoiceReason(row.reason))
                for row in session.scalars(wanted)
            ]
