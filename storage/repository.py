"""The one place that issues SQL on the `autotune_*` tables.

Whatever a daemon writes goes through `_fenced`: in the same transaction it proves that its lease is
still the newest of its cluster, so that a daemon which was stopped and came back cannot write late.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from autotune.errors import (
    BadInput,
    LeaseLost,
    StorageError,
    StorageUnreachable,
    StudyNotFound,
)
from search_spaces import defaults
from storage.database import Database
from storage.models import (
    AttemptRow,
    BlockRow,
    EnvironmentRow,
    LeaseRow,
    MessageRow,
    NoiseRow,
    RecommendationRow,
    StudyRow,
)
from storage.records import (
    AttemptResult,
    AttemptState,
    Lease,
    LeaseState,
    Purpose,
    Recommended,
    StoredAttempt,
    StoredBlock,
    StoredMessage,
    StoredNoise,
    StoredStudy,
    StudyState,
)


class Repository:
    """Studies, leases, attempts and recommendations in one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # Studies

    def submit(self, name: str, cluster: str, spec: dict[str, Any], workdir: str) -> StoredStudy:
        """Put a new study into the queue.

        Raises:
            BadInput: there is one of that name already.
        """
        try:
            with self._writing() as session:
                session.add(
                    StudyRow(
                        name=name,
                        cluster=cluster,
                        spec=spec,
                        workdir=workdir,
                        state=StudyState.QUEUED,
                        created=self._now(session),
                    )
                )
        except IntegrityError:
            raise BadInput(f"there is a study named {name!r} already") from None
        return self.study(name)

    def study(self, name: str) -> StoredStudy:
        """The study of that name.

        Raises:
            StudyNotFound: there is none.
        """
        with self._reading() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            if row is None:
                names = session.scalars(select(StudyRow.name).order_by(StudyRow.id)).all()
                there = f"there are: {', '.join(names)}" if names else "it holds none yet"
                raise StudyNotFound(f"no study {name!r} in {self.database}; {there}")
            return _study(row)

    def studies(self) -> list[StoredStudy]:
        """All studies, oldest first."""
        with self._reading() as session:
            return [_study(row) for row in session.scalars(select(StudyRow).order_by(StudyRow.id))]

    def enqueue(
        self, name: str, spec: dict[str, Any] | None = None, workdir: str | None = None
    ) -> None:
        """Have a study that has ended run on; new ones take the place of its spec and its folder."""
        new = {"spec": spec, "workdir": workdir}
        values: dict[str, Any] = {"stop_requested": False}
        values |= {column: value for column, value in new.items() if value is not None}
        with self._writing() as session:
            session.execute(update(StudyRow).where(StudyRow.name == name).values(values))
            session.execute(
                update(StudyRow)
                .where(StudyRow.name == name, StudyRow.state != StudyState.RUNNING)
                .values(state=StudyState.QUEUED, error=None)
            )

    def request_stop(self, name: str) -> None:
        """Ask the daemon to stop a study; one that no daemon runs stops at once."""
        with self._writing() as session:
            row = session.scalars(select(StudyRow).where(StudyRow.name == name)).one()
            row.stop_requested = True
            lease = session.get(LeaseRow, row.cluster, with_for_update=True)
            held = lease is not None and lease.expires > self._now(session)
            if row.state == StudyState.QUEUED or (row.state == StudyState.RUNNING and not held):
                row.state = StudyState.STOPPED
                self._abandon(session, row.id)

    # The lease of a cluster

    def acquire(self, cluster: str, host: str, pid: int, seconds: float) -> Lease | None:
        """Take the lease of a cluster if nobody holds it; None if somebody does."""
        with self._writing() as session:
            now = self._now(session)
            row = session.get(LeaseRow, cluster, with_for_update=True)
            if row is not None and row.expires > now:
                return None
            if row is None:
                row = LeaseRow(cluster=cluster, epoch=0)
            predecessor = row.pid if row.host == host else None
            row.epoch, row.host, row.pid, row.expires = row.epoch + 1, host, pid, now + seconds
            session.add(row)
            try:
                session.flush()
            except IntegrityError:
                return None  # another daemon was first to open this cluster
            return Lease(cluster, row.epoch, predecessor)

    def renew(self, lease: Lease, seconds: float) -> None:
        """Hold the lease for so many seconds from now.

        Raises:
            LeaseLost: another daemon has it.
        """
        with self._fenced(lease) as session:
            expires = self._now(session) + seconds
            session.execute(
                update(LeaseRow).where(LeaseRow.cluster == lease.cluster).values(expires=expires)
            )

    def release(self, lease: Lease) -> None:
        """Let another daemon have the lease at once."""
        with contextlib.suppress(LeaseLost):
            self.renew(lease, 0.0)

    def reclaim(self, state: LeaseState) -> None:
        """End the lease of a holder that is known to be dead; no effect if it has changed hands."""
        with self._writing() as session:
            session.execute(
                update(LeaseRow)
                .where(LeaseRow.cluster == state.cluster, LeaseRow.epoch == state.epoch)
                .values(expires=0.0)
            )

    def lease_state(self, cluster: str) -> LeaseState | None:
        """Who holds or last held the lease of a cluster; None if nobody ever did."""
        with self._reading() as session:
            row = session.get(LeaseRow, cluster)
            if row is None:
                return None
            left = row.expires - self._now(session)
            return LeaseState(row.cluster, row.epoch, row.host, row.pid, left)

    def holder(self, cluster: str) -> LeaseState | None:
        """Who holds the lease of a cluster; None if nobody does."""
        state = self.lease_state(cluster)
        return state if state is not None and state.seconds_left > 0 else None

    # What a daemon does with a study

    def claim(self, lease: Lease) -> StoredStudy | None:
        """The next study to run: one that a dead daemon left behind, else the oldest in the queue.

        Its attempts that were never recorded become ABANDONED; they are to be repeated.
        """
        with self._fenced(lease) as session:
            row = session.scalar(
                select(StudyRow)
                .where(
                    StudyRow.cluster == lease.cluster,
                    StudyRow.state.in_([StudyState.RUNNING, StudyState.QUEUED]),
                )
                .order_by(StudyRow.state.desc(), StudyRow.id)
                .limit(1)
            )
            if row is None:
                return None
            row.state = StudyState.RUNNING
            self._abandon(session, row.id)
            return _study(row)

    def _abandon(self, session: Session, study_id: int) -> None:
        session.execute(
            update(AttemptRow)
            .where(AttemptRow.study_id == study_id, AttemptRow.state == AttemptState.RUNNING)
            .values(state=AttemptState.ABANDONED, ended=self._now(session))
        )

    def begin_attempt(
        self,
        lease: Lease,
        study_id: int,
        trial: int,
        knobs: dict[str, Any],
        purpose: Purpose = Purpose.SEARCH,
        *,
        round_: int = 0,
    ) -> StoredAttempt:
        """Record that a trial is about to be launched, once more if it was before.

        Args:
            round_: of the confirmation, or of the calibration.
        """
        with self._fenced(lease) as session:
            earlier = session.scalar(
                select(func.count())
                .select_from(AttemptRow)
                .where(
                    AttemptRow.study_id == study_id,
                    AttemptRow.trial == trial,
                    AttemptRow.purpose == purpose,
                    AttemptRow.round == round_,
                )
            )
            row = AttemptRow(
                study_id=study_id,
                trial=trial,
                purpose=purpose,
                round=round_,
                attempt=(earlier or 0) + 1,
                epoch=lease.epoch,
                knobs=knobs,
                state=AttemptState.RUNNING,
                started=self._now(session),
            )
            session.add(row)
            session.flush()
            return _attempt(row)

    def finish_attempt(
        self,
        lease: Lease,
        attempt_id: int,
        result: AttemptResult,
        blocks: Sequence[StoredBlock],
        environment_id: int | None = None,
    ) -> None:
        """Record what came of an attempt, with its blocks, in one transaction.

        Raises:
            LeaseLost: the lease is gone, or the attempt was given up or recorded by another daemon.
        """
        with self._fenced(lease) as session:
            recorded = session.connection().execute(
                update(AttemptRow)
                .where(AttemptRow.id == attempt_id, AttemptRow.state == AttemptState.RUNNING)
                .values(**vars(result), environment_id=environment_id, ended=self._now(session))
            )
            if recorded.rowcount != 1:
                raise LeaseLost(f"attempt {attempt_id} is no longer this daemon's to record")
            session.add_all(BlockRow(attempt_id=attempt_id, **vars(block)) for block in blocks)

    def finish_study(
        self,
        lease: Lease,
        study_id: int,
        state: StudyState,
        *,
        verdict: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        """Record how a study ended; a verdict that is not given is left as it was."""
        values: dict[str, Any] = {"state": state, "error": error, "stop_requested": False}
        if verdict is not None:
            values["verdict"] = verdict
        with self._fenced(lease) as session:
            session.execute(update(StudyRow).where(StudyRow.id == study_id).values(values))

    def add_elapsed(self, lease: Lease, study_id: int, seconds: float) -> bool:
        """Add running time to a study; returns whether somebody has asked to stop it."""
        with self._fenced(lease) as session:
            session.execute(
                update(StudyRow)
                .where(StudyRow.id == study_id)
                .values(elapsed=StudyRow.elapsed + seconds)
            )
            stop = select(StudyRow.stop_requested).where(StudyRow.id == study_id)
            return bool(session.scalar(stop))

    def say(self, lease: Lease, study_id: int, message: str) -> None:
        """Leave a message for whoever watches the study."""
        with self._fenced(lease) as session:
            session.add(MessageRow(study_id=study_id, at=self._now(session), text=message))

    def record_environment(self, lease: Lease, body: dict[str, Any]) -> int:
        """The id of this environment, stored once."""
        canonical = json.dumps(body, sort_keys=True)
        fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
        known = select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == fingerprint)
        with contextlib.suppress(IntegrityError), self._fenced(lease) as session:
            # The daemon of another cluster may store the same one at the same time.
            if session.scalar(known) is None:
                session.add(EnvironmentRow(fingerprint=fingerprint, body=body))
        with self._reading() as session:
            return session.scalars(known).one()

    def record_noise(
        self,
        lease: Lease,
        study_id: int,
        environment_id: int,
        noise: StoredNoise,
        *,
        workload: str,
        world_size: int,
    ) -> None:
        """Keep what a study found of run-to-run noise, for itself and for later studies."""
        with self._fenced(lease) as session:
            session.add(
                NoiseRow(
                    study_id=study_id,
                    environment_id=environment_id,
                    workload=workload,
                    world_size=world_size,
                    at=self._now(session),
                    **vars(noise),
                )
            )

    def recommend(self, lease: Lease, study_id: int, trial: int, body: dict[str, Any]) -> None:
        """Keep what a study recommends, as it is exported."""
        with self._fenced(lease) as session:
            session.add(
                RecommendationRow(
                    study_id=study_id, trial=trial, body=body, created=self._now(session)
                )
            )

    # What people and reports read

    def attempts(self, study_id: int) -> list[StoredAttempt]:
        """All attempts of a study, in the order in which they were started."""
        with self._reading() as session:
            rows = session.scalars(
                select(AttemptRow).where(AttemptRow.study_id == study_id).order_by(AttemptRow.id)
            )
            return [_attempt(row) for row in rows]

    def blocks(self, attempt_id: int) -> list[StoredBlock]:
        """The timed blocks of an attempt, in order."""
        with self._reading() as session:
            rows = session.scalars(
                select(BlockRow).where(BlockRow.attempt_id == attempt_id).order_by(BlockRow.index)
            )
            return [_block(row) for row in rows]

    def environment_of(self, attempt_id: int) -> dict[str, Any] | None:
        """Where an attempt ran; None while it has not ended."""
        with self._reading() as session:
            return session.scalar(
                select(EnvironmentRow.body)
                .join(AttemptRow, AttemptRow.environment_id == EnvironmentRow.id)
                .where(AttemptRow.id == attempt_id)
            )

    def noise_before(
        self, study_id: int, environment_id: int, *, workload: str, world_size: int
    ) -> StoredNoise | None:
        """The newest that other studies found of run-to-run noise in this environment."""
        with self._reading() as session:
            row = session.scalar(
                select(NoiseRow)
                .where(
                    NoiseRow.study_id != study_id,
                    NoiseRow.environment_id == environment_id,
                    NoiseRow.workload == workload,
                    NoiseRow.world_size == world_size,
                )
                .order_by(NoiseRow.id.desc())
                .limit(1)
            )
            return _noise(row) if row else None

    def noise_of(self, study_id: int) -> StoredNoise | None:
        """The newest that a study itself found of run-to-run noise; None if nothing."""
        with self._reading() as session:
            row = session.scalar(
                select(NoiseRow)
                .where(NoiseRow.study_id == study_id)
                .order_by(NoiseRow.id.desc())
                .limit(1)
            )
            return _noise(row) if row else None

    def messages(self, study_id: int, after: int = 0) -> list[StoredMessage]:
        """The messages of a study that are newer than number `after`."""
        with self._reading() as session:
            rows = session.scalars(
                select(MessageRow)
                .where(MessageRow.study_id == study_id, MessageRow.id > after)
                .order_by(MessageRow.id)
            )
            return [StoredMessage(row.id, row.at, row.text) for row in rows]

    def recommendation(self, study_id: int) -> dict[str, Any] | None:
        """The newest recommendation of a study; None if it has none yet."""
        with self._reading() as session:
            return session.scalar(
                select(RecommendationRow.body)
                .where(RecommendationRow.study_id == study_id)
                .order_by(RecommendationRow.id.desc())
                .limit(1)
            )

    def recommended_by_others(self, study_id: int) -> list[Recommended]:
        """What all other studies have recommended, the newest first."""
        with self._reading() as session:
            rows = session.execute(
                select(StudyRow.name, StudyRow.spec, RecommendationRow.body)
                .join(StudyRow, StudyRow.id == RecommendationRow.study_id)
                .where(StudyRow.id != study_id)
                .order_by(RecommendationRow.id.desc())
            )
            return [Recommended(*row) for row in rows]

    # Transactions

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Session]:
        with self._failing_clearly(), Session(self.database.engine) as session:
            yield session

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Session]:
        with (
            self._failing_clearly(),
            self.database.writing() as connection,
            _session(connection) as session,
        ):
            yield session
            session.flush()

    @contextlib.contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            gone = isinstance(error, OperationalError | InterfaceError)
            kind = StorageUnreachable if gone or error.connection_invalidated else StorageError
            raise kind(f"storage {self.database}: {self.database.reason(error)}") from error

    @contextlib.contextmanager
    def _fenced(self, lease: Lease) -> Iterator[Session]:
        with self._writing() as session:
            # A write, not a read: it locks the row until this transaction ends.
            proof = session.connection().execute(
                update(LeaseRow)
                .where(LeaseRow.cluster == lease.cluster, LeaseRow.epoch == lease.epoch)
                .values(epoch=lease.epoch)
            )
            if proof.rowcount != 1:
                raise LeaseLost(
                    f"another daemon has taken over {lease.cluster}; this one writes no more"
                )
            yield session

    def _now(self, session: Session) -> float:
        return float(session.scalar(text(f"select {self.database.now()}")))


