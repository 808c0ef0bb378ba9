"""Results of the runs of one round. Pure."""

from collections import Counter
from collections.abc import Iterable

from autotune.analysis.finalists import out_of_time
from storage import Attempts, AttemptState, Purpose, StoredAttempt

_MAY_PASS = (AttemptState.ERROR, AttemptState.CRASH, AttemptState.HANG)
"""Failures for which a connection or a node may be the reason; the run is repeated once."""


def round_results(runs: Iterable[StoredAttempt]) -> dict[int, float | None]:
    """Return throughput by trial; None where it failed. What is to be run again is left out.

    Args:
        runs: recorded runs of a round, in the order in which they began.
    """
    found: dict[int, float | None] = {}
    failures: Counter[int] = Counter()
    for run in runs:
        passing = run.result.state in _MAY_PASS
        failures[run.trial] += passing
        if not (out_of_time(run) or (passing and failures[run.trial] < 2)):
            found[run.trial] = run.result.throughput
    return found


def failed_in_a_round(attempts: Attempts) -> set[int]:
    """Return the trials that have failed in a round of the confirmation."""
    rounds = attempts.of(Purpose.CONFIRM).recorded()
    results = [round_results(rounds.in_round(number)) for number in {run.round for run in rounds}]
    return {trial for one in results for trial, rate in one.items() if rate is None}
