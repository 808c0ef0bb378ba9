"""Messages of daemons about their studies."""

from sqlalchemy import select, update

from storage.models import MessageRow
from storage.records import Lease, MessageCode, MessageKind, NewMessage, StoredMessage
from storage.transactions import Transactions


class Messages:
    """Messages of all studies, in the order in which they were sent."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def say(
        self,
        lease: Lease,
        study_id: int,
        message: str | NewMessage,
        *,
        kind: MessageKind = MessageKind.SAID,
    ) -> None:
        """Store a message for the readers of a study's log."""
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            said = vars(NewMessage.of(message))
            session.add(MessageRow(study_id=study_id, at=at, kind=kind, **said))

    def set_status(self, lease: Lease, study_id: int, text: str) -> None:
        """Replace the study's status message: how far the running attempts have come."""
        kind = MessageKind.DOING
        with self._transactions.fenced(lease) as session:
            at = self._transactions.now(session)
            own = (MessageRow.study_id == study_id, MessageRow.kind == kind)
            written = session.connection().execute(
                update(MessageRow).where(*own).values(at=at, text=text)
            )
            if not written.rowcount:
                session.add(MessageRow(study_id=study_id, at=at, kind=kind, text=text))

    def status(self, study_id: int) -> StoredMessage | None:
        """Return the latest status message; None if there is none."""
        kind = MessageKind.DOING
        with self._transactions.reading() as session:
            row = session.scalar(
                select(MessageRow).where(MessageRow.study_id == study_id, MessageRow.kind == kind)
            )
            return StoredMessage(row.id, row.at, row.text, kind) if row else None

    def last(self, study_id: int) -> StoredMessage | None:
        """Return the newest message of a study that is no status message; None if there is none."""
        wanted = select(MessageRow).where(
            MessageRow.study_id == study_id, MessageRow.kind != MessageKind.DOING
        )
        with self._transactions.reading() as session:
            row = session.scalar(wanted.order_by(MessageRow.id.desc()).limit(1))
            return _message(row) if row else None

    def of(self, study_id: int, after: int = 0) -> list[StoredMessage]:
        """Return the messages of a study that are newer than `after`, without status messages."""
        with self._transactions.reading() as session:
            rows = session.scalars(
                select(MessageRow)
                .where(
                    MessageRow.study_id == study_id,
                    MessageRow.id > after,
                    MessageRow.kind != MessageKind.DOING,
                )
                .order_by(MessageRow.id)
            )
            return [_message(row) for row in rows]


def _message(row: MessageRow) -> StoredMessage:
    kind, code = MessageKind(row.kind), MessageCode(row.code)
    return StoredMessage(row.id, row.at, row.text, kind, code, row.data or {})
