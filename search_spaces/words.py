"""Words in which a consumer of a recommendation is told a knob (`autotune export`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Knobs = Mapping[str, Any]
Fields = dict[str, Any]
Rule = Callable[[Any, Knobs], Fields | None]
"""From the value of a knob, and all that a constraint may ask for, to fields of the consumer.

None: it has no word for the value. No fields at all: it does so without being told, unless a script told
it something else before.
"""


@dataclass(frozen=True)
class Words:
    """The words of one consumer for one knob.

    Attributes:
        by_itself: from all knobs, what the consumer does without being told; None: PyTorch's default.
    """

    say: Rule
    by_itself: Callable[[Knobs], Any] | None = None


def _anywhere(_: Knobs) -> bool:
    return True


def field(name: str, where: Callable[[Knobs], bool] = _anywhere) -> Words:
    """Return a field that takes the value as it is.

    Args:
        where: beside which other values there is such a field.
    """
    return Words(lambda value, knobs: {name: value} if where(knobs) else None)


def one_of(
    fields: Mapping[Any, Fields],
    where: Callable[[Knobs], bool] = _anywhere,
    by_itself: Callable[[Knobs], Any] | None = None,
) -> Words:
    """Return fields for each value that the consumer knows; `where` and `by_itself` as elsewhere."""
    return Words(lambda value, knobs: fields.get(value) if where(knobs) else None, by_itself)


def without(by_itself: Callable[[Knobs], Any]) -> Words:
    """Return that a consumer has no word for a knob, and what it does by itself."""
    return Words(lambda *_: None, by_itself)
