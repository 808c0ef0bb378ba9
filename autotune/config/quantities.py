"""Times and sizes with units, as pydantic types: 90s, 2h, 4GiB."""

import re
import typing
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTE_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


_NUMBER = r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*"


def _seconds(value: Any) -> Any:
    pattern = f"{_NUMBER}([smhd])\\s*"
    if isinstance(value, str) and (match := re.fullmatch(pattern, value)):
        return float(match[1]) * _UNITS[match[2]]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("must be seconds, or a number with a unit such as 90s, 30m, 2h, 1d")
    return value


def _bytes(value: Any) -> Any:
    pattern = f"{_NUMBER}({'|'.join(_BYTE_UNITS)})\\s*"
    if isinstance(value, str) and (match := re.fullmatch(pattern, value)):
        return int(min(float(match[1]) * _BYTE_UNITS[match[2]], 2**61))
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"must be bytes, or a number with a unit: {', '.join(_BYTE_UNITS)}")
    return value


def _or_unit(number: dict[str, Any], units: typing.Iterable[str]) -> WithJsonSchema:
    text = {"type": "string", "pattern": f"^{_NUMBER}({'|'.join(units)})\\s*$"}
    return WithJsonSchema({"anyOf": [number, text]})


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(gt=0, le=10**9),
    _or_unit({"type": "number", "exclusiveMinimum": 0, "maximum": 10**9}, _UNITS),
]
Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(ge=2**20, le=2**60),
    _or_unit({"type": "integer", "minimum": 2**20, "maximum": 2**60}, _BYTE_UNITS),
]
