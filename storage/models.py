"""The `autotune_*` tables, with column types for any text, JSON and number of a training run."""

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class AnyText(TypeDecorator[str]):
    """Text of any characters.

    NUL and broken surrogates, which PostgreSQL refuses, are escaped.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Convert a value for the database."""
        if value is None:
            return None
        return value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


class AnyJson(TypeDecorator[Any]):
    """JSON in a text column.

    PostgreSQL's JSON type has no infinity, which an interval without bound needs.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert a value for the database."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Convert a value from the database."""
        return None if value is None else json.loads(value)


class AnyFloat(TypeDecorator[float]):
    """A number that may be NaN: SQLite stores NaN as NULL, and this type converts it back."""

    impl = Float
    cache_ok = True

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        """Convert a value from the database."""
        return math.nan if value is None else value


class Base(DeclarativeBase):
    """Base of our own tables, which a prefix keeps apart from Optuna's."""


Record = TypeVar("Record", bound="DataclassInstance")


def record_of(made: type[Record], row: Base, **converted: Any) -> Record:
    """Return a record with the values of the columns that have the names of its fields.

    Args:
        made: class of the record.
        converted: fields whose value is not that of a column.
    """
    names = {field.name for field in dataclasses.fields(made)} - converted.keys()
    return made(**{name: getattr(row, name) for name in names}, **converted)


class LeaseRow(Base):
    """Lease of a study: at most one daemon runs it, and each of its writes proves the lease.

    Queues have one as well, by which it is known that a daemon serves them, and so have processes that
    wait for a single study.
    """

    __tablename__ = "autotune_lease"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)  # see storage.leases
    epoch: Mapped[int] = mapped_column(Integer)  # grows by one with each holder, never shrinks
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int] = mapped_column(Integer)
    started: Mapped[int | None] = mapped_column(BigInteger)  # see storage.host
    expires: Mapped[float] = mapped_column(Float)  # database time
    token: Mapped[str | None] = mapped_column(String(32))  # identifies this holder
    boot: Mapped[str | None] = mapped_column(String(64))  # see storage.host
    boot_expires: Mapped[float | None] = mapped_column(Float)


