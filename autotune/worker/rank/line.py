"""Line of a rank to its agent: its progress, its blocks and its end."""

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

from autotune.worker.protocol import BlockReport, Outcome, RankEnd, WorkloadBuilt
from autotune.worker.rank.execution import flush_output


class RankLine:
    """Line of one rank to its agent.

    Attributes:
        progressed: tells that the rank is not hung; it is called in every step.
    """

    def __init__(self, connection: Connection, rank: int, progressed: Callable[[], None]) -> None:
        self.progressed = progressed
        self._connection = connection
        self._rank = rank

    def report(self, message: BlockReport | WorkloadBuilt) -> None:
        """Report a block, or that the workload is built."""
        self._connection.send_bytes(message.to_line())

    def leave(
        self,
        outcome: Outcome | None,
        cause: str,
        *,
        at: float | None = None,
        ended_after: int | None = None,
        contradicted: bool = False,
    ) -> NoReturn:
        """Report the end of the rank, and exit.

        Args:
            outcome: None: it finished, or was ended by request.
            cause: of the outcome.
            at: time of the end; None: now.
            ended_after: see `RankEnd.ended_after`.
            contradicted: see `RankEnd.contradicted`.
        """
        end = RankEnd(
            self._rank,
            outcome,
            cause,
            at=time.time() if at is None else at,
            ended_after=ended_after,
            contradicted=contradicted,
        )
        flush_output()
        self._connection.send_bytes(end.to_line())
        # Destructors of DDP and of the process group can deadlock: exit without them.
        os._exit(0)
