"""A counter per rank in a shared file: how the agent tells a hang from a slow step.

Writing it costs one store to mapped memory, so it may be written in every step.
"""

import mmap
import struct
from pathlib import Path
from typing import Self

_COUNTER = struct.Struct("=Q")


class Progress:
    """Counters of the ranks of one node: 0 while starting up, then one more with every forward pass
    and every optimizer step. A rank that lags behind the others is the one they wait for."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, ranks: int) -> Self:
        """A new file with all counters at 0; who still counts in an older one does not count here."""
        path.unlink(missing_ok=True)
        path.write_bytes(bytes(_COUNTER.size * ranks))
        return cls(path)

    def advance(self, local_rank: int) -> None:
        """Count one more."""
        _COUNTER.pack_into(self._map, local_rank * _COUNTER.size, self[local_rank] + 1)

    def __getitem__(self, local_rank: int) -> int:
        return int(_COUNTER.unpack_from(self._map, local_rank * _COUNTER.size)[0])
