"""Counter per rank in a shared file, by which the agent tells a hang from a slow step.

Writing it costs one store to mapped memory, so it may be written in every step.
"""

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Self

_COUNTER_BYTES = 8


class Progress:
    """Counters of the ranks of one node.

    A counter is 0 while the rank starts, and grows by one with every forward pass and every
    optimizer step. A rank that lags behind the others is the one they wait for.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    @classmethod
    def create(cls, path: Path, ranks: int) -> Self:
        """Make a new file with all counters at 0.

        Processes that still count in an older file of this name have no effect.
        """
        path.unlink(missing_ok=True)
        path.write_bytes(bytes(_COUNTER_BYTES * ranks))
        return cls(path)

    def counter(self, local_rank: int) -> Callable[[], None]:
        """Return a function that adds one to the counter of a rank."""
        counts = self._counts

        def advance() -> None:
            counts[local_rank] += 1

        return advance

    def __getitem__(self, local_rank: int) -> int:
        return int(self._counts[local_rank])
