"""Assign CUDA devices to the ranks of a node."""

import math

_ROUNDING = 1e-6


def devices_needed(ranks: int, share: float) -> int:
    """Return how many devices the ranks of a node need; a rank's share lies on one device.

    Args:
        ranks: number of ranks on the node.
        share: of a device that each rank has, 0 < share <= 1.
    """
    return math.ceil(ranks / math.floor(1 / share + _ROUNDING))


def device_of(rank: int, ranks: int, share: float) -> int:
    """Return the index of a rank's device; ranks are spread as evenly as possible.

    Args:
        rank: number of the rank on its node.
        ranks: number of ranks on the node.
        share: of a device that each rank has, 0 < share <= 1.
    """
    return rank * devices_needed(ranks, share) // ranks
