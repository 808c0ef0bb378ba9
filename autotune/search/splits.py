"""Splits of a fixed global batch into micro-batches and accumulation. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search_spaces import CATALOGUE, Facts, KnobValue

MICRO_BATCH, ACCUMULATION = "micro_batch", "accumulation_steps"
_SPLIT = (MICRO_BATCH, ACCUMULATION)


@dataclass(frozen=True)
class Splits:
    """Pairs of micro-batch and accumulation that give the global batch.

    Attributes:
        steps: accumulation by micro-batch, the largest micro-batch first.
        left_out: listed values without a partner, with the reasons.
    """

    steps: Mapping[int, int]
    left_out: tuple[str, ...] = ()

    def described(self) -> str:
        """Text such as '64 x 1, 32 x 2, 16 x 4'."""
        return ", ".join(f"{size} x {steps}" for size, steps in self.steps.items())


def splits(
    listed: Mapping[str, Sequence[KnobValue]], baseline: Mapping[str, KnobValue], facts: Facts
) -> Splits | None:
    """Return the splits that a study tries; None if there is no choice.

    Any global batch may compete then, or no split varies. The split is one choice. A study that
    lists values of either knob gets every pair whose micro-batch or whose accumulation lies within
    the listed values, the baseline's included. A knob that is listed with one value only keeps it.

    Args:
        listed: values per knob of the study; other knobs may be present.
        baseline: a value for every knob.
        facts: facts of the study, with the global batch.
    """
    wanted = {name: _whole(listed[name], baseline[name]) for name in _SPLIT if name in listed}
    if facts.global_batch is None or not wanted:
        return None
    share, rest = divmod(facts.global_batch, facts.world_size)
    if rest:
        return None  # no configuration has the global batch: the baseline will be refused for that
    several = {name: values for name, values in wanted.items() if len(values) > 1}
    pairs = [(size, share // size) for size in divisors(share)]
    today = tuple(int(baseline[name]) for name in _SPLIT)
    held = len(several) < len(wanted)
    steps = {
        size: steps
        for size, steps in pairs
        if (size, steps) == today or (not held and _tried((size, steps), several))
    }
    left_out = tuple(_without_partner(wanted, steps, share, facts))
    return Splits(steps, left_out)


def _whole(listed: Sequence[KnobValue], today: KnobValue) -> list[int]:
    return sorted({int(value) for value in (*listed, today)})


def divisors(number: int) -> list[int]:
    """Return the divisors of a number above 0, the largest first."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)}, reverse=True)


def _tried(pair: tuple[int, int], wanted: Mapping[str, list[int]]) -> bool:
    named = dict(zip(_SPLIT, pair, strict=True))
    if any(CATALOGUE[name].domain.problem(value) for name, value in named.items()):
        return False
    return any(values[0] <= named[name] <= values[-1] for name, values in wanted.items())


def _without_partner(
    wanted: Mapping[str, list[int]], steps: Mapping[int, int], share: int, facts: Facts
) -> list[str]:
    tried = {MICRO_BATCH: set(steps), ACCUMULATION: set(steps.values())}
    reasons = []
    for name, values in wanted.items():
        lonely = [str(value) for value in values if value not in tried[name]]
        if lonely:
            reasons.append(
                f"{name} {', '.join(lonely)} {'has' if len(lonely) == 1 else 'have'} no partner that "
                f"gives {share} samples per rank and step, a global batch of {facts.global_batch}"
            )
    return reasons
