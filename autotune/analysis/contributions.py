"""Ablation: what each changed knob of the winner brings, and the winner without idle changes.

One change is reverted at a time. Of eight changed knobs some bring nothing, and two may have one
effect. Changes that look idle are reverted together, after paired rounds with and without them. Where
that costs speed, they are halved. So it is shown of all reverted changes together that they bring less
than half a per cent. Pure functions over records.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.policy import PROOF
from autotune.analysis.round_results import runs_that_compare
from autotune.measurement.contrasts import Contrast, Rates, contrast
from autotune.measurement.estimate import CONFIDENCE, Ratio
from autotune.measurement.group_sequential import look_level, looks_after_each_round
from search_spaces import Facts, infeasible
from search_spaces.batch import is_other_split
from search_spaces.constraints import Conflict, asked_by, broken, conflicts_in
from search_spaces.knob import Knobs, changed_knobs
from storage import Attempts, Purpose

NEGLIGIBLE = math.log1p(PROOF.idle_gain)
"""Log gain below which the reverted changes surely lie."""
_STAGE = 50
"""Numbers of rounds that each group has, those of the ablation first."""
LAST_STAGE = PROOF.idle_groups + 1
"""Stage of the ablation of the reduced winner."""


@dataclass(frozen=True)
class Contribution:
    """Gain of one changed knob.

    Attributes:
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
    """Return the winner, then the winner without one change each, as far as these can run."""
    without = [
        without_change(winner, baseline, name, facts) for name in revertible_knobs(winner, baseline)
    ]
    free = dataclasses.replace(facts, global_batch_size=None)
    return [dict(winner), *(knobs for knobs in without if not infeasible(knobs, free))]


def revertible_knobs(winner: Knobs, baseline: Knobs) -> list[str]:
    """Return the knobs that are reverted one by one.

    For a global batch that is split otherwise it is the micro-batch alone.
    """
    changed = [*changed_knobs(winner, baseline)]
    if is_other_split(winner, baseline):
        changed.remove("accumulation_steps")
    return changed


def without_change(
    winner: Knobs, baseline: Knobs, name: str, facts: Facts | None
) -> dict[str, Any]:
    """Return the winner with this knob reverted, and all knobs that do not go with that."""
    knobs = {**winner, name: baseline[name]}
    if name == "micro_batch" and is_other_split(winner, baseline):
        knobs["accumulation_steps"] = baseline["accumulation_steps"]
    known = set(conflicts_in(winner))  # of another device than its own
    while ill_matched := _ill_matched(knobs, known, facts):
        tied = {other for other in ill_matched if knobs[other] != baseline[other]}
        if not tied:
            break  # the conflict is in the baseline itself, where it was never run
        knobs |= {other: baseline[other] for other in tied}
    return knobs


def _ill_matched(knobs: Knobs, known: Collection[Conflict], facts: Facts | None) -> set[str]:
    """Return knobs that do not go together, or that break a constraint of the study's own."""
    rules = broken(knobs, facts) if facts else ()
    pairs = {name for conflict in set(conflicts_in(knobs)) - set(known) for name in conflict.pair}
    return pairs | {name for rule in rules for name in asked_by(rule, knobs)}


def contributions(
    attempts: Attempts, winner: Knobs, baseline: Knobs, facts: Facts | None = None
) -> list[Contribution]:
    """Return the contribution of every changed knob that was measured, the largest gain first.

    Args:
        winner: a value for every knob.
        baseline: a value for every knob.
        facts: facts about the machine and the study; None: it has no constraints of its own.
    """
    gains = list(_contributions(attempts, winner, baseline, facts))
    return sorted(gains, key=lambda contribution: -contribution.gain.value)


def _contributions(
    attempts: Attempts, winner: Knobs, baseline: Knobs, facts: Facts | None
) -> Iterator[Contribution]:
    names = revertible_knobs(winner, baseline)
    without = [without_change(winner, baseline, name, facts) for name in names]
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
    runs = attempts.of(Purpose.ABLATION).recorded()
    found: dict[tuple[int, int | None], dict[int, float]] = {}
    for number in sorted({run.round for run in runs}):
        comparable = runs_that_compare(runs, number).measured()
        for place, knobs in enumerate(several):
            for run in comparable.with_knobs(knobs):
                arms = found.setdefault((number, run.environment), {})
                arms[place] = run.result.throughput or math.ulp(0.0)
    return dict(enumerate(found.values()))


@dataclass(frozen=True)
class Step:
    """A round to be measured."""

    round: int
    configurations: list[dict[str, Any]]


@dataclass(frozen=True)
class Reduction:
    """Winner without the changes that are known to bring nothing.

    Attributes:
        next: round to measure next; None: all is known, or a check is missing.
        to_check: smaller winner that must be checked before it may stand for this one; None: none is.
    """

    knobs: dict[str, Any]
    next: Step | None
    to_check: dict[str, Any] | None = None


class CheckOutcome(enum.Enum):
    """Outcome of the checks of a reduced winner."""

    PASSED = enum.auto()
    REFUSED = enum.auto()
    OPEN = enum.auto()
    """A run is missing."""


Judge = Callable[[Knobs], CheckOutcome]


@dataclass(frozen=True)
class _Group:
    """Changes that are tested together, with the error of the test."""

    names: tuple[str, ...]
    error: float


