"""What a study and its trials printed."""

from collections.abc import Iterator
from pathlib import Path

from autotune.errors import BadInput
from autotune.report.progress import ProgressLines
from storage import Repository, StoredAttempt, StoredStudy

LOG_FOLDER = ".autotune"


def study_log(repository: Repository, name: str) -> Iterator[str]:
    """All messages and attempts of a study."""
    study = repository.study(name)
    yield from ProgressLines(repository, study).new()
    if study.error:
        yield f"error: {study.error}"
    yield f"Files of the ranks and agents: {folder_of(study)}"


def trial_log(repository: Repository, name: str, trial: int) -> Iterator[str]:
    """What the ranks of a trial printed: from their files where this machine has them, else what
    was recorded of the failure.

    Raises:
        BadInput: there is no such trial.
    """
    study = repository.study(name)
    attempts = [a for a in repository.attempts(study.id) if a.trial == trial]
    if not attempts:
        raise BadInput(f"{name} has not launched a trial {trial}")
    for attempt in attempts:
        yield f"== trial {trial}, {attempt_name(attempt)}: {attempt.result.state}"
        if attempt.result.cause:
            yield attempt.result.cause
        files = sorted(attempt_folder(study, attempt).glob("rank-*.log"))
        for file in files:
            yield f"-- {file}"
            yield file.read_text(errors="replace").rstrip()
        if not files and attempt.result.log_tail:
            yield attempt.result.log_tail.rstrip()


def folder_of(study: StoredStudy) -> Path:
    """Where a study's ranks and agents print to, on every node."""
    return Path(study.workdir) / LOG_FOLDER / study.name


def attempt_folder(study: StoredStudy, attempt: StoredAttempt) -> Path:
    """Where an attempt's ranks print to, on every node."""
    return folder_of(study) / attempt_name(attempt)


def attempt_name(attempt: StoredAttempt) -> str:
    """Name of an attempt within its study, also of its folder."""
    return f"{attempt.trial}-{attempt.purpose}{attempt.round or ''}-{attempt.attempt}"