def _session(connection: Connection) -> Session:
    return Session(connection, expire_on_commit=False)


def _study(row: StudyRow) -> StoredStudy:
    return StoredStudy(
        id=row.id,
        name=row.name,
        cluster=row.cluster,
        spec=row.spec,
        workdir=row.workdir,
        state=StudyState(row.state),
        stop_requested=row.stop_requested,
        error=row.error,
        verdict=row.verdict,
        elapsed=row.elapsed,
        created=row.created,
    )


def _attempt(row: AttemptRow) -> StoredAttempt:
    return StoredAttempt(
        id=row.id,
        trial=row.trial,
        purpose=Purpose(row.purpose),
        round=row.round,
        attempt=row.attempt,
        # A knob that is newer than the row was at its default then: what a plain script does.
        knobs={**defaults(), **row.knobs},
        started=row.started,
        ended=row.ended,
        result=AttemptResult(
            state=AttemptState(row.state),
            cause=row.cause or "",
            log_tail=row.log_tail or "",
            throughput=row.throughput,
            half_width=row.half_width,
            block_half_width=row.block_half_width,
            sigma_run=row.sigma_run,
            contended=bool(row.contended),
            steady=bool(row.steady) if row.steady is not None else True,
            peak_bytes=row.peak_bytes or 0,
            wall_seconds=row.wall_seconds or 0.0,
        ),
    )


def _noise(row: NoiseRow) -> StoredNoise:
    return StoredNoise(row.sigma_run, row.runs, row.drift_per_hour)


def _block(row: BlockRow) -> StoredBlock:
    return StoredBlock(
        index=row.index,
        steps=row.steps,
        samples=row.samples,
        tokens=row.tokens,
        seconds=row.seconds,
        rank_seconds=row.rank_seconds,
        wait_seconds=row.wait_seconds,
        loss=row.loss,
        peak_bytes=row.peak_bytes,
        kept=row.kept,
        contended=bool(row.contended),
        observed=row.observed or {},
    )
