"""Decode JSON into dataclasses, by their type hints."""

import dataclasses
import functools
import json
import types
from collections.abc import Callable
from enum import Enum
from typing import (
    Any,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Decoder = Callable[[Any], Any]
Made = TypeVar("Made")


class AsJson:
    """Base class of dataclasses that are written as JSON."""

    def to_text(self) -> str:
        """Return the object as JSON."""
        return json.dumps(dataclasses.asdict(cast(Any, self)), default=str)

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Return the object that `to_text` wrote.

        Raises:
            ValueError: the text has another form.
        """
        return decoded(cls, json.loads(text))


def decoded(made: type[Made], value: Any) -> Made:
    """Return decoded JSON as a value of a type, see `decoder`."""
    found: Made = decoder(cast(Any, made))(value)
    return found


@functools.cache
def decoder(hint: Any) -> Decoder:
    """Return a function that turns decoded JSON into a value of a type.

    Types are a dataclass, a tuple, list[T], dict[str, T], T | None, an enum, a TypedDict, or a type
    that JSON has itself, whose values are returned unchanged. Unknown fields of a dataclass are
    ignored, and fields that have a default may be missing. The keys of a TypedDict are not checked.
    A class with a function `from_json` is decoded by that.

    The decoder raises ValueError where the JSON has another form, a field is missing, or an enum
    has no such value.

    Raises:
        TypeError: a message cannot hold this type.
    """
    if own := getattr(hint, "from_json", None):
        return cast(Decoder, own)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(hint, arguments)
    if origin is tuple:
        return _sequence(tuple, arguments[0]) if arguments[1:] == (...,) else _row(arguments)
    if origin is list:
        return _sequence(list, arguments[0])
    if origin is dict:
        return _mapping(arguments[1])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    if is_typeddict(hint):
        return lambda value: _checked(value, dict)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if hint in (Any, bool, int, float, str):
        return _as_it_comes
    raise TypeError(f"{hint} cannot be decoded from JSON")


def _as_it_comes(value: Any) -> Any:
    return value


def _optional(hint: Any, arguments: tuple[Any, ...]) -> Decoder:
    others = [argument for argument in arguments if argument is not types.NoneType]
    if len(others) != 1:
        raise TypeError(f"{hint}: JSON does not tell which of these types it holds")
    known = decoder(others[0])
    return lambda value: None if value is None else known(value)


def _sequence(made: type, hint: Any) -> Decoder:
    each = decoder(hint)
    if each is _as_it_comes:
        return lambda value: made(_checked(value, list))
    return lambda value: made(map(each, _checked(value, list)))


def _row(hints: tuple[Any, ...]) -> Decoder:
    each = [decoder(hint) for hint in hints]

    def decode(value: Any) -> Any:
        pairs = zip(each, _checked(value, list), strict=True)
        return tuple(known(part) for known, part in pairs)

    return decode


def _mapping(hint: Any) -> Decoder:
    each = decoder(hint)
    if each is _as_it_comes:
        return lambda value: _checked(value, dict)
    return lambda value: {name: each(item) for name, item in _checked(value, dict).items()}


def _dataclass(made: type) -> Decoder:
    hints = get_type_hints(made)
    fields = {field.name: decoder(hints[field.name]) for field in dataclasses.fields(made)}

    def decode(value: Any) -> Any:
        known = _checked(value, dict).items()
        values = {name: fields[name](item) for name, item in known if name in fields}
        try:
            return made(**values)
        except TypeError as error:  # a field is missing
            raise ValueError(f"a broken {made.__name__}: {error}") from None

    return decode


def _checked(value: Any, expected: type) -> Any:
    if not isinstance(value, expected):
        raise ValueError(f"{value!r:.80} where JSON should have a {expected.__name__}")
    return value
