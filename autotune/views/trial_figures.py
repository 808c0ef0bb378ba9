"""Figures of the trials of a search: each one's speed-up, its rate as measured, and how it ended."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.analysis.finalists import expected_gains
from autotune.analysis.trial_ratios import TrialRatio, trial_ratios
from autotune.analysis.verdict import Verdict
from autotune.measurement.estimate import Ratio
from search_spaces.knob import changed_knobs
from storage import Attempts, Purpose, StoredAttempt, StoredNoise


@dataclass(frozen=True)
class TrialFigures:
    """Figures of one trial.

    Attributes:
        ratio: speed-up over the baseline with its 95 % interval, seen once; None if not timed, or if
            the baseline is not.
        interleaved: True if it was interleaved with the baseline.
        reference: name of the baseline's attempt that the ratio is over.
        reference_rate: rate of that attempt, per second.
        rate: as measured, per second.
        expected: ratio over the baseline that the model of a step expects of it, by all trials together;
            None where it is not asked.
        disturbed_share: share of its blocks that others disturbed; None if it was not timed.
        again: number of rounds in which it was measured again.
        recommended: True for the trial that is recommended.
        changes: knobs that differ from the baseline, with their values.
        suggested_by: why it was tried; empty if that was not recorded.
    """

    trial: int
    state: str
    ratio: Ratio | None
    interleaved: bool
    reference: str
    reference_rate: float | None
    rate: float | None
    expected: float | None
    again: int
    baseline: bool
    recommended: bool
    peak_bytes: int
    seconds: float
    cause: str
    changes: Mapping[str, Any]
    suggested_by: str
    disturbed_share: float | None


def trial_figures(
    attempts: Attempts,
    noise: StoredNoise | None,
    verdict: Verdict,
    reasons: Mapping[int, str],
) -> list[TrialFigures]:
    """Return the figures of all recorded trials, in their order.

    Args:
        noise: newest run-to-run noise of the study.
        reasons: why trials were tried, by number.
    """
    ratios = trial_ratios(attempts, noise)
    own = attempts.baseline()
    expected = expected_gains(attempts)
    again = Counter(run.trial for run in attempts.of(Purpose.CONFIRM).measured())
    baseline = own.knobs if own else verdict.baseline_knobs

    def figures(one: StoredAttempt) -> TrialFigures:
        ratio: TrialRatio | None = ratios.get(one.trial)
        return TrialFigures(
            trial=one.trial,
            state=one.result.state.value,
            ratio=ratio.ratio if ratio else None,
            interleaved=bool(ratio and ratio.interleaved),
            reference=ratio.reference if ratio else "",
            reference_rate=ratio.reference_rate if ratio else None,
            rate=one.result.rate,
            expected=expected[one.trial].value if one.trial in expected else None,
            again=again[one.trial],
            baseline=own is not None and one.trial == own.trial,
            recommended=one.trial == verdict.trial,
            peak_bytes=one.result.peak_bytes,
            seconds=one.result.wall_seconds,
            cause=one.result.cause,
            changes=changed_knobs(one.knobs, baseline) if baseline else dict(one.knobs),
            suggested_by=reasons.get(one.trial, ""),
            disturbed_share=one.digest.disturbed_share,
        )

    return [figures(one) for one in attempts.searched()]
