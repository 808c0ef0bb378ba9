"""Persistence: Optuna's tables for the trials, `autotune_*` tables for everything else."""

from storage.attempts import AttemptFeed
from storage.database import Database
from storage.history import Attempts
from storage.names import study_names
from storage.records import (
    DAEMON_DIED,
    NOT_ITS_OWN,
    TRAJECTORIES,
    UNTIMED,
    AttemptResult,
    AttemptState,
    Lease,
    LeaseState,
    MessageKind,
    Purpose,
    Recommended,
    Retry,
    StoredAttempt,
    StoredBlock,
    StoredMessage,
    StoredNoise,
    StoredStudy,
    StudyState,
    Summary,
)
from storage.repository import Repository
from storage.trials import TrialLedger

__all__ = [
    "DAEMON_DIED",
    "NOT_ITS_OWN",
    "TRAJECTORIES",
    "UNTIMED",
    "AttemptFeed",
    "AttemptResult",
    "AttemptState",
    "Attempts",
    "Database",
    "Lease",
    "LeaseState",
    "MessageKind",
    "Purpose",
    "Recommended",
    "Repository",
    "Retry",
    "StoredAttempt",
    "StoredBlock",
    "StoredMessage",
    "StoredNoise",
    "StoredStudy",
    "StudyState",
    "Summary",
    "TrialLedger",
    "study_names",
]
