"""Column types for any text, JSON and number of a training run, in SQLite and PostgreSQL alike."""

import json
import math
from typing import Any

from sqlalchemy import Dialect, Float, Text
from sqlalchemy.types import TypeDecorator


class AnyText(TypeDecorator[str]):
    """Text of any characters.

    NUL and broken surrogates, which PostgreSQL refuses, are escaped.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Convert a value for the database."""
        if value is None:
            return None
        return value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


class AnyJson(TypeDecorator[Any]):
    """JSON in a text column.

    PostgreSQL's JSON type has no infinity, which an interval without bound needs.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert a value for the database."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Convert a value from the database."""
        return None if value is None else json.loads(value)


class AnyFloat(TypeDecorator[float]):
    """A number that may be NaN: SQLite stores NaN as NULL, and this type converts it back."""

    impl = Float
    cache_ok = True

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        """Convert a value from the database."""
        return math.nan if value is None else value
