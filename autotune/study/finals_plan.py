"""Choice of the finalists: as many as the rounds leave time for."""

from collections.abc import Iterable, Iterator, Sequence

from autotune.analysis.finalists import (
    Selection,
    may_be_faster,
    most_promising_first,
    of_same_batch,
    possibly_faster,
    timed_trials,
)
from autotune.analysis.finals_price import FinalsPrice
from autotune.analysis.policy import PROOF
from autotune.study.context import StudyContext
from autotune.study.time_budget import TimeBudget
from search_spaces.knob import Knobs
from storage import StoredAttempt


def selection(context: StudyContext, time: TimeBudget) -> Selection:
    """Return the choice of as many finalists as the rounds leave time for, at least one.

    They are the most promising ones or, where even the first of these takes longer than what is left,
    the most promising of those that do not.
    """
    wanted = context.setup.spec.measurement.finalists
    if not time.limited:
        return Selection(wanted)
    attempts = context.attempts()
    price, barred = time.finals_price(attempts), context.barred()
    every = [
        trial
        for trial in timed_trials(attempts)
        if trial.knobs != context.setup.baseline and trial.trial not in barred.trials
    ]
    order, timed = most_promising_first(every), price.worth_checking(every)
    for those in _pools(timed, price, time):
        numbers = {trial.trial for trial in those}
        trials = [trial for trial in order if trial.trial in numbers]
        if price.plan.needed == PROOF.fewest_alone:
            trials = possibly_faster(trials, PROOF.alike_distance)
        # Rounds of what is surely slower than the best trial cost time and show nothing.
        trials = [trial for trial in trials if may_be_faster(trial, trials[0])]
        for count, own_batch in _sizes(min(wanted, len(trials))):
            members = trials[:count]
            if own_batch:
                members += of_same_batch(attempts.baseline(), those, members)
            rounds = time.rounds if len(members) > 1 else price.plan.needed
            finalists = [trial.knobs for trial in members]
            if time.may_end(price.finals(finalists, rounds) + _further_seeds(price, finalists)):
                return Selection(count, _others(every, trials), own_batch)
    return Selection(1, _others(every, price.checked(timed)), same_batch=False)


def _further_seeds(price: FinalsPrice, finalists: Sequence[Knobs]) -> float:
    """Return seconds of the checks that the first seeds of all finalists but the first may leave open.

    Their time would be that of the first one's rounds. On a device few checks have a second seed.
    """
    if price.plan.needed == PROOF.fewest_alone:
        return 0.0
    return sum(map(price.another_seed, finalists[1:]))


def _pools(
    timed: list[StoredAttempt], price: FinalsPrice, time: TimeBudget
) -> Iterator[list[StoredAttempt]]:
    """Yield the trials to choose from: all, those whose finals have time, those without a check."""
    yield timed
    yield [trial for trial in timed[: PROOF.ranked_trials] if time.may_end(price.alone(trial))]
    yield price.checked(timed)


def _sizes(most: int) -> Iterator[tuple[int, bool]]:
    """Yield numbers of finalists, each with and without one more of the same batch; the most first."""
    for count in range(most, 0, -1):
        yield count, True
        yield count, False


def _others(all_: Iterable[StoredAttempt], those: Iterable[StoredAttempt]) -> tuple[int, ...]:
    kept = {attempt.trial for attempt in those}
    return tuple(attempt.trial for attempt in all_ if attempt.trial not in kept)
