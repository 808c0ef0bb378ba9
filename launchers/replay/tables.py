"""Replay tables: a CSV file with a row per configuration, and beside it where it was recorded.

A table has a column per knob, then throughput (empty unless the state is COMPLETE), trial_seconds and
state (COMPLETE, OOM or ERROR). A file of the same name ending in .json holds the study, the environment
and the noise between runs.
"""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import BadInput
from autotune.worker.protocol import Knobs, Outcome
from search_spaces.knob import written

THROUGHPUT, SECONDS, STATE = "throughput", "trial_seconds", "state"
_MEASURED = (THROUGHPUT, SECONDS, STATE)
COMPLETE = "COMPLETE"
_STATES = {COMPLETE, *Outcome}

Row = Mapping[str, Any]
"""Knob names and the three measured columns -> value; throughput is None unless COMPLETE."""


class Table:
    """Rows by configuration.

    Attributes:
        rows: rows in the order of the file.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[Row]) -> None:
        self.names = list(names)
        self.rows = list(rows)
        self._by_configuration = {self._key(row): row for row in rows}

    def row(self, knobs: Knobs) -> Row | None:
        """Return the row of a configuration, whatever its other knobs are; None if there is none."""
        return self._by_configuration.get(self._key(knobs))

    def lacks(self, knobs: Knobs) -> str:
        """Return why there is no answer for a configuration; empty if there is one."""
        if self.row(knobs) is not None:
            return ""
        shown = ", ".join(f"{name}={written(knobs[name])}" for name in self.names)
        return f"the table has no row for {shown}"

    @cached_property
    def values(self) -> dict[str, list[Any]]:
        """The values of each knob, numbers in order."""
        return {name: _in_order({row[name] for row in self.rows}) for name in self.names}

    @cached_property
    def complete(self) -> list[Row]:
        """The rows that did not fail."""
        return [row for row in self.rows if row[STATE] == COMPLETE]

    @cached_property
    def best(self) -> float:
        """The highest throughput."""
        rates: list[float] = [row[THROUGHPUT] for row in self.complete]
        return max(rates)

    @cached_property
    def slowest(self) -> float:
        """The lowest throughput."""
        rates: list[float] = [row[THROUGHPUT] for row in self.complete]
        return min(rates)

    def _key(self, knobs: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(knobs[name] for name in self.names)


@dataclass(frozen=True)
class Origin:
    """Study and environment in which a table was recorded.

    Attributes:
        study: settings as in a study file.
        environment: fingerprint of the recording node.
        noise: relative standard deviation between runs of one configuration; None if none was run twice.
        workers: number of ranks of a run; None in tables of an earlier version.
    """

    study: dict[str, Any]
    environment: dict[str, Any]
    noise: float | None
    workers: int | None = None


def read_table(path: Path) -> Table:
    """Return the table in a file, with parsed values.

    Raises:
        BadInput: the file cannot be read, a column is missing, or no row is COMPLETE.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            if missing := set(_MEASURED) - set(columns):
                raise BadInput(f"{path}: no column {', '.join(sorted(missing))}")
            names = [name for name in columns if name not in _MEASURED]
            table = Table(names, [_row(names, row) for row in reader])
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise BadInput(f"{path} is no replay table: {error}") from None
    if not any(row[THROUGHPUT] for row in table.rows):
        raise BadInput(f"{path}: no row has a throughput")
    return table


def read_origin(path: Path) -> Origin:
    """Return the study and environment in which the table of this file was recorded.

    Raises:
        BadInput: the JSON file beside the table is missing or unsuitable.
    """
    beside = path.with_suffix(".json")
    try:
        body = json.loads(beside.read_text("utf-8"))
        return Origin(body["study"], body["environment"], body.get("noise"), body.get("workers"))
    except OSError as error:
        raise BadInput(
            f"{beside} cannot be read ({error.strerror}): it tells where and how {path} was recorded, "
            "and `autotune record` writes both"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{beside} does not tell where {path} was recorded") from None


def write_table(path: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    """Write the rows to a file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, *_MEASURED])
        for row in rows:
            values = [shown_value(row[name]) for name in names]
            writer.writerow(
                [*values, shown_rate(row[THROUGHPUT]), f"{row[SECONDS]:.3f}", row[STATE]]
            )


def parsed(text: str) -> Any:
    """Return the value that search_spaces.knob.written wrote."""
    return yaml.safe_load(text)


def shown_value(value: Any) -> str:
    """Return the value of a knob as a file holds it.

    That is the usual notation, in quotes where it would be read as something else.
    """
    text = written(value)
    again = _read(text)
    if again == value and type(again) is type(value):
        return text
    return (
        str(yaml.safe_dump(value, width=math.inf, allow_unicode=True)).removesuffix("...\n").strip()
    )


def _read(text: str) -> Any:
    try:
        return parsed(text)
    except yaml.YAMLError:
        return None


def shown_rate(rate: float | None) -> str:
    """Return a throughput as a file holds it."""
    return "" if rate is None else f"{rate:.6g}"


def _row(names: Sequence[str], row: Mapping[str, str]) -> Row:
    """Return a line of the file, parsed.

    Raises:
        ValueError: the line is no possible result of a run.
    """
    rate, state = float(row[THROUGHPUT]) if row[THROUGHPUT] else None, row[STATE]
    if state not in _STATES:
        raise ValueError(f"state {state!r} is none of {', '.join(sorted(_STATES))}")
    if state == COMPLETE and not (rate and 0 < rate < math.inf):
        raise ValueError(f"throughput {row[THROUGHPUT]!r} of a COMPLETE row is no rate above 0")
    return {
        **{name: parsed(row[name]) for name in names},
        THROUGHPUT: rate,
        SECONDS: float(row[SECONDS]),
        STATE: state,
    }


def _in_order(values: set[Any]) -> list[Any]:
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return sorted(values)
    return sorted(values, key=str)
