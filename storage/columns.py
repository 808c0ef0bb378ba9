"""Column types that take whatever a training run comes up with, in SQLite and PostgreSQL alike."""

import json
import math
from typing import Any

from sqlalchemy import Dialect, Float, Text
from sqlalchemy.types import TypeDecorator


class AnyText(TypeDecorator[str]):
    """Text of any characters: NUL and broken surrogates, which PostgreSQL refuses, are escaped."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To the database."""
        if value is None:
            return None
        return value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


class AnyJson(TypeDecorator[Any]):
    """JSON in a text column: PostgreSQL's own has no infinity, and a figure may have no bound."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """To the database."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """From the database."""
        return None if value is None else json.loads(value)


class AnyFloat(TypeDecorator[float]):
    """A number that may be none: SQLite turns NaN into NULL, and this turns it back."""

    impl = Float
    cache_ok = True

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        """From the database."""
        return math.nan if value is None else value
