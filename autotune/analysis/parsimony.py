"""The winner without the changes that bring nothing. Pure functions over what is recorded.

Who has changed eight knobs has changed some for nothing, and two may do the same. Changes that look idle
are taken back together, on paired rounds with and without them; where that costs something they are
halved. So it is shown of all that go back, and together, that they bring less than half a per cent.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.attribution import changed, less, variants
from autotune.analysis.confirmation import FEWEST_ROUNDS
from autotune.measurement.contrasts import Contrast, Rates, contrast
from autotune.measurement.group_sequential import look_level, looks_after_each_round
from search_spaces import Facts, infeasible
from storage import Attempts, Purpose

Knobs = Mapping[str, Any]

NEGLIGIBLE = math.log(1.005)
"""What is taken back brings surely less than this."""
_ERROR = 0.05
"""One-sided, of the test of all idle changes together; half of that of each of its parts."""
_SURE = 0.05
_FUTILE = 0.2
_STAGE = 50
"""Rounds have numbers: so many to each group that is tried, those of the attribution first."""
_MOST_GROUPS = 7
LAST_STAGE = _MOST_GROUPS + 1
"""Of the attribution of what is left of the winner."""


@dataclass(frozen=True)
class Step:
    """A round to be measured.

    Attributes:
        round: its number.
        configurations: to run in turn.
    """

    round: int
    configurations: list[dict[str, Any]]


@dataclass(frozen=True)
class Spared:
    """The winner as far as it is known what it can do without.

    Attributes:
        knobs: of it, without the changes that are known to bring nothing.
        next: what to measure to know more; None: nothing.
    """

    knobs: dict[str, Any]
    next: Step | None


@dataclass(frozen=True)
class _Group:
    names: tuple[str, ...]
    error: float


def spared(
    attempts: Attempts, winner: Knobs, baseline: Knobs, facts: Facts, *, rounds: int, most: int
) -> Spared:
    """What the winner can do without, from the records alone.

    Args:
        attempts: of the trial that it is.
        winner: a value for every knob.
        baseline: likewise.
        facts: about the machine and the study.
        rounds: of the attribution, by which changes look idle; at least two.
        most: rounds for each group of changes.
    """
    every = variants(winner, baseline, facts)
    seen, step = _measured(attempts, every, 0, rounds)
    if step:
        return Spared(dict(winner), step)
    return _without_groups(attempts, winner, baseline, facts, _idle(seen, every, most), most)


def _without_groups(
    attempts: Attempts,
    winner: Knobs,
    baseline: Knobs,
    facts: Facts,
    idle: Sequence[dict[str, Any]],
    most: int,
) -> Spared:
    kept = dict(winner)
    names = [
        name for name in changed(kept, baseline) if _less(kept, baseline, [name], facts) in idle
    ]
    # That all changes together bring something is known: it has beaten the baseline.
    whole = len(names) < len(changed(kept, baseline))
    free = dataclasses.replace(facts, global_batch=None)
    groups = [_Group(tuple(names), _ERROR)] if whole else _halves(_Group(tuple(names), _ERROR))
    for stage in range(1, _MOST_GROUPS + 1):
        groups = [group for group in groups if group.names]
        if not groups:
            break
        group, *groups = groups
        without = _less(kept, baseline, group.names, facts)
        if infeasible(without, free) or not changed(without, baseline):
            groups = [*_halves(group), *groups]
            continue
        # Against the winner as it was: what all that went back brings together is what is negligible.
        step, accepted = _tried(attempts, winner, without, stage, most, group.error)
        if step:
            return Spared(kept, step)
        if accepted:
            kept = without
        else:
            groups = [*_halves(group), *groups]
    return Spared(kept, None)


def _halves(group: _Group) -> list[_Group]:
    if len(group.names) < 2:
        return []
    middle = len(group.names) // 2
    parts = group.names[:middle], group.names[middle:]
    return [_Group(part, group.error / 2) for part in parts]


def _less(winner: Knobs, baseline: Knobs, names: Sequence[str], facts: Facts) -> dict[str, Any]:
    """The winner without these changes, and those that do not go without them."""
    knobs = dict(winner)
    for name in names:
        knobs = less(knobs, baseline, name, facts)
    return knobs


def _idle(seen: Rates, every: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Variants of the winner that are not surely slower by more than what is negligible, whether or not
    they are."""
    found = []
    for place in range(1, len(every)):
        both = [arms for arms in seen.values() if 0 in arms and place in arms]
        if len(both) < 2:
            continue  # it failed, or was not compared
        gain = contrast(seen, 0, place, others=math.inf)
        if not _can_tell(gain, len(both), most):
            continue
        if gain.value - gain.beyond(_SURE) <= NEGLIGIBLE:
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
    """What to measure to know whether the winner can do without these changes, or whether it can."""
    for count in range(min(FEWEST_ROUNDS, most), most + 1):
        seen, step = _measured(attempts, [dict(winner), without], stage, count)
        if step:
            return step, False
        if len(seen) < 2 or any(len(arms) < 2 for arms in seen.values()):
            return None, False  # it does not run
        gain = contrast(seen, 0, 1)
        looks = looks_after_each_round(FEWEST_ROUNDS, count)
        if gain.value + gain.beyond(look_level(looks, most, error)) < NEGLIGIBLE:
            return None, True
        if gain.value - gain.beyond(_FUTILE) > NEGLIGIBLE or not _can_tell(gain, count, most):
            return None, False
    return None, False


def _can_tell(gain: Contrast, count: int, most: int) -> bool:
    """Whether the most rounds would show that changes bring nothing, if they bring nothing and the noise
    goes on like this.

    Args:
        gain: by so many rounds.
    """
    return gain.beyond(_ERROR) * math.sqrt(count / most) < NEGLIGIBLE


def _measured(
    attempts: Attempts, configurations: Sequence[dict[str, Any]], stage: int, rounds: int
) -> tuple[Rates, Step | None]:
    """Rates by round and place among the configurations; or the round that is to be measured.

    Of a round that ran in several environments nothing is compared.
    """
    runs = attempts.of(Purpose.ATTRIBUTE).recorded()
    found: dict[int, dict[int, float]] = {}
    for number in range(stage * _STAGE + 1, stage * _STAGE + rounds + 1):
        own = [runs.in_round(number).with_knobs(knobs).last for knobs in configurations]
        if None in own:
            return found, Step(number, list(configurations))
        here = [run for run in own if run is not None]
        if len({run.environment for run in here}) == 1:
            rates = {place: run.result.throughput for place, run in enumerate(here)}
            found[number] = {place: rate for place, rate in rates.items() if rate is not None}
    return found, None


def attribution_rounds(rounds: int, *, reduced: bool) -> range:
    """Numbers of the rounds that tell what each change of the winner brings.

    Args:
        rounds: of the attribution.
        reduced: of the winner without the changes that bring nothing.
    """
    first = LAST_STAGE * _STAGE if reduced else 0
    return range(first + 1, first + rounds + 1)
