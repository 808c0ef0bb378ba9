"""Reasons why a study waits, although it has a daemon or could have one."""

import time

from autotune.analysis.wording import duration
from storage import MessageKind, Repository, StoredStudy, StudyState
from storage.disk import full, is_full


def waiting_now(repository: Repository, study: StoredStudy) -> str | None:
    """Return why a study waits at this moment; None if it does not."""
    if study.state.ended:
        return None
    quota = repository.quotas.reasons()(study.owner) if study.state == StudyState.QUEUED else ""
    return waiting_of(repository, study, quota, repository.now())


def waiting_of(repository: Repository, study: StoredStudy, quota: str, now: float) -> str | None:
    """Return why a study waits, although it has a daemon or could have one; None if it does not.

    Args:
        quota: quota of its owner that is exhausted; empty: none.
        now: seconds since the epoch, by the database's clock.
    """
    disk = repository.database.folder
    if disk and is_full(disk) and not study.state.ended:
        return f"{full(disk)}, and nothing can be recorded before there is some."
    last = repository.messages.last(study.id) if study.state == StudyState.RUNNING else None
    waits = last is not None and last.kind == MessageKind.WAITING
    return last.text if last and waits else _postponed(study, quota, now)


def _postponed(study: StoredStudy, quota: str, now: float) -> str | None:
    """Return why a queued study is not begun, or tried again later, and when; None if neither."""
    if study.held:
        return f"held; autotune release {study.name}"
    left = 0.0 if study.retry_at is None else study.retry_at - now
    if left <= 0:
        return (quota or None) if study.state == StudyState.QUEUED else None
    at = time.strftime("%H:%M:%S", time.gmtime(time.time() + left))
    again = f"tried again at {at} UTC, in {duration(left)}"
    return f"{study.error}; {again}; autotune resume {study.name}: at once"
