"""Soak runs that compare: those of one daemon, since the search last went on. Pure."""

from storage import Attempts, Purpose


def soak_runs(attempts: Attempts, epoch: int | None = None) -> Attempts:
    """Return the recorded soak runs that compare with each other.

    Days may lie between those of two daemons, and the machine may be slower on one of them.

    Args:
        epoch: that of the daemon; None: that of the last run.
    """
    runs = attempts.of(Purpose.SOAK).recorded().begun_after(attempts.of(Purpose.SEARCH).last)
    if runs.last is None:
        return runs
    return runs.begun_under(runs.last.epoch if epoch is None else epoch)
