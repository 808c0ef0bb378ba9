"""Environments in which figures were measured."""

import contextlib
import hashlib
import json
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from storage.models import AttemptRow, EnvironmentRow
from storage.records import Lease
from storage.transactions import Transactions


class Environments:
    """Machines with their software, each stored once."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(self, lease: Lease, body: dict[str, Any]) -> int:
        """Store an environment unless it is stored already; return its id."""
        canonical = json.dumps(body, sort_keys=True)
        fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
        known = select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == fingerprint)
        with contextlib.suppress(IntegrityError), self._transactions.fenced(lease) as session:
            # The daemon of another cluster may store the same one at the same time.
            if session.scalar(known) is None:
                session.add(EnvironmentRow(fingerprint=fingerprint, body=body))
        with self._transactions.reading() as session:
            return session.scalars(known).one()

    def of_attempt(self, attempt_id: int) -> dict[str, Any] | None:
        """Return the environment of an attempt; None while the attempt has not ended."""
        with self._transactions.reading() as session:
            return session.scalar(
                select(EnvironmentRow.body)
                .join(AttemptRow, AttemptRow.environment_id == EnvironmentRow.id)
                .where(AttemptRow.id == attempt_id)
            )
