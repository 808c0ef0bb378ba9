"""Bottlenecks of a step: its parts over all ranks, and the peak arithmetic of its device."""

import statistics
from collections.abc import Mapping, Sequence

STRAGGLER = "straggler"
"""Part of the step in which the other ranks wait for the slowest one, whatever it does in it."""

_WAITING = "communication"
_IDLE = "idle"
_TERA = 1e12
_PEAKS: dict[str, dict[str, float]] = {
    # name in torch.cuda.get_device_name -> precision -> TFLOP/s
    "H200 NVL": {"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5},
    "H200": {"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "H100 NVL": {"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5},
    "H100 PCIe": {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756},
    "H100": {"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "A100": {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
    "L40S": {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362},
    "L4": {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121},
    "A10": {"fp32": 31.2, "tf32": 62.5, "bf16": 125, "fp16": 125},
    "V100": {"fp32": 15.7, "fp16": 125},
    "T4": {"fp32": 8.1, "fp16": 65},
}
"""Dense peaks, from the makers' data sheets."""


def breakdown(parts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return shares of a step that add up to one, with `idle`, of the device, beside the sum.

    A rank that is early waits inside its collectives, so the rank with the least communication sets
    the pace: its parts are the step's. What it has of them beyond the median of the other ranks, as
    far as those wait for it, is the straggler's.

    Args:
        parts: shares of a step by part, one per rank, as autotune.worker.rank.trace.shares returns
            them.
    """
    waiting = parts[_WAITING]
    slowest = waiting.index(min(waiting))
    pace = {name: shares[slowest] for name, shares in parts.items()}
    others = [rank for rank in range(len(waiting)) if rank != slowest]
    if not others:
        return {**pace, STRAGGLER: 0.0}
    excess = {
        name: max(0.0, shares[slowest] - statistics.median(shares[rank] for rank in others))
        for name, shares in parts.items()
        if name not in (_WAITING, _IDLE)
    }
    waited = statistics.median(waiting[rank] for rank in others) - waiting[slowest]
    straggling = min(sum(excess.values()), waited)
    for name, more in excess.items():
        if straggling:
            pace[name] -= more * straggling / sum(excess.values())
    return {**pace, STRAGGLER: straggling}


def peak_flops(device: str, precision: str) -> float | None:
    """Return the FLOP/s of one device at a precision; None if unknown.

    Args:
        device: name by torch.cuda.get_device_name; for a part of a device (MIG) the peak is
            unknown.
        precision: a value of the knob `precision`.
    """
    words = device.replace("-", " ").split()
    if "MIG" in words:
        return None
    for name, peaks in _PEAKS.items():
        if all(word in words for word in name.split()):
            tera = peaks.get(precision.removeprefix("pure_"))
            return tera * _TERA if tera else None
    return None
