"""Where any global batch may win: the best of each, and what is gained at the user's own. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.levels import levelled
from autotune.analysis.wording import difference
from autotune.measurement.estimate import Ratio, paired_ratio
from search_spaces.constraints import global_batch
from storage import Attempts, AttemptState, Purpose, StoredAttempt

Knobs = Mapping[str, Any]


@dataclass(frozen=True)
class BatchBest:
    """The fastest configuration with one global batch.

    Attributes:
        global_batch: samples per optimizer step over all ranks.
        trial: that it was tried in.
        knobs: of it.
        throughput: as the search saw it, once; of another node as it would be where the baseline ran.
        speedup: over the baseline: of the rounds that both ran, else as the search saw both, without an
            interval; None where the baseline did not run.
        rounds: that the speed-up rests on; 0: it was seen once.
    """

    global_batch: int
    trial: int
    knobs: dict[str, Any]
    throughput: float
    speedup: Ratio | None
    rounds: int


def best_per_batch(attempts: Attempts, world_size: int) -> list[BatchBest]:
    """The best of every global batch that was tried, the smallest first; trials that were stopped early
    are among them, what the numerics gate has refused is not."""
    refused = {
        a.trial for a in attempts.of(Purpose.NUMERICS) if a.result.state == AttemptState.REFUSED
    }
    attempts = levelled(attempts)
    grouped: dict[int, list[BatchBest]] = {}
    for attempt in attempts.searched().measured():
        if attempt.trial not in refused:
            one = _seen(attempts, attempt, world_size)
            grouped.setdefault(one.global_batch, []).append(one)
    return [max(grouped[size], key=_worth) for size in sorted(grouped)]


def _worth(one: BatchBest) -> tuple[bool, float]:
    """What was measured in rounds is compared first: of many seen once the luckiest looks best."""
    return one.rounds > 0, one.speedup.value if one.speedup else one.throughput


def _seen(attempts: Attempts, attempt: StoredAttempt, world_size: int) -> BatchBest:
    today = attempts.baseline()
    throughput = attempt.result.throughput or 0.0
    confirmed = attempts.of(Purpose.CONFIRM).measured()
    own = {a.round: a.result.throughput for a in confirmed.of_trial(attempt.trial)}
    before = [] if today is None else list(confirmed.of_trial(today.trial))
    pairs = [(own[a.round], a.result.throughput) for a in before if a.round in own]
    speedup = None
    if pairs:
        speedup = paired_ratio([new or 0.0 for new, _ in pairs], [old or 0.0 for _, old in pairs])
    elif today is not None and today.result.throughput:
        speedup = paired_ratio([throughput], [today.result.throughput])
    return BatchBest(
        global_batch=global_batch(attempt.knobs, world_size),
        trial=attempt.trial,
        knobs=attempt.knobs,
        throughput=throughput,
        speedup=speedup,
        rounds=len(pairs),
    )


def change(knobs: Knobs, today: Knobs, world_size: int) -> str:
    """That the global batch becomes another, in a sentence that begins with a space; empty if it does
    not."""
    before, after = global_batch(today, world_size), global_batch(knobs, world_size)
    if before == after:
        return ""
    return f" The global batch changes from {before} to {after}: adjust the learning rate."


def at_both(confirmation: Confirmation, chosen: int, baseline: int, world_size: int) -> str:
    """What is gained at the baseline's global batch, and what if it may change, in a sentence; empty
    where the chosen one keeps it."""
    today = confirmation.candidates[baseline].knobs
    text = change(confirmation.candidates[chosen].knobs, today, world_size)
    if not text:
        return ""
    before = global_batch(today, world_size)
    after = global_batch(confirmation.candidates[chosen].knobs, world_size)
    rivals = [
        (gain, candidate.knobs)
        for trial, candidate in confirmation.candidates.items()
        if trial != baseline and trial not in confirmation.failed
        if global_batch(candidate.knobs, world_size) == before
        if confirmation.rates(trial) and (gain := confirmation.gain(trial)).low > 1
    ]
    if not rivals:
        return f"{text} At your {before} nothing that was tried is surely faster."
    best, knobs = max(rivals, key=lambda one: one[0].value)
    direction = "grow" if after > before else "shrink"
    larger = confirmation.gain(chosen).value
    return (
        f"{text} {best.value:.2f}x ({best.low:.2f} to {best.high:.2f}) at your {before}, with "
        f"{difference(knobs, today)}; {larger:.2f}x if it may {direction} to {after}."
    )
