"""Results of the runs of one round. Pure."""

from collections import Counter

from autotune.analysis.policy import PROOF
from storage import Attempts, Purpose


def runs_that_compare(runs: Attempts, number: int, epoch: int | None = None) -> Attempts:
    """Return the runs of a round that compare, of each member the last one.

    Where another daemon has gone on with a round, hours may lie between its members. Runs of the daemon
    before do not count then, and the round is measured anew. Once another round has begun, the last run
    of each member is one that counts.

    Args:
        runs: recorded runs for one purpose.
        epoch: that of the daemon which goes on with the round; None: that of its last run.
    """
    own = runs.in_round(number)
    if own.last is None or own.last is not runs.last:
        return own
    present = own.last.epoch if epoch is None else epoch
    restarts = len({present, *(run.epoch for run in own)}) - 1
    return own if restarts > PROOF.most_restarts else own.begun_under(present)


def round_results(
    attempts: Attempts, number: int, epoch: int | None = None
) -> dict[int, float | None]:
    """Return throughput by trial of a round; None where it failed. What is to be run again is left out.

    The first failure of a run that may pass is not final, whatever rounds have begun since.

    Args:
        epoch: see `runs_that_compare`.
    """
    rounds = attempts.of(Purpose.CONFIRM).recorded()
    found: dict[int, float | None] = {}
    failures: Counter[int] = Counter()
    for run in runs_that_compare(rounds, number, epoch):
        passing = run.result.may_pass
        failures[run.trial] += passing
        if not (run.in_vain or (passing and failures[run.trial] == 1)):
            found[run.trial] = run.result.throughput
    return found


def failed_in_a_round(attempts: Attempts) -> set[int]:
    """Return the trials that have failed in a round of the confirmation."""
    numbers = {run.round for run in attempts.of(Purpose.CONFIRM).recorded()}
    results = [round_results(attempts, number) for number in numbers]
    return {trial for one in results for trial, rate in one.items() if rate is None}
