"""Report of a rank of the user's own job on its speed; see service.watcher."""

import json
from dataclasses import asdict, dataclass

ADDRESS = "AUTOTUNE_WATCHER"
"""Environment variable that names the socket of the watcher."""


@dataclass(frozen=True)
class SpeedReport:
    """Block of whole optimizer steps, as a rank reports it.

    Attributes:
        seconds: duration of the block.
        samples: that this rank has drawn in it and trained on.
        tokens: of these samples.
        problem: why samples are not counted; empty: they are.
    """

    rank: int
    world_size: int
    steps: int
    seconds: float
    samples: float
    tokens: float
    problem: str = ""

    def to_bytes(self) -> bytes:
        """Return the report as a datagram."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> "SpeedReport":
        """Return the report that `to_bytes` wrote.

        Raises:
            ValueError, TypeError: the data have another form.
        """
        return cls(**json.loads(data))
