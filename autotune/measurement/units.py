"""Units that a rate counts: samples, tokens or optimizer steps of a block."""

from typing import Protocol


class Counted(Protocol):
    """A block with everything that can be counted in it."""

    @property
    def steps(self) -> int:
        """Optimizer steps."""

    @property
    def samples(self) -> int:
        """Samples over all ranks."""

    @property
    def tokens(self) -> int:
        """Tokens over all ranks."""


def units(block: Counted, counts: str) -> int:
    """Return how many units a block has.

    Args:
        block: of a run.
        counts: samples, tokens or steps.
    """
    number: int = getattr(block, counts)
    return number
