"""Finalists: which configurations are measured again, and what a confirmation has found of them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from autotune.analysis.gate_runs import trial_checks
from autotune.analysis.node_speeds import at_home_speed, pooled_baseline
from autotune.analysis.noise_backfill import error_of
from autotune.analysis.policy import PROOF
from autotune.measurement.estimate import Ratio
from autotune.search.ranking import Expectation, expectation
from search_spaces.batch import global_batch_size
from storage import (
    TRAJECTORIES,
    Attempts,
    AttemptState,
    ChoiceReason,
    FinalistChoice,
    Purpose,
    StoredAttempt,
)

_LEAST_RATE = 1e-9
_RUNNERS_UP = 3
"""Trials that are recorded besides the finalists, the most promising first."""


@dataclass(frozen=True)
class FinalistResult:
    """Result of one finalist.

    Attributes:
        rates: throughput, round by round, fresh rounds last.
        figures: throughput in the rounds that figures are taken from; in all, if it ran in none.
        own_rate: rate with the interval of its own runs; None where the spread between processes is
            not known, or it never ran.
        gain: its speed-up over the baseline; None where one of the two failed or did not run.
        ratio_to_recommended: its throughput over that of the recommended trial; None if it never ran.
        dropped_after_round: counted from one; None if it stayed to the end.
    """

    trial: int
    knobs: dict[str, Any]
    rates: tuple[float, ...]
    figures: tuple[float, ...]
    own_rate: Ratio | None
    gain: Ratio | None
    ratio_to_recommended: Ratio | None
    dropped_after_round: int | None


@dataclass(frozen=True)
class ConfirmationResult:
    """Result of a confirmation.

    Attributes:
        recommended: trial to recommend.
        baseline: trial of the baseline; None if it is no candidate.
        baseline_fails: True if the baseline failed in the rounds, or is no candidate.
        finalists: result of each candidate, the baseline among them.
        rounds: number of rounds that figures are taken from.
        chosen_in: number of earlier rounds, which chose; 0: the same rounds.
        contender: fastest alternative, where the baseline is recommended; None if there is none.
        most_gain: highest relative gain over the baseline that the rounds leave possible; None where
            the baseline is not recommended.
        behind: relative distance of the recommended trial to the best of the finalists, at most; None
            where it is the baseline, or the only finalist.
        contradicted_by: number of fresh rounds that do not show the speed-up of the rounds that chose,
            and are too few for a figure of their own.
        exhausted: True if all rounds that are allowed have been measured.
        reverted: changes of the choice that were taken back, with the values that it has now.
        failed: trials that failed in a round, without the baseline.
    """

    recommended: int
    baseline: int | None
    baseline_fails: bool
    finalists: dict[int, FinalistResult]
    rounds: int
    chosen_in: int
    contender: int | None
    most_gain: float | None
    behind: float | None
    contradicted_by: int
    exhausted: bool
    reverted: dict[str, Any]
    failed: tuple[int, ...]

    @property
    def recommended_result(self) -> FinalistResult:
        """Result of the recommended trial."""
        return self.finalists[self.recommended]


@dataclass(frozen=True)
class Candidate:
    """Trial that takes part in the confirmation."""

    trial: int
    knobs: dict[str, Any]
    peak_bytes: int


class Selection(NamedTuple):
    """Choice of finalists by the time that there is for them.

    Attributes:
        finalists: highest number besides the baseline and the one of `same_batch`.
        unaffordable: trials for whose check there is no time.
        same_batch: True if the fastest trial with the baseline's global batch takes part as well where
            all others have another one.
    """

    finalists: int
    unaffordable: tuple[int, ...] = ()
    same_batch: bool = True

    @classmethod
    def by_records(cls, attempts: Attempts, finalists: int) -> Self:
        """Return the choice where it is not known what there is time for.

        What the last plan had no time to check again is left out: it is not shown to be right.
        """
        return cls(finalists, tuple(_with_a_cut_check(attempts)))


def candidates(
    attempts: Attempts, barred: Collection[int], selection: Selection, first: int
) -> tuple[list[Candidate], int | None]:
    """Return the trials that are measured again, and which of them is the baseline, if any.

    Args:
        attempts: attempts of a study whose search has ended.
        barred: trials that may not take part.
        first: number of the first round that counts.
    """
    baseline = attempts.baseline()
    complete = [a for a in ranked(attempts) if a.trial not in barred]
    if not complete:
        return [], None
    baseline = baseline if baseline in complete else None
    measured = [a for a in timed_trials(attempts) if a is not baseline and a.trial not in barred]
    chosen = _chosen(measured, selection, baseline)
    rounds = attempts.of(Purpose.CONFIRM).recorded()
    took_part = {run.trial for run in rounds.in_round(first) if not run.in_vain}
    # A check may be wanted only after rounds: without time for it their finalist is out again.
    cut = _with_a_cut_check(attempts)
    others = [a for a in measured if a.trial in took_part and (a.trial not in cut or a in chosen)]
    if not any(run.round > first for run in rounds) and all(a in chosen for a in others):
        others = chosen
    members = [baseline, *others] if baseline else others
    found = [Candidate(a.trial, a.knobs, a.result.peak_bytes) for a in members]
    return found, baseline.trial if baseline else None


def _with_a_cut_check(attempts: Attempts) -> set[int]:
    """Return the trials with a check that is to be made again.

    Its time was over too soon, or the software that trains is another one by now.
    """
    cut = {run.trial for run in attempts.of(*TRAJECTORIES).to_repeat()}
    outdated = {run.trial for run in attempts.outdated() if run.purpose is Purpose.NUMERICS}
    return cut | (outdated - {run.trial for run in attempts.of(Purpose.NUMERICS).recorded()})


def _chosen(
    measured: Sequence[StoredAttempt], selection: Selection, baseline: StoredAttempt | None
) -> list[StoredAttempt]:
    left_out = frozenset(selection.unaffordable)

    def affordable(several: Sequence[StoredAttempt]) -> list[StoredAttempt]:
        return [a for a in several if a.trial not in left_out]

    # Ordered with all others, as the choice by time was: what is expected of one depends on them.
    chosen = affordable(most_promising_first(measured))[: selection.finalists]
    same_batch = (
        of_same_batch(baseline, affordable(measured), chosen) if selection.same_batch else []
    )
    return chosen + same_batch


def ranked(attempts: Attempts) -> list[StoredAttempt]:
    """Return complete trials of the search that the gate has not refused, the fastest first.

    All rates are as if on one node.
    """
    return list(attempts.derived(_ranked))


def _ranked(attempts: Attempts) -> list[StoredAttempt]:
    return fastest_first(_not_refused(attempts, at_home_speed(attempts).searched().complete()))


def timed_trials(attempts: Attempts) -> list[StoredAttempt]:
    """Return what `ranked` does, and timed trials that were stopped early."""
    return fastest_first(_not_refused(attempts, at_home_speed(attempts).searched().measured()))


def _not_refused(attempts: Attempts, several: Iterable[StoredAttempt]) -> list[StoredAttempt]:
    checked = trial_checks(attempts)
    refused = {a.trial for a in checked if a.result.state != AttemptState.COMPLETE}
    return [a for a in several if a.trial not in refused]


def fastest_first(several: Iterable[StoredAttempt]) -> list[StoredAttempt]:
    """Return attempts by their throughput."""
    return sorted(several, key=lambda a: -(a.result.throughput or 0.0))


def of_same_batch(
    baseline: StoredAttempt | None,
    measured: Iterable[StoredAttempt],
    members: Sequence[StoredAttempt],
) -> list[StoredAttempt]:
    """Return the fastest trial with the baseline's global batch, if no finalist has that.

    It shows what is gained without another learning rate. It may have been stopped early.
    """
    own = global_batch_size(baseline.knobs, 1) if baseline else None
    if baseline is None or any(global_batch_size(a.knobs, 1) == own for a in members):
        return []
    return [a for a in measured if global_batch_size(a.knobs, 1) == own][:1]


def most_promising_first(several: Sequence[StoredAttempt]) -> list[StoredAttempt]:
    """Return trials by the rate that the model of a step expects of them.

    Each measured rate counts for as much as its noise lets it. Trials that were stopped early are
    included: that is no proof that they are slow.

    Args:
        several: trials with a throughput.
    """
    close, model = _expected(several)
    return [*(close[place] for place in model.order()), *fastest_first(several)[len(close) :]]


def _expected(several: Iterable[StoredAttempt]) -> tuple[list[StoredAttempt], Expectation]:
    """Return the trials that are looked at closely, the fastest first, and what is expected of them."""
    close = [one for one in fastest_first(several)[: PROOF.ranked_trials] if one.result.throughput]
    rates = [one.result.throughput or _LEAST_RATE for one in close]
    return close, expectation(rates, [_error(a) for a in close], [a.knobs for a in close])


def possibly_faster(several: Sequence[StoredAttempt], margin: float) -> list[StoredAttempt]:
    """Return the first of these trials, and those that may be faster than it by more than a margin.

    Args:
        several: trials with a throughput, the most promising first.
        margin: difference of the logarithms of the rates.
    """
    return [
        one
        for place, one in enumerate(several)
        if not place or _surplus(one, several[0], margin) > -PROOF.unlikely_errors
    ]


def _surplus(one: StoredAttempt, first: StoredAttempt, margin: float) -> float:
    """Return by how many standard errors a trial is faster than another by more than the margin."""
    ahead = math.log(
        (one.result.throughput or _LEAST_RATE) / (first.result.throughput or _LEAST_RATE)
    )
    return (ahead - margin) / math.hypot(_error(one), _error(first))


def may_be_faster(one: StoredAttempt, other: StoredAttempt) -> bool:
    """Return whether a trial may be faster than another one, by the known noise of both."""
    rates = one.result.throughput, other.result.throughput
    if not (rates[0] and rates[1]):
        return True
    doubt = PROOF.beyond_doubt * math.hypot(_error(one), _error(other))
    return math.log(rates[0] / rates[1]) > -doubt


def _error(attempt: StoredAttempt) -> float:
    known = error_of(attempt.result)
    return (
        PROOF.most_error if known is None else min(max(known, PROOF.least_error), PROOF.most_error)
    )


def expected_gains(attempts: Attempts) -> dict[int, Ratio]:
    """Return the ratio over the baseline that the model expects of the trials that it ranks, by number.

    The interval is the model's own. It is without bounds where the baseline is not among them. All runs
    of the baseline in the search count.
    """
    own, timed = pooled_baseline(attempts), timed_trials(attempts)
    if own is None or len(timed) < 2:
        return {}
    close, model = _expected(own if one.trial == own.trial else one for one in timed)
    place = next((n for n, one in enumerate(close) if one.trial == own.trial), None)
    if place is None:
        baseline = own.result.throughput
        return {
            one.trial: Ratio(rate / baseline, 0.0, math.inf)
            for one, rate in zip(close, model.rates, strict=True)
            if baseline
        }
    return {
        one.trial: Ratio.around(model.rates[n] / model.rates[place], model.half_width(n, place))
        for n, one in enumerate(close)
    }


def choices(
    attempts: Attempts,
    finalists: Collection[int],
    refused: Mapping[int, str],
    passed_over: Collection[int],
) -> list[FinalistChoice]:
    """Return the finalists and the most promising others, each with its reason.

    Args:
        finalists: trials that are measured again, without the baseline.
        refused: trials that a check refuses, with what it found.
        passed_over: trials that are slower beyond doubt, or whose check takes too long.
    """
    own, expected = attempts.baseline(), expected_gains(attempts)
    every = [one for one in timed_trials(attempts) if own is None or one.trial != own.trial]
    order = [one.trial for one in most_promising_first(every)]
    others = [trial for trial in order if trial not in finalists][:_RUNNERS_UP]

    def reason(trial: int) -> ChoiceReason:
        if trial in finalists:
            return ChoiceReason.FINALIST
        if trial in refused:
            return ChoiceReason.REFUSED
        return ChoiceReason.PASSED_OVER if trial in passed_over else ChoiceReason.BEYOND

    chosen = [trial for trial in order if trial in finalists or trial in others]
    return [
        FinalistChoice(trial, reason(trial), refused.get(trial, ""), *_stored(expected.get(trial)))
        for trial in chosen
    ]


def _stored(expected: Ratio | None) -> tuple[float | None, float | None, float | None]:
    """Return an expected ratio with its bounds, as far as they are known."""
    if expected is None:
        return None, None, None
    if not math.isfinite(expected.high):
        return expected.value, None, None
    return expected.value, expected.low, expected.high
