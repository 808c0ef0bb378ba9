"""Environments in which figures were measured, and the run-to-run noise found there."""

import contextlib
import hashlib
import json
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.exc import IntegrityError

from storage.models import AttemptRow, EnvironmentRow, NoiseRow
from storage.records import Lease, StoredNoise
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
            # Another daemon may store the same one at the same time.
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


class NoiseRecords:
    """Run-to-run noise of studies, for the study that found it and for later ones."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def record(
        self,
        lease: Lease,
        study_id: int,
        environment_id: int,
        noise: StoredNoise,
        *,
        workload: str,
        world_size: int,
    ) -> None:
        """Store the run-to-run noise that a study found, for itself and for later studies."""
        with self._transactions.fenced(lease) as session:
            session.add(
                NoiseRow(
                    study_id=study_id,
                    environment_id=environment_id,
                    workload=workload,
                    world_size=world_size,
                    at=self._transactions.now(session),
                    **vars(noise),
                )
            )

    def of(self, study_id: int) -> StoredNoise | None:
        """Return the newest noise that a study itself found; None if there is none."""
        return self._newest(NoiseRow.study_id == study_id)

    def of_others(
        self, study_id: int, environment_id: int, *, workload: str, world_size: int
    ) -> StoredNoise | None:
        """Return the newest noise that other studies found in this environment; None if none."""
        return self._newest(
            NoiseRow.study_id != study_id,
            NoiseRow.environment_id == environment_id,
            NoiseRow.workload == workload,
            NoiseRow.world_size == world_size,
        )

    def _newest(self, *conditions: ColumnElement[bool]) -> StoredNoise | None:
        with self._transactions.reading() as session:
            row = session.scalar(
                select(NoiseRow).where(*conditions).order_by(NoiseRow.id.desc()).limit(1)
            )
            return StoredNoise(row.sigma_run, row.runs, row.drift_per_hour) if row else None
