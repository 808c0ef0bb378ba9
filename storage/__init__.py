"""What is kept: Optuna's tables for the trials, `autotune_*` tables for everything else."""

from storage.database import Database
from storage.history import Attempts
from storage.records import (
    TRAJECTORIES,
    UNTIMED,
    AttemptResult,
    AttemptState,
    Lease,
    LeaseState,
    Purpose,
    Recommended,
    StoredAttempt,
    StoredBlock,
    StoredNoise,
    StoredStudy,
    StudyState,
)
from storage.repository import Repository
from storage.trials import TrialLedger

__all__ = [
    "TRAJECTORIES",
    "UNTIMED",
    "AttemptResult",
    "AttemptState",
    "Attempts",
    "Database",
    "Lease",
    "LeaseState",
    "Purpose",
    "Recommended",
    "Repository",
    "StoredAttempt",
    "StoredBlock",
    "StoredNoise",
    "StoredStudy",
    "StudyState",
    "TrialLedger",
]
