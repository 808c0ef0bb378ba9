"""Speed-up of each trial of a search over the baseline, by all that is known by now. Pure.

A trial that was interleaved with the baseline has a ratio of its own. The rate of one that ran alone is
compared with the mean of the baseline's own runs. The intervals are computed anew whenever they are
shown: what was assumed of the noise when a trial was recorded may be refuted since.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.analysis.finalists import ranked
from autotune.analysis.node_speeds import at_home_speed
from autotune.measurement.estimate import Ratio
from autotune.measurement.noise import noise_of_pairs, run_df, total_half_width
from autotune.measurement.policy import MEASUREMENT
from storage import AttemptResult, Attempts, StoredAttempt, StoredNoise


@dataclass(frozen=True)
class TrialRatio:
    """Speed-up of one trial over the baseline, seen once.

    Attributes:
        ratio: with its 95 % interval; exactly 1 for the baseline itself.
        interleaved: True if it was interleaved with the baseline.
        reference: name of the baseline's attempt that it is compared with, the first of several.
        reference_rate: rate of that attempt, or the mean of several, per second.
    """

    ratio: Ratio
    interleaved: bool
    reference: str
    reference_rate: float


@dataclass(frozen=True)
class _Baseline:
    """Runs of the baseline by itself, as one rate."""

    own: StoredAttempt
    rate: float
    half_width: float


def trial_ratios(attempts: Attempts, noise: StoredNoise | None) -> dict[int, TrialRatio]:
    """Return the speed-up of every timed trial by its number; nothing while the baseline has no rate.

    Args:
        noise: newest run-to-run noise that the study has found; None: as recorded with each run.
    """
    at_home = at_home_speed(attempts)
    sigma = noise.sigma_run if noise else 0.0
    runs = at_home.baseline_runs().measured()
    own = at_home.baseline()
    if own is None or not own.result.throughput:
        return {}
    df = run_df(len(runs))
    baseline = _mean(own, list(runs), sigma, df)
    found: dict[int, TrialRatio] = {}
    for one in at_home.searched().measured():
        beside = attempts.paired_baseline_of(one)
        if one.trial == own.trial:
            found[one.trial] = TrialRatio(Ratio(1.0, 1.0, 1.0), False, own.name, baseline.rate)
        elif one.result.ratio is not None and beside is not None and beside.result.rate:
            width = log_half_width(one.result, noise_of_pairs(sigma), df)
            ratio = Ratio.around(one.result.ratio, width)
            found[one.trial] = TrialRatio(ratio, True, beside.name, beside.result.rate)
        else:
            width = math.hypot(log_half_width(one.result, sigma, df), baseline.half_width)
            ratio = Ratio.around((one.result.throughput or 0.0) / baseline.rate, width)
            found[one.trial] = TrialRatio(ratio, False, own.name, baseline.rate)
    return found


def precedence(ratio: Ratio) -> tuple[bool, float]:
    """Return the place of a ratio that was seen once: one that is surely above 1 comes first."""
    return ratio.faster, ratio.value


def leading_trial(attempts: Attempts, ratios: Mapping[int, TrialRatio]) -> int | None:
    """Return the complete trial that was seen fastest; None if each is the baseline or surely slower.

    One whose own check has failed does not lead.

    Args:
        ratios: speed-up of each timed trial, see `trial_ratios`.
    """
    own = attempts.baseline()
    rivals = {
        one.trial: ratios[one.trial].ratio
        for one in ranked(attempts)
        if one.trial in ratios and not (own and one.trial == own.trial)
    }
    able = {trial: ratio for trial, ratio in rivals.items() if ratio.high >= 1}
    return max(able, key=lambda trial: precedence(able[trial]), default=None)


def rate_range(rates: Sequence[float]) -> tuple[float, float] | None:
    """Return the lowest and the highest of some rates; None if there are none."""
    return (min(rates), max(rates)) if rates else None


def _mean(own: StoredAttempt, runs: Sequence[StoredAttempt], sigma: float, df: float) -> _Baseline:
    rates = [run.result.throughput or math.ulp(0.0) for run in runs]
    rate = math.exp(math.fsum(map(math.log, rates)) / len(rates))
    widths = [log_half_width(run.result, sigma, df) for run in runs]
    return _Baseline(own, rate, math.hypot(*widths) / len(widths))


def log_half_width(result: AttemptResult, sigma: float, df: float) -> float:
    """Return half of the 95 % interval of a run's log rate, by its blocks and by runs.

    Args:
        result: of the run; that of an earlier version has only one width for both.
        sigma: run-to-run noise that is known now; the run's own counts if it is larger.
        df: degrees of freedom of that noise.
    """
    known = (result.block_half_width, result.half_width)
    blocks = next((width for width in known if width is not None), MEASUREMENT.unknown_width)
    return total_half_width(blocks, max(sigma, result.sigma_run or 0.0), df)
