"""What a rank of the user's own job tells of its speed to whoever watches it: see service.watcher."""

import json
from dataclasses import asdict, dataclass

ADDRESS = "AUTOTUNE_WATCHER"
"""Of the environment: the socket of whoever watches."""


@dataclass(frozen=True)
class Pace:
    """What a rank tells of a block of whole optimizer steps.

    Attributes:
        rank: whose.
        world_size: ranks of the job.
        steps: in the block.
        seconds: that it took.
        samples: that this rank has drawn in it and trained on.
        tokens: of them.
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
        """For the socket."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, told: bytes) -> "Pace":
        """What `to_bytes` wrote.

        Raises:
            ValueError, TypeError: it did not.
        """
        return cls(**json.loads(told))
