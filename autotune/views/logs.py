"""Output of a study and its trials, and what was done with it."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.errors import BadInput
from autotune.views.progress import ProgressLines
from storage import Repository, StoredEvent


def study_log(repository: Repository, name: str) -> Iterator[str]:
    """Yield all messages and attempts of a study."""
    study = repository.studies.named(name)
    yield from ProgressLines(repository, study).new()
    if study.error:
        yield f"error: {study.error}"
    yield f"Files of the ranks and agents: {study.paths.folder}"


def trial_log(repository: Repository, name: str, trial: int) -> Iterator[str]:
    """Yield the output of the ranks of a trial.

    It is that of their files where this machine has them, else what was recorded of the failure.

    Raises:
        BadInput: there is no such trial.
    """
    study = repository.studies.named(name)
    attempts = [a for a in repository.attempts.of(study.id) if a.trial == trial]
    if not attempts:
        raise BadInput(f"{name} has not launched a trial {trial}")
    paths = study.paths
    for attempt in attempts:
        yield f"== trial {trial}, {attempt.name}: {attempt.result.state}"
        if attempt.result.cause:
            yield attempt.result.cause
        files = paths.attempt(attempt.name).logs()
        for file in files:
            yield f"-- {file}"
            yield _printed(file)
        if not files and attempt.recorded:
            dropped = f"Its output is not here (`logs: {study.spec.get('logs', 'failed')}`)."
            yield attempt.result.log_tail.rstrip() or dropped


def history_table(events: Sequence[StoredEvent]) -> str:
    """Return events, a line each."""
    if not events:
        return "nothing was done yet"
    lines = [f"{'time, UTC':19} {'study':24} {'what':14} {'by':24} {'command':8} detail"]
    for event in events:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.at))
        role = f" ({event.role})" if event.role not in (None, event.account) else ""
        by = f"{event.account}@{event.host}{role}"
        lines.append(
            f"{at} {event.study:24} {event.what:14} {by:24} {event.command or '-':8} {event.detail}"
        )
    return "\n".join(lines)


def _printed(file: Path) -> str:
    """Return the content of a file, or why it cannot be read."""
    try:
        return file.read_text(errors="replace").rstrip()
    except OSError as error:
        return f"It cannot be read: {error.strerror}."