class StudyRow(Base):
    """Queue entry and progress of a study. Its trials are in Optuna's study of that name."""

    __tablename__ = "autotune_study"
    # All that the order of a queue goes by: the rows themselves are long.
    __table_args__ = (
        Index(
            "ix_autotune_study_order",
            *("state", "queue", "held", "retry_at", "priority", "owner", "id"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    queue: Mapped[str] = mapped_column(String(255))
    spec: Mapped[dict[str, Any]] = mapped_column(AnyJson)  # see autotune.config.secrets_withheld
    workdir: Mapped[str] = mapped_column(Text)
    file: Mapped[str | None] = mapped_column(Text)  # study.yaml: what `spec` does not hold
    state: Mapped[str] = mapped_column(String(16))
    stop_requested: Mapped[bool] = mapped_column(default=False)
    resume_requested: Mapped[bool] = mapped_column(default=False)  # once it has stopped
    error: Mapped[str | None] = mapped_column(AnyText)
    verdict: Mapped[dict[str, Any] | None] = mapped_column(AnyJson)
    facts: Mapped[dict[str, Any] | None] = mapped_column(AnyJson)  # search_spaces.Facts
    slots: Mapped[dict[str, Any] | None] = mapped_column(AnyJson)  # storage.records.SlotHealth
    standing: Mapped[dict[str, Any] | None] = mapped_column(AnyJson)  # figures, with their basis
    search_ended: Mapped[str | None] = mapped_column(AnyText)  # why; None while it goes on
    elapsed: Mapped[float] = mapped_column(Float, default=0.0)  # seconds that a daemon ran it
    retry_at: Mapped[float | None] = mapped_column(Float)  # not before; database time
    retries: Mapped[int] = mapped_column(Integer, default=0)  # that failed, in a row
    created: Mapped[float] = mapped_column(Float)
    owner: Mapped[str] = mapped_column(String(255), default="", server_default="")
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    held: Mapped[bool] = mapped_column(default=False, server_default=false())


class EnvironmentRow(Base):
    """Environment in which figures were measured, stored once per fingerprint."""

    __tablename__ = "autotune_environment"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    body: Mapped[dict[str, Any]] = mapped_column(AnyJson)


class AttemptRow(Base):
    """Execution of a trial, written once as RUNNING and once with its result, both under the lease."""

    __tablename__ = "autotune_attempt"
    __table_args__ = (UniqueConstraint("study_id", "trial", "purpose", "round", "attempt"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id"), index=True)
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("autotune_environment.id"))
    trial: Mapped[int] = mapped_column(Integer)  # Optuna's trial number
    purpose: Mapped[str] = mapped_column(String(16))  # storage.records.Purpose
    round: Mapped[int] = mapped_column(Integer)  # round, seed or trial: StoredAttempt.round
    attempt: Mapped[int] = mapped_column(Integer)  # from 1
    epoch: Mapped[int] = mapped_column(Integer)  # epoch of its lease
    knobs: Mapped[dict[str, Any]] = mapped_column(AnyJson)
    state: Mapped[str] = mapped_column(String(16))
    cause: Mapped[str] = mapped_column(AnyText, default="")
    log_tail: Mapped[str] = mapped_column(AnyText, default="")
    throughput: Mapped[float | None] = mapped_column(Float)
    raw_throughput: Mapped[float | None] = mapped_column(Float)  # storage.records.AttemptResult
    ratio: Mapped[float | None] = mapped_column(Float)  # over the baseline interleaved with it
    half_width: Mapped[float | None] = mapped_column(Float)  # blocks and runs together
    block_half_width: Mapped[float | None] = mapped_column(Float)  # blocks alone
    block_freedom: Mapped[float | None] = mapped_column(
        Float
    )  # degrees of freedom of Student's t in it
    sigma_run: Mapped[float | None] = mapped_column(Float)  # estimate at that time
    contended: Mapped[bool] = mapped_column(default=False)
    steady: Mapped[bool] = mapped_column(default=True)
    peak_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    wall_seconds: Mapped[float] = mapped_column(Float, default=0.0)
    resident_of: Mapped[int | None] = mapped_column(Integer)  # id of the attempt that launched it
    fault: Mapped[str] = mapped_column(String(16), default="trial", server_default="trial")
    started: Mapped[float] = mapped_column(Float)
    ended: Mapped[float | None] = mapped_column(Float)
    # By the blocks that count: storage.records.RunDigest.
    steps: Mapped[int | None] = mapped_column(Integer)
    disturbed_share: Mapped[float | None] = mapped_column(Float)
    foreign_cpu: Mapped[float | None] = mapped_column(Float)
    clock_mhz: Mapped[float | None] = mapped_column(Float)
    watts: Mapped[float | None] = mapped_column(Float)
    sample_joules: Mapped[float | None] = mapped_column(Float)
    step_mean: Mapped[float | None] = mapped_column(Float)
    step_median: Mapped[float | None] = mapped_column(Float)
    step_p95: Mapped[float | None] = mapped_column(Float)
    step_correlation: Mapped[float | None] = mapped_column(Float)


class ChoiceRow(Base):
    """Decision whether a trial is measured again. A study may choose several times."""

    __tablename__ = "autotune_choice"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id"), index=True)
    choice: Mapped[int] = mapped_column(Integer)  # from 1, in each study
    at: Mapped[float] = mapped_column(Float)
    trial: Mapped[int] = mapped_column(Integer)
    reason: Mapped[str] = mapped_column(String(16))  # storage.records.ChoiceReason
    detail: Mapped[str] = mapped_column(AnyText)
    expected: Mapped[float | None] = mapped_column(Float)  # ratio of rates over the baseline
    expected_low: Mapped[float | None] = mapped_column(Float)
    expected_high: Mapped[float | None] = mapped_column(Float)


class BlockRow(Base):
    """Timed block of an attempt, so that every figure can be computed again."""

    __tablename__ = "autotune_block"

    attempt_id: Mapped[int] = mapped_column(ForeignKey("autotune_attempt.id"), primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True)
    steps: Mapped[int] = mapped_column(Integer)
    samples: Mapped[int] = mapped_column(BigInteger)
    tokens: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float] = mapped_column(AnyFloat, nullable=True)
    rank_seconds: Mapped[list[float]] = mapped_column(AnyJson)
    wait_seconds: Mapped[float] = mapped_column(AnyFloat, nullable=True)
    loss: Mapped[float] = mapped_column(AnyFloat, nullable=True)
    peak_bytes: Mapped[int] = mapped_column(BigInteger)
    kept: Mapped[bool] = mapped_column()
    contended: Mapped[bool] = mapped_column(default=False)
    observed: Mapped[dict[str, Any]] = mapped_column(AnyJson)


class NoiseRow(Base):
    """Run-to-run noise of one configuration, as a study found it."""

    __tablename__ = "autotune_noise"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("autotune_environment.id"), index=True)
    workload: Mapped[str] = mapped_column(String(255))  # its name, a digest of its arguments
    world_size: Mapped[int] = mapped_column(Integer)
    sigma_run: Mapped[float] = mapped_column(Float)  # relative standard deviation
    runs: Mapped[int] = mapped_column(Integer)
    drift_per_hour: Mapped[float | None] = mapped_column(Float)  # relative
    at: Mapped[float] = mapped_column(Float)


class MessageRow(Base):
    """Message of the daemon about a study, in order."""

    __tablename__ = "autotune_message"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id"), index=True)
    at: Mapped[float] = mapped_column(Float)
    kind: Mapped[str] = mapped_column(String(16))  # storage.records.MessageKind
    text: Mapped[str] = mapped_column(AnyText)
    code: Mapped[str] = mapped_column(String(32), default="", server_default="")
    data: Mapped[dict[str, Any] | None] = mapped_column(AnyJson)  # what the text says, by name


class EventRow(Base):
    """Change of a study's state, written with it. It outlives the study."""

    __tablename__ = "autotune_event"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float)
    study_id: Mapped[int] = mapped_column(Integer)
    study: Mapped[str] = mapped_column(String(255), index=True)
    account: Mapped[str] = mapped_column(String(255))
    role: Mapped[str | None] = mapped_column(String(255))  # session user of PostgreSQL
    host: Mapped[str] = mapped_column(String(255))
    version: Mapped[str] = mapped_column(String(64))
    command: Mapped[str] = mapped_column(String(64))
    what: Mapped[str] = mapped_column(String(32))  # storage.records.EventKind
    detail: Mapped[str] = mapped_column(AnyText)


class QuotaRow(Base):
    """Limit of what the studies of an owner may take, and the owner's weight; NULL is none."""

    __tablename__ = "autotune_quota"

    owner: Mapped[str] = mapped_column(String(255), primary_key=True)
    studies: Mapped[int | None] = mapped_column(Integer)  # that run at a time
    device_hours: Mapped[float | None] = mapped_column(Float)
    days: Mapped[float] = mapped_column(Float)  # to which the device hours apply
    weight: Mapped[float | None] = mapped_column(Float)  # on a cluster, relative to other owners


class UsageRow(Base):
    """Time on devices that the attempts of an owner took which ended in an hour.

    It outlives the studies.
    """

    __tablename__ = "autotune_usage"

    owner: Mapped[str] = mapped_column(String(255), primary_key=True)
    hour: Mapped[int] = mapped_column(Integer, primary_key=True)  # since the epoch; database time
    device_seconds: Mapped[float] = mapped_column(Float)


class RecommendationRow(Base):
    """Recommendation of a study, as exported. A study that is continued adds another row."""

    __tablename__ = "autotune_recommendation"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id"), index=True)
    trial: Mapped[int] = mapped_column(Integer)
    body: Mapped[dict[str, Any]] = mapped_column(AnyJson)
    created: Mapped[float] = mapped_column(Float)
