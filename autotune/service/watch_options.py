"""Options of `autotune run --watch`."""

from dataclasses import dataclass

_MINUTE = 60.0


@dataclass(frozen=True)
class WatchOptions:
    """Options of the watching of a job.

    Attributes:
        port: port of the metrics; 0: a free one.
        storage: URL of the storage in which a new study is queued after a drift; None: no new
            study.
        every: seconds between two checks.
    """

    port: int = 0
    storage: str | None = None
    every: float = _MINUTE
