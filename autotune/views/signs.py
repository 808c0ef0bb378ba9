"""Signs of life of a study that runs: its last event, and how many of its slots work."""

from collections.abc import Sequence
from typing import Any

from autotune.analysis.wording import duration
from storage import Repository, StoredAttempt

NO_SIGNS = {"progress_seconds": None, "slots": None}
"""Signs of a study that does not run."""


def signs_of(
    repository: Repository, study_id: int, attempts: Sequence[StoredAttempt], now: float
) -> dict[str, Any]:
    """Return the signs of life, ready for JSON.

    Args:
        attempts: of the study, those under way among them.
        now: seconds since the epoch.

    Returns:
        `progress_seconds` since a run began, came a block further or ended, up to two more than that;
        `slots` with those `alive`, those `planned` and how many seconds ago what is `away` went; each
        None as long as nothing is known of it.
    """
    doing = repository.messages.status(study_id)
    moments = [a.ended or a.started for a in attempts] + ([doing.at] if doing else [])
    return {
        "progress_seconds": round(max(0.0, now - max(moments)), 1) if moments else None,
        "slots": _slots(repository, study_id, now),
    }


def _slots(repository: Repository, study_id: int, now: float) -> dict[str, Any] | None:
    found = repository.studies.slots(study_id)
    if found is None:
        return None
    ago = {what: round(max(0.0, now - since), 1) for what, since in found.away.items()}
    return {"alive": found.alive, "planned": found.planned, "away": ago}


def described(status: dict[str, Any]) -> list[str]:
    """Return the signs as lines for a person."""
    lines, slots = [], status["slots"]
    if slots:
        away = [f"; {what} {duration(ago)} ago" for what, ago in slots["away"].items()]
        lines.append(f"  slots     {slots['alive']} of {slots['planned']} alive{''.join(away)}")
    if status["progress_seconds"] is not None:
        lines.append(f"  progress  {duration(status['progress_seconds'])} ago")
    return lines
