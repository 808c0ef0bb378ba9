"""Description of the part of a search space that the constraints leave."""

import random
from collections.abc import Iterator, Mapping

from optuna.distributions import CategoricalDistribution

from autotune.search.space import Space
from search_spaces import KnobValue
from search_spaces.batch import ACCUMULATION, MICRO_BATCH
from search_spaces.knob import written

_COUNTED = 20_000
"""Largest number of combinations that are checked one by one, in a second; of more a sample is."""
_DRAWN = 2_000
_DRAWN_PER_VALUE = 500


def outline(
    space: Space, global_batch_size: int | None, *, batch_known: bool = True
) -> Iterator[str]:
    """Yield the number of remaining configurations, then the values that are in none, with reasons.

    Args:
        global_batch_size: global batch of all configurations; None: any.
        batch_known: whether samples of a step are known.
    """
    batches = (
        _split(space, global_batch_size) if batch_known else "with batches as the script makes them"
    )
    yield f"{_counted(space)}, {batches}."
    for name, values in _varied(space).items():
        lonely = [value for value in values if not _has_partner(space, name, value)]
        if lonely:
            shown = ", ".join(map(written, lonely))
            reason = space.problems({**_baseline(space), name: lonely[0]})[0]
            yield f"{name} {shown} {'has' if len(lonely) == 1 else 'have'} no partner: {reason}"


def _counted(space: Space) -> str:
    generator = random.Random(0)
    if space.size <= _COUNTED:
        left = sum(1 for _ in space.feasible(generator))
        return f"{left:,} configuration{'s remain' if left != 1 else ' remains'}"
    several = _varied(space)
    draws = (
        {name: generator.choice(values) for name, values in several.items()} for _ in range(_DRAWN)
    )
    share = sum(not space.problems(params) for params in draws) / _DRAWN
    return f"About {float(f'{share * space.size:.2g}'):,.0f} configurations remain"


def _split(space: Space, global_batch_size: int | None) -> str:
    if global_batch_size is None:
        return "of any global batch"
    baseline = space.complete(_baseline(space))
    own = f"{baseline[MICRO_BATCH]} x {baseline[ACCUMULATION]}"
    text = f"all with your global batch of {global_batch_size:,}"
    if space.splits is None or len(space.splits.steps) == 1:
        return f"{text}, in micro_batch x accumulation_steps of {own}"
    return (
        f"{text}, in {len(space.splits.steps)} splits (micro_batch x accumulation_steps): "
        f"{space.splits.described()}; yours is {own}"
    )


def _varied(space: Space) -> dict[str, list[KnobValue]]:
    found = {}
    for name, domain in space.distributions().items():
        assert isinstance(domain, CategoricalDistribution)
        found[name] = [value for value in domain.choices if value is not None]
    return found


def _baseline(space: Space) -> dict[str, KnobValue]:
    """Return the baseline's values of the varying knobs."""
    knobs = space.complete({})
    return {name: knobs[name] for name in space.distributions()}


def _has_partner(space: Space, name: str, value: KnobValue) -> bool:
    """Return whether some feasible configuration has the value.

    Tried are the baseline with the value, with one more change, and many random configurations.
    """
    return any(not space.problems(params) for params in _with(space, name, value))


def _with(space: Space, name: str, value: KnobValue) -> Iterator[Mapping[str, KnobValue]]:
    near = {**_baseline(space), name: value}
    several = {other: values for other, values in _varied(space).items() if other != name}
    yield near
    for other, values in several.items():
        yield from ({**near, other: changed} for changed in values)
    generator = random.Random(0)
    for _ in range(_DRAWN_PER_VALUE):
        yield {**{n: generator.choice(values) for n, values in several.items()}, name: value}
