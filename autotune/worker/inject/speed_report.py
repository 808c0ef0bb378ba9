"""Report of a rank of the user's own job on its speed; see service.watcher."""

from dataclasses import dataclass

from autotune.worker.decoding import AsJson

ADDRESS = "AUTOTUNE_WATCHER"
"""Environment variable that names the socket of the watcher."""


@dataclass(frozen=True)
class SpeedReport(AsJson):
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
