"""Results of the runs of one round. Pure."""

from collections import Counter

from storage import Attempts, Purpose


def round_results(attempts: Attempts, number: int) -> dict[int, float | None]:
    """Return throughput by trial of a round; None where it failed. What is to be run again is left out.

    Earlier versions repeated no run: a failure is final where later rounds have begun.
    """
    rounds = attempts.of(Purpose.CONFIRM).recorded()
    least = 1 if any(run.round > number for run in rounds) else 2
    found: dict[int, float | None] = {}
    failures: Counter[int] = Counter()
    for run in rounds.in_round(number):
        passing = run.result.state.may_pass
        failures[run.trial] += passing
        if not (run.in_vain or (passing and failures[run.trial] < least)):
            found[run.trial] = run.result.throughput
    return found


def failed_in_a_round(attempts: Attempts) -> set[int]:
    """Return the trials that have failed in a round of the confirmation."""
    numbers = {run.round for run in attempts.of(Purpose.CONFIRM).recorded()}
    results = [round_results(attempts, number) for number in numbers]
    return {trial for one in results for trial, rate in one.items() if rate is None}