def reduce_winner(
    attempts: Attempts,
    winner: Knobs,
    baseline: Knobs,
    facts: Facts,
    judge: Judge,
    *,
    rounds: int,
    most: int,
) -> Reduction:
    """Return the winner as far as the records reduce it.

    Args:
        attempts: attempts of the winner's trial.
        winner: a value for every knob.
        baseline: a value for every knob.
        facts: facts about the machine and the study.
        judge: tells whether what is left trains the same and fits, as the winner does.
        rounds: rounds of the ablation, by which changes look idle; at least two.
        most: most rounds for each group of changes.
    """
    every = variants(winner, baseline, facts)
    seen, step = _measured(attempts, every, 0, rounds)
    if step:
        return Reduction(dict(winner), step)
    idle = _idle(seen, every, most)
    return _without_groups(attempts, winner, baseline, facts, judge, idle, most)


def _without_groups(
    attempts: Attempts,
    winner: Knobs,
    baseline: Knobs,
    facts: Facts,
    judge: Judge,
    idle: Sequence[dict[str, Any]],
    most: int,
) -> Reduction:
    kept = dict(winner)
    names = [
        name
        for name in revertible_knobs(kept, baseline)
        if _without_changes(kept, baseline, [name], facts) in idle
    ]
    # That all changes together bring something is known: it has beaten the baseline.
    whole = len(names) < len(revertible_knobs(kept, baseline))
    free = dataclasses.replace(facts, global_batch_size=None)
    groups = (
        [_Group(tuple(names), PROOF.idle_error)]
        if whole
        else _halves(_Group(tuple(names), PROOF.idle_error))
    )
    for stage in range(1, PROOF.idle_groups + 1):
        groups = [group for group in groups if group.names]
        if not groups:
            break
        group, *groups = groups
        without = _without_changes(kept, baseline, group.names, facts)
        runs = not infeasible(without, free) and revertible_knobs(without, baseline)
        if not runs or judge(without) is CheckOutcome.REFUSED:
            groups = [*_halves(group), *groups]
            continue
        # Against the winner as it was: what all that went back brings together is what is negligible.
        step, accepted = _tried(attempts, winner, without, stage, most, group.error)
        if step:
            return Reduction(kept, step)
        if accepted and judge(without) is CheckOutcome.OPEN:
            return Reduction(kept, None, without)
        if accepted:
            kept = without
        else:
            groups = [*_halves(group), *groups]
    return Reduction(kept, None)


def _halves(group: _Group) -> list[_Group]:
    if len(group.names) < 2:
        return []
    middle = len(group.names) // 2
    parts = group.names[:middle], group.names[middle:]
    return [_Group(part, group.error / 2) for part in parts]


def _without_changes(
    winner: Knobs, baseline: Knobs, names: Sequence[str], facts: Facts
) -> dict[str, Any]:
    """Return the winner without these changes, and those that do not go without them."""
    knobs = dict(winner)
    for name in names:
        knobs = without_change(knobs, baseline, name, facts)
    return knobs


def _idle(seen: Rates, every: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the variants of the winner that are not surely slower by more than what is negligible.

    Variants of which the rounds could not tell are left out.
    """
    found = []
    for place in range(1, len(every)):
        both = [arms for arms in seen.values() if 0 in arms and place in arms]
        if len(both) < 2:
            continue  # it failed, or was not compared
        gain = contrast(seen, 0, place, others=math.inf)
        if not _can_tell(gain, len(both), most):
            continue
        if gain.value - gain.beyond(PROOF.idle_sure) <= NEGLIGIBLE:
            found.append(every[place])
    return found


def _tried(
    attempts: Attempts,
    winner: Knobs,
    without: dict[str, Any],
    stage: int,
    most: int,
    error: float,
) -> tuple[Step | None, bool]:
    """Return the round that tells whether these changes bring nothing, or None and whether they do."""
    for count in range(min(PROOF.fewest_rounds, most), most + 1):
        seen, step = _measured(attempts, [dict(winner), without], stage, count)
        if step:
            return step, False
        if len(seen) < 2 or any(len(arms) < 2 for arms in seen.values()):
            return None, False  # it does not run
        gain = contrast(seen, 0, 1)
        looks = looks_after_each_round(PROOF.fewest_rounds, count)
        if gain.value + gain.beyond(look_level(looks, most, error)) < NEGLIGIBLE:
            return None, True
        if gain.value - gain.beyond(PROOF.idle_futile) > NEGLIGIBLE or not _can_tell(
            gain, count, most
        ):
            return None, False
    return None, False


def _can_tell(gain: Contrast, count: int, most: int) -> bool:
    """Return whether the most rounds would show of idle changes that they are, with noise like this."""
    return gain.beyond(PROOF.idle_error) * math.sqrt(count / most) < NEGLIGIBLE


def _measured(
    attempts: Attempts, configurations: Sequence[dict[str, Any]], stage: int, rounds: int
) -> tuple[Rates, Step | None]:
    """Return rates by round and place among the configurations, and the round to measure next.

    Rounds that ran in several environments are left out.
    """
    runs = attempts.of(Purpose.ABLATION).recorded()
    found: dict[int, dict[int, float]] = {}
    for number in range(stage * _STAGE + 1, stage * _STAGE + rounds + 1):
        comparable = runs_that_compare(runs, number)
        own = [comparable.with_knobs(knobs).last for knobs in configurations]
        if None in own:
            return found, Step(number, list(configurations))
        here = [run for run in own if run is not None]
        if len({run.environment for run in here}) == 1:
            rates = {place: run.result.throughput for place, run in enumerate(here)}
            found[number] = {place: rate for place, rate in rates.items() if rate is not None}
    return found, None


def ablation_rounds(rounds: int, *, reduced: bool) -> range:
    """Return the numbers of the rounds that tell what each change of the winner brings.

    Args:
        rounds: number of rounds of the ablation.
        reduced: True for the winner without the changes that bring nothing.
    """
    first = LAST_STAGE * _STAGE if reduced else 0
    return range(first + 1, first + rounds + 1)
