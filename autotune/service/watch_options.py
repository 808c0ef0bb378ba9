"""What the user of a job wants watched."""

from dataclasses import dataclass

_MINUTE = 60.0


@dataclass(frozen=True)
class WatchOptions:
    """What is to be watched for.

    Attributes:
        port: of the metrics; 0: a free one.
        storage: URL of the storage in which a new study is queued after a drift; None: in none.
        every: seconds between two looks.
    """

    port: int = 0
    storage: str | None = None
    every: float = _MINUTE
