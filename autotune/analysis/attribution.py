"""Ablation: gain that each changed knob of the winner brings, by reverting one change at a time.

Pure functions over records.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.measurement.contrasts import contrast
from autotune.measurement.estimate import CONFIDENCE, Ratio
from search_spaces import Facts, infeasible
from search_spaces.constraints import Conflict, asked_by, broken, clashing, global_batch
from storage import Attempts, Purpose

Knobs = Mapping[str, Any]


@dataclass(frozen=True)
class Contribution:
    """Gain of one changed knob.

    Attributes:
        knob: its name.
        before: its value in the baseline.
        after: its value in the winner.
        gain: throughput of the winner over that of the winner without this change; the intervals of all
            changes hold at once (Bonferroni), with the noise pooled over all of them.
        rounds: number of rounds that the gain rests on.
        tied: knobs that had to be reverted with it.
    """

    knob: str
    before: Any
    after: Any
    gain: Ratio
    rounds: int
    tied: tuple[str, ...] = ()


def variants(winner: Knobs, baseline: Knobs, facts: Facts) -> list[dict[str, Any]]:
    """Return the winner, then the winner less one change each, without those that cannot run."""
    without = [less(winner, baseline, name, facts) for name in changed_knobs(winner, baseline)]
    free = dataclasses.replace(facts, global_batch=None)
    return [dict(winner), *(knobs for knobs in without if not infeasible(knobs, free))]


def changed_knobs(winner: Knobs, baseline: Knobs) -> list[str]:
    """Return the knobs that are reverted one by one.

    For a global batch that is split otherwise it is the micro-batch alone.
    """
    changed = [name for name in winner if winner[name] != baseline[name]]
    if _split_otherwise(winner, baseline):
        changed.remove("accumulation_steps")
    return changed


def _split_otherwise(winner: Knobs, baseline: Knobs) -> bool:
    """Return whether both have equal samples per rank and step, in other micro-batches."""
    same = global_batch(winner, 1) == global_batch(baseline, 1)
    return same and winner["micro_batch"] != baseline["micro_batch"]


def less(winner: Knobs, baseline: Knobs, name: str, facts: Facts | None) -> dict[str, Any]:
    """Return the winner with this knob reverted, and all knobs that do not go with that."""
    knobs = {**winner, name: baseline[name]}
    if name == "micro_batch" and _split_otherwise(winner, baseline):
        knobs["accumulation_steps"] = baseline["accumulation_steps"]
    known = set(clashing(winner))  # of another device than its own
    while ill_matched := _ill_matched(knobs, known, facts):
        tied = {other for other in ill_matched if knobs[other] != baseline[other]}
        if not tied:
            break  # it is the baseline that clashes, where it was never run
        knobs |= {other: baseline[other] for other in tied}
    return knobs


def _ill_matched(knobs: Knobs, known: Collection[Conflict], facts: Facts | None) -> set[str]:
    """Return knobs that do not go together, or that break a constraint of the study's own."""
    rules = broken(knobs, facts) if facts else ()
    pairs = {name for clash in set(clashing(knobs)) - set(known) for name in clash.pair}
    return pairs | {name for rule in rules for name in asked_by(rule, knobs)}


def contributions(
    attempts: Attempts, winner: Knobs, baseline: Knobs, facts: Facts | None = None
) -> list[Contribution]:
    """Return the contribution of every changed knob that was measured, the largest gain first.

    Args:
        attempts: attempts of the study.
        winner: a value for every knob.
        baseline: a value for every knob.
        facts: facts about the machine and the study; None: it has no constraints of its own.
    """
    gains = list(_contributions(attempts, winner, baseline, facts))
    return sorted(gains, key=lambda contribution: -contribution.gain.value)


def _contributions(
    attempts: Attempts, winner: Knobs, baseline: Knobs, facts: Facts | None
) -> Iterator[Contribution]:
    names = changed_knobs(winner, baseline)
    without = [less(winner, baseline, name, facts) for name in names]
    rates = _rates(attempts, [winner, *without])
    for place, name in enumerate(names, 1):
        both = [arms for arms in rates.values() if 0 in arms and place in arms]
        if both:
            found = contrast(rates, 0, place, others=math.inf)
            gain = found.ratio((1 - CONFIDENCE) / 2 / len(names))
            own = without[place - 1]
            tied = tuple(n for n in winner if own[n] != winner[n] and n != name)
            yield Contribution(name, baseline[name], winner[name], gain, len(both), tied)


def _rates(attempts: Attempts, several: Sequence[Knobs]) -> dict[int, dict[int, float]]:
    """Return rates by round and place among these configurations.

    Attempts of one round in several environments count as rounds of their own: machines are not
    compared.
    """
    runs = attempts.of(Purpose.ATTRIBUTE).measured()
    found: dict[tuple[int, int | None], dict[int, float]] = {}
    for place, knobs in enumerate(several):
        for run in runs.with_knobs(knobs):
            arms = found.setdefault((run.round, run.environment), {})
            arms[place] = run.result.throughput or math.ulp(0.0)
    return dict(enumerate(found.values()))
