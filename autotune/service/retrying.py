"""Retries of studies that machines, not settings, have kept from running."""

from autotune.analysis.wording import duration
from autotune.errors import ClusterAway, LauncherError
from storage import Retry

FIRST_SECONDS = 5.0
MOST_SECONDS = 300.0
"""Longest pause. A study that ran for longer before it failed begins anew with the shortest
pause."""
FIRST_AWAY_SECONDS, MOST_AWAY_SECONDS = 1.0, 20.0
"""Pauses for a cluster, which may be back at once: asking costs it nothing."""


def retry(before: int, error: LauncherError, ran: float) -> Retry:
    """Return the next try.

    Args:
        before: number of tries in a row that have failed before this one.
        ran: seconds until this try failed.
    """
    count = 1 if ran >= MOST_SECONDS else before + 1
    first, most = FIRST_SECONDS, MOST_SECONDS
    if isinstance(error, ClusterAway):
        first, most = FIRST_AWAY_SECONDS, MOST_AWAY_SECONDS
    seconds = first * 2.0 ** min(count - 1, 32)
    return Retry(str(error), min(seconds, most), count)


def describe(found: Retry) -> str:
    """Return a message about a retry."""
    return f"{found.why}; tried again in {duration(found.seconds)}."
