"""Result of a confirmation as data, by the rounds that it has come to. Pure."""

import math
from typing import Any

from autotune.analysis.confirmation import Basis, Confirmation
from autotune.analysis.finalists import ConfirmationResult, FinalistResult
from autotune.measurement.estimate import Ratio

_SAME = Ratio(1.0, 1.0, 1.0)


def result_of(confirmation: Confirmation) -> ConfirmationResult:
    """Return what the rounds say; at least one candidate must have finished one."""
    recommended, baseline, told = (
        confirmation.recommended(),
        confirmation.baseline,
        confirmation.gain_rounds,
    )
    fails = _baseline_fails(confirmation)
    stays = recommended == baseline and not fails
    contradicts = stays and told is not None and not told.has_enough_rounds
    fresh = confirmation.basis is Basis.GAIN
    return ConfirmationResult(
        recommended=recommended,
        baseline=baseline,
        baseline_fails=fails,
        finalists={
            t: _finalist(confirmation, t, recommended, fails=fails) for t in confirmation.candidates
        },
        rounds=len(confirmation.basis_rounds),
        chosen_in=len(confirmation.choice_rounds.rounds) if fresh else 0,
        contender=confirmation.contender() if stays else None,
        most_gain=math.expm1(confirmation.most_gain()) if stays else None,
        behind=None if stays or fails else _distance(confirmation, recommended),
        contradicted_by=len(confirmation.fresh) if contradicts else 0,
        exhausted=not confirmation.rounds_left,
        reverted=_reverted(confirmation),
        failed=tuple(trial for trial in confirmation.failed if trial != baseline),
    )


def own_rate(confirmation: Confirmation, trial: int) -> Ratio | None:
    """Return a trial's rate with the interval of its own runs.

    None where no spread between processes is known, or the trial has not run.
    """
    spread, rates = confirmation.spread, confirmation.basis_rates(trial)
    if spread is None or not rates:
        return None
    return spread.arm(trial, rates, confirmation.baseline).rate


def _baseline_fails(confirmation: Confirmation) -> bool:
    baseline, dropped = confirmation.baseline, confirmation.choice_rounds.dropped
    return baseline is None or baseline in dropped or not confirmation.rates(baseline)


def _reverted(confirmation: Confirmation) -> dict[str, Any]:
    """Return the changes that were taken back, each with the value that it has now."""
    if confirmation.selected is None:
        return {}
    now = confirmation.candidates[confirmation.selected].knobs
    return {name: now[name] for name in confirmation.reverted}


def _finalist(
    confirmation: Confirmation, trial: int, recommended: int, *, fails: bool
) -> FinalistResult:
    rates = confirmation.rates(trial)
    compared = rates and not fails and trial not in confirmation.failed
    return FinalistResult(
        trial=trial,
        knobs=confirmation.candidates[trial].knobs,
        rates=tuple(rates),
        figures=tuple(confirmation.basis_rates(trial)),
        own_rate=own_rate(confirmation, trial),
        gain=_gain(confirmation, trial) if compared else None,
        ratio_to_recommended=_ratio(confirmation, trial, recommended) if rates else None,
        dropped_after_round=confirmation.choice_rounds.dropped.get(trial),
    )


def _gain(confirmation: Confirmation, trial: int) -> Ratio:
    return _SAME if trial == confirmation.baseline else confirmation.gain(trial)


def _ratio(confirmation: Confirmation, trial: int, recommended: int) -> Ratio:
    """Return a trial's throughput over the recommended trial's, for a pair measured alone in those rounds."""
    if confirmation.gain_rounds and confirmation.basis is not Basis.CHOICE:
        both = confirmation.gain_rounds.selected, confirmation.gain_rounds.baseline
        if (trial, recommended) == both:
            return confirmation.gain(trial)
        if (recommended, trial) == both:
            return confirmation.gain(recommended).inverse
    return confirmation.choice_rounds.ratio(trial, recommended)


def _distance(confirmation: Confirmation, trial: int) -> float | None:
    """Return by how much a trial may be behind another finalist, as a share; None if there is none."""
    if len(confirmation.candidates) <= 2:
        return None
    behind = confirmation.choice_rounds.behind(trial)
    return -math.expm1(-behind) if math.isfinite(behind) else None
