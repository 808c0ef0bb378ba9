"""What daemons have to say about their studies."""

from sqlalchemy import select, update

from storage.models import MessageRow
from storage.records import Lease, MessageKind, StoredMessage
from storage.transactions import Transactions


class Messages:
    """Messages of all studies, in the order in which they were said."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def say(
        self, lease: Lease, study_id: int, text: str, *, kind: MessageKind = MessageKind.SAID
    ) -> None:
        """Leave a message for whoever watches the study."""
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            session.add(MessageRow(study_id=study_id, at=at, kind=kind, text=text))

    def set_status(
        self, lease: Lease, study_id: int, text: str, *, kind: MessageKind = MessageKind.DOING
    ) -> None:
        """Say how far what runs has come, or how many slots can work, in the place of what was said of
        that before."""
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            own = (MessageRow.study_id == study_id, MessageRow.kind == kind)
            written = session.connection().execute(
                update(MessageRow).where(*own).values(at=at, text=text)
            )
            if not written.rowcount:
                session.add(MessageRow(study_id=study_id, at=at, kind=kind, text=text))

    def status(self, study_id: int, kind: MessageKind = MessageKind.DOING) -> StoredMessage | None:
        """What `doing` has said last; None if nothing."""
        with self._transactions.reading() as session:
            row = session.scalar(
                select(MessageRow).where(MessageRow.study_id == study_id, MessageRow.kind == kind)
            )
            return StoredMessage(row.id, row.at, row.text, kind) if row else None

    def of(self, study_id: int, after: int = 0) -> list[StoredMessage]:
        """The messages of a study that are newer than number `after`; what `doing` says is none of
        them."""
        with self._transactions.reading() as session:
            rows = session.scalars(
                select(MessageRow)
                .where(
                    MessageRow.study_id == study_id,
                    MessageRow.id > after,
                    MessageRow.kind.not_in([MessageKind.DOING, MessageKind.SLOTS]),
                )
                .order_by(MessageRow.id)
            )
            return [StoredMessage(row.id, row.at, row.text, MessageKind(row.kind)) for row in rows]
