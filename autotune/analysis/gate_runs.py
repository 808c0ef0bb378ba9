"""Recorded runs of the numerics gate, each compared with its fp32 reference. Pure functions."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from autotune.measurement import gradients
from autotune.measurement.gradients import RoundingErrors
from autotune.measurement.numerics import Agreement, Pair, agreement, trajectory
from search_spaces import CATALOGUE
from search_spaces.batch import split_otherwise
from search_spaces.knob import DATA, GRAPH, Knobs
from search_spaces.numerics import own_knobs, reference_knobs, trained_knobs
from storage import Attempts, AttemptState, Blocks, Purpose, StoredAttempt


def compared(attempt: StoredAttempt, attempts: Attempts, blocks: Blocks) -> Agreement:
    """Compare a recorded trajectory with its reference, which is always recorded before it.

    Earlier pairs with other seeds are included. All of them ran under the same software.
    """
    attempts = attempts.under(attempt.software)
    (run, reference), formats = pair_of(attempt, attempts, blocks)
    own = attempts.of(Purpose.NUMERICS).of_trial(attempt.trial).with_knobs(attempt.knobs).complete()
    earlier = [pair_of(a, attempts, blocks)[0] for a in own if (a.seed or 0) < (attempt.seed or 0)]
    rounding = rounding_of_reference(formats[-1], attempt.seed, attempts, blocks)
    return agreement(run, reference, formats=formats, earlier=earlier, rounding=rounding)


def pair_of(
    attempt: StoredAttempt, attempts: Attempts, blocks: Blocks
) -> tuple[Pair, tuple[dict[str, Any], ...]]:
    """Return a checked run with its reference, and the configurations of both."""
    # By what is trained alone: the rest of a reference is the same throughout a study.
    earlier = [
        a
        for a in attempts.of(Purpose.REFERENCE).with_seed(attempt.seed).complete()
        if a.id < attempt.id and trained_knobs(a.knobs) == trained_knobs(attempt.knobs)
    ]
    pair = (trajectory(blocks(attempt.id)), trajectory(blocks(earlier[-1].id)))
    return pair, (attempt.knobs, earlier[-1].knobs)


def rounding_of_reference(
    safe: Knobs, seed: int | None, attempts: Attempts, blocks: Blocks
) -> tuple[RoundingErrors, ...]:
    """Return how far plain autocast deviates the gradient of a reference; empty if not known."""
    runs = attempts.with_seed(seed).with_knobs(safe).complete()
    run, reference = runs.of(Purpose.AUTOCAST).first, runs.of(Purpose.REFERENCE).first
    if run is None or reference is None:
        return ()
    return gradients.rounding_of(
        trajectory(blocks(run.id)).first, trajectory(blocks(reference.id)).first
    )


def first_references(attempts: Attempts) -> Attempts:
    """Return the references with the first seed that have run for as long as they had to."""
    return attempts.of(Purpose.REFERENCE).with_seed(0).conclusive()


def checkable(
    knobs: Knobs, baseline: Knobs, references: Attempts
) -> tuple[dict[str, Any], StoredAttempt | None]:
    """Return the configuration as it is checked, and its reference; None if that has not run.

    The micro-batch is at most the baseline's. Where the reference runs out of memory
    all the same, it is halved until the reference fits.
    """
    most = min(knobs["micro_batch"], baseline["micro_batch"])
    for checked in _in_smaller(knobs, most, keeps_batch=references.keeps_batch):
        reference = references.with_knobs(reference_knobs(checked, baseline)).first
        if reference is None or reference.result.state != AttemptState.OOM:
            break
    return checked, reference


def _in_smaller(knobs: Knobs, most: int, *, keeps_batch: bool) -> Iterator[dict[str, Any]]:
    """Yield a configuration with this micro-batch, and with half of it, down to 1.

    Args:
        most: micro-batch, at most that of the configuration.
        keeps_batch: True if the samples per step have to stay.
    """
    size = most
    while size:
        alone = {**knobs, "micro_batch": size}
        split = split_otherwise(knobs, "micro_batch", size) if keeps_batch else alone
        if split:
            yield split
        size //= 2


def trial_checks(attempts: Attempts) -> list[StoredAttempt]:
    """Return the conclusive checks of trials as they were searched, not of a reduced winner."""
    several = attempts.of(Purpose.NUMERICS).conclusive()
    return [one for one in several if _is_as_searched(one, attempts)]


def _is_as_searched(check: StoredAttempt, attempts: Attempts) -> bool:
    searched = attempts.of(Purpose.SEARCH).of_trial(check.trial).first
    return searched is None or is_check_of(check.knobs, searched.knobs, attempts)


def is_check_of(checked: Knobs, knobs: Knobs, attempts: Attempts) -> bool:
    """Return whether a configuration is this one as it may be checked: in a smaller micro-batch."""
    sizes = _in_smaller(knobs, checked["micro_batch"], keeps_batch=attempts.keeps_batch)
    return next(sizes, None) == checked


def own_checks(attempts: Attempts) -> dict[int, StoredAttempt]:
    """Return the last check of each trial that has one."""
    return {check.trial: check for check in trial_checks(attempts)}


class UnprovenCheck(NamedTuple):
    """Check that proved nothing.

    Attributes:
        whatever_start: True if the reason holds for other weights and rows, too.
    """

    knobs: dict[str, Any]
    why: str
    whatever_start: bool

    def covers(self, checked: Knobs, harmless: Collection[str]) -> bool:
        """Return whether a check of this configuration would prove nothing either."""
        if _training(self.knobs) != _training(checked):
            return False
        return self.whatever_start or _start(self.knobs, harmless) == _start(checked, harmless)


def _training(knobs: Knobs) -> tuple[dict[str, Any], float]:
    """Return the samples of a step, and the rounding of the number formats."""
    return trained_knobs(knobs), gradients.null_of(knobs)


def _start(knobs: Knobs, harmless: Collection[str]) -> dict[str, Any]:
    """Return what may change the weights or rows that a run begins with."""
    own = {name: knobs[name] for name in own_knobs(knobs, harmless)}
    known = {name: knobs[name] for name, knob in CATALOGUE.items() if knob.changes & {DATA, GRAPH}}
    return {**known, **own}


def unproven_checks(attempts: Attempts, blocks: Blocks) -> list[UnprovenCheck]:
    """Return the checks that could not be compared with their reference."""
    runs = attempts.of(Purpose.NUMERICS).recorded().complete()
    found = [(run.knobs, compared(run, attempts, blocks)) for run in runs]
    return [
        UnprovenCheck(knobs, agreed.unproven, agreed.whatever_start)
        for knobs, agreed in found
        if agreed.unproven
    ]


def unproven_as_others(
    checked: Knobs, others: Iterable[UnprovenCheck], harmless: Collection[str]
) -> str:
    """Return why a check would prove nothing, like those of other trials; empty if it may prove."""
    return next((one.why for one in others if one.covers(checked, harmless)), "")
