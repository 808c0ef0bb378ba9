"""Persistence: Optuna's tables for the trials, `autotune_*` tables for everything else."""

from storage.attempts import AttemptFeed
from storage.database import Database
from storage.history import Attempts
from storage.names import study_names
from storage.records import (
    TRAJECTORIES,
    UNTIMED,
    AttemptResult,
    AttemptState,
    Claim,
    Fault,
    Lease,
    LeaseState,
    MessageCode,
    MessageKind,
    NewMessage,
    Purpose,
    Recommended,
    Retry,
    SearchEndCause,
    SlotHealth,
    StoredAttempt,
    StoredBlock,
    StoredMessage,
    StoredNoise,
    StoredStudy,
    StudyState,
    Summary,
    Worker,
)
from storage.repository import Repository
from storage.trials import TrialLedger

__all__ = [
    "TRAJECTORIES",
    "UNTIMED",
    "AttemptFeed",
    "AttemptResult",
    "AttemptState",
    "Attempts",
    "Claim",
    "Database",
    "Fault",
    "Lease",
    "LeaseState",
    "MessageCode",
    "MessageKind",
    "NewMessage",
    "Purpose",
    "Recommended",
    "Repository",
    "Retry",
    "SearchEndCause",
    "SlotHealth",
    "StoredAttempt",
    "StoredBlock",
    "StoredMessage",
    "StoredNoise",
    "StoredStudy",
    "StudyState",
    "Summary",
    "TrialLedger",
    "Worker",
    "study_names",
]
