"""Which CUDA device each rank of a node has, and how many of them its ranks need."""

import math

_ROUNDING = 1e-6


def devices_needed(ranks: int, share: float) -> int:
    """How many devices ranks of one node need, of which each has a share of one; a rank's share lies on
    one device.

    Args:
        ranks: on the node.
        share: of a device, 0 < share <= 1.
    """
    return math.ceil(ranks / math.floor(1 / share + _ROUNDING))


def device_of(rank: int, ranks: int, share: float) -> int:
    """Index of the device of a rank, as evenly as they can be spread.

    Args:
        rank: number on its node.
        ranks: likewise.
        share: likewise.
    """
    return rank * devices_needed(ranks, share) // ranks
