"""Best configuration of each global batch, and gain at the user's own one. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.analysis.finalists import ConfirmationResult
from autotune.analysis.gate_runs import trial_checks
from autotune.analysis.node_speeds import at_home_speed
from autotune.measurement.estimate import Ratio, paired_ratio
from search_spaces.batch import global_batch_size, is_other_split
from search_spaces.knob import Knobs
from storage import Attempts, AttemptState, Purpose, StoredAttempt


@dataclass(frozen=True)
class BatchBest:
    """Fastest configuration with one global batch.

    Attributes:
        global_batch_size: samples per optimizer step over all ranks.
        trial: that it was tried in.
        throughput: as the search saw it, once; of another node as it would be where the baseline ran.
        speedup: over the baseline: the verdict's, else of the rounds that both ran, else as the search
            saw both, without an interval; None where the baseline did not run.
        rounds: that the speed-up rests on; 0: it was seen once.
    """

    global_batch_size: int
    trial: int
    knobs: dict[str, Any]
    throughput: float
    speedup: Ratio | None
    rounds: int


@dataclass(frozen=True)
class ConfirmedGain:
    """Gain that a verdict tells of a trial.

    Attributes:
        knobs: configuration that it is of: changes of the trial may have been taken back.
        speedup: over the baseline.
        rounds: that it rests on.
    """

    knobs: dict[str, Any]
    speedup: Ratio
    rounds: int


@dataclass(frozen=True)
class BatchChange:
    """Change of the global batch, which wants another learning rate.

    Attributes:
        before: global batch of the baseline.
        after: global batch of the recommended configuration.
        compared: True if rounds were searched for a gain without the change.
        best_knobs: fastest configuration that keeps the batch and is surely faster than the baseline;
            None if there is none.
        best_gain: its speed-up; None likewise.
    """

    before: int
    after: int
    compared: bool = False
    best_knobs: dict[str, Any] | None = None
    best_gain: Ratio | None = None


def best_per_batch(
    attempts: Attempts, world_size: int, confirmed: Mapping[int, ConfirmedGain]
) -> list[BatchBest]:
    """Return the best configuration of every global batch that was tried, the smallest batch first.

    Trials that were stopped early count; trials that the numerics gate has refused do not.

    Args:
        confirmed: what the verdict says, by trial; such a trial is the best of its batch.
    """
    checks = trial_checks(attempts)
    refused = {a.trial for a in checks if a.result.state == AttemptState.REFUSED}
    attempts = at_home_speed(attempts)
    grouped: dict[int, list[BatchBest]] = {}
    for attempt in attempts.searched().measured():
        if attempt.trial not in refused:
            one = _seen(attempts, attempt, world_size)
            if told := confirmed.get(attempt.trial):
                size = global_batch_size(told.knobs, world_size)
                one = replace(one, global_batch_size=size, **vars(told))
            grouped.setdefault(one.global_batch_size, []).append(one)
    return [
        max(grouped[size], key=lambda one: (one.trial in confirmed, *_worth(one)))
        for size in sorted(grouped)
    ]


def _worth(one: BatchBest) -> tuple[bool, float]:
    """Return a key that prefers what rounds have measured: of many seen once the luckiest leads."""
    return one.rounds > 0, one.speedup.value if one.speedup else one.throughput


def _seen(attempts: Attempts, attempt: StoredAttempt, world_size: int) -> BatchBest:
    baseline = attempts.baseline()
    throughput = attempt.result.throughput or 0.0
    confirmed = attempts.of(Purpose.CONFIRM).measured()
    own = {a.round: a.result.throughput for a in confirmed.of_trial(attempt.trial)}
    reference = () if baseline is None else confirmed.of_trial(baseline.trial)
    before = {a.round: a.result.throughput for a in reference}
    pairs = [(own[number], rate) for number, rate in before.items() if number in own]
    speedup = None
    if pairs:
        speedup = paired_ratio([new or 0.0 for new, _ in pairs], [old or 0.0 for _, old in pairs])
    elif baseline is not None and baseline.result.throughput:
        speedup = paired_ratio([throughput], [baseline.result.throughput])
    return BatchBest(
        global_batch_size=global_batch_size(attempt.knobs, world_size),
        trial=attempt.trial,
        knobs=attempt.knobs,
        throughput=throughput,
        speedup=speedup,
        rounds=len(pairs),
    )


def batch_change(knobs: Knobs, baseline: Knobs, world_size: int) -> BatchChange | None:
    """Return the change of the global batch; None if there is none."""
    before, after = global_batch_size(baseline, world_size), global_batch_size(knobs, world_size)
    return BatchChange(before, after) if before != after else None


def compared_batches(result: ConfirmationResult, world_size: int) -> BatchChange | None:
    """Return the change of the global batch, with the best configuration that needs none.

    None: the choice keeps the batch.
    """
    assert result.baseline is not None
    baseline = result.finalists[result.baseline].knobs
    change = batch_change(result.recommended_result.knobs, baseline, world_size)
    if change is None:
        return None
    rivals = [
        (one.gain, one.knobs)
        for trial, one in result.finalists.items()
        if trial != result.baseline and global_batch_size(one.knobs, world_size) == change.before
        if one.gain is not None and one.gain.faster
    ]
    if not rivals:
        return replace(change, compared=True)
    gain, knobs = max(rivals, key=lambda one: one[0].value)
    return replace(change, compared=True, best_knobs=knobs, best_gain=gain)


def counters_text(knobs: Knobs, baseline: Knobs) -> str:
    """Return what counts of micro-batches mean under another split of a global batch; else nothing."""
    if not is_other_split(knobs, baseline):
        return ""
    factor = knobs["micro_batch"] / baseline["micro_batch"]
    return (
        "What the job counts in micro-batches (such as validation and saving) now means "
        f"{factor:.3g} times as many samples."
    )
