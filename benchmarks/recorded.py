"""A recorded table as a benchmark replays it: what its rows are worth, and runs drawn around that."""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from denoised import Denoised, denoised

from autotune.search.space import key
from launchers.replay.tables import THROUGHPUT, Row, read_table, write_table
from search_spaces import CATALOGUE
from search_spaces.batch import BATCH_KNOBS

_ROOM = 0.7


class Table:
    """A recorded table without its noise: what rows are worth, and how far runs lie from that."""

    def __init__(self, path: Path, *, anonymous: bool = False, noise: float | None = None) -> None:
        self.name, self.path = path.stem, path
        found = read_table(path)
        self.known_as = {name: _hidden(name, anonymous) for name in found.names}
        self.names = list(self.known_as.values())
        self.values = {self.known_as[name]: values for name, values in found.values.items()}
        self.denoised: Denoised = denoised(path, found.names)
        self.best = math.exp(max(self.denoised.truth.values()))
        self.noise = self.denoised.noise if noise is None else noise
        self._real = {key({name: row[name] for name in found.names}): row for row in found.rows}
        self.rows = {key(self.shown(row)): row for row in found.rows}

    def baseline(self, seed: int) -> dict[str, Any]:
        """Return the baseline of a seed.

        With seed 0 it is the row nearest to the defaults of all knobs, else a random one with room
        above it.
        """
        return self.shown(self.recorded_baseline(seed))

    def recorded_baseline(self, seed: int) -> dict[str, Any]:
        """Return the baseline under its own names."""
        truth = self.denoised.truth
        if seed:
            slow = [c for c, worth in truth.items() if math.exp(worth) < _ROOM * self.best]
            drawn = dict(random.Random(seed).choice(slow or list(truth)))
            return {name: drawn[name] for name in self.known_as}

        def apart(row: Mapping[str, Any]) -> tuple[int, float]:
            known = [name for name in self.known_as if name in CATALOGUE]
            other = [n for n in known if row[n] != CATALOGUE[n].default]
            return len(other), sum(_rank_distance(n, row[n]) for n in other)

        nearest = min((self._real[configuration] for configuration in truth), key=apart)
        return {name: nearest[name] for name in self.known_as}

    def worth(self, row: Row) -> float:
        """Return the value of a row, as a share of the best; 0 for one that failed."""
        own = self.denoised.truth.get(self._configuration(row))
        return 0.0 if own is None else math.exp(own) / self.best

    def served(self, row: Row, draw: random.Random) -> float:
        """Return the rate of a run of this row.

        It deviates from the row's value as some run of the table does from its own row's. Most rows
        were run once; to serve that run would show every course the same luck, which is in the
        truth as well.
        """
        deviation = self.noise * draw.choice(self.denoised.deviations)
        return self.worth(row) * self.best * math.exp(deviation)

    def ran(self, row: Row) -> bool:
        """Return whether a row has never failed."""
        return self._configuration(row) in self.denoised.truth

    def write(self, folder: Path) -> Path:
        """Write a table of the rows' values, with runs that scatter as they do here."""
        rows = [
            {**row, THROUGHPUT: self.worth(row) * self.best if self.ran(row) else None}
            for row in self.rows.values()
        ]
        path = folder / self.path.name
        write_table(path, list(self.known_as), rows)
        origin = json.loads(self.path.with_suffix(".json").read_text("utf-8"))
        path.with_suffix(".json").write_text(json.dumps({**origin, "noise": self.noise}))
        return path

    def _configuration(self, row: Row) -> Any:
        return key({name: row[name] for name in self.known_as})

    def shown(self, row: Row) -> dict[str, Any]:
        """Its values by the names that the replay has for them."""
        return {shown: row[name] for name, shown in self.known_as.items()}


def _hidden(name: str, anonymous: bool) -> str:
    return f"x_{name}"[::-1] if anonymous and name not in BATCH_KNOBS else name


def _rank_distance(name: str, value: Any) -> float:
    default = CATALOGUE[name].default
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return abs(float(np.log2(max(value, 1e-3)) - np.log2(max(float(default), 1e-3))))
