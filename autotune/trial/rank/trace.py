"""Where the time of a step goes, from the events of a torch profiler trace. Pure functions.

Every moment of the traced steps is given to exactly one part, so that the parts add up to one.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Intervals = list[tuple[float, float]]
"""Disjoint and in order."""

SPAN = "autotune/"
"""What the training loop's own spans begin with in a trace: step, batch, loader, forward..."""


class Shares(NamedTuple):
    """Share of the traced steps by part. search_spaces.knob.PARTS are the same, but for idle, and for
    what no profile shows."""

    compute: float
    """Forward and backward pass."""
    communication: float
    """Collectives while nothing is computed."""
    optimizer: float
    loader: float
    """Waiting for a batch."""
    copies: float
    """Of batches to the device."""
    synchronisation: float
    """Reading the loss on the host."""
    launching: float
    """The rest, in which the device waits for the host."""
    idle: float
    """No part of its own: while the device did nothing; 0 on the CPU."""


PARTS = Shares._fields

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def shares(events: Iterable[Mapping[str, Any]]) -> Shares:
    """What the traced steps are made of.

    Args:
        events: `traceEvents` of a trace that torch.profiler has exported, one rank's.

    Raises:
        ValueError: no step was traced.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    steps = [event for event in complete if _is(event, "user_annotation", SPAN + "step")]
    if not steps:
        raise ValueError("the trace holds no step")
    window = union(_times(step) for step in steps)
    working = [_times(event) for event in complete if event["cat"] in _DEVICE]
    on_device = bool(working)
    if on_device:  # the host runs ahead: the steps end when the device has done its last
        window = [(window[0][0], max(window[-1][1], *(end for _, end in working)))]
    claims = _device_claims(complete) if on_device else _host_claims(complete, steps[0]["tid"])
    found = dict.fromkeys(PARTS, 0.0)
    whole, left = length(window), window
    for part, intervals in claims:
        taken = intersection(left, intervals)
        left = difference(left, taken)
        found[part] += length(taken) / whole
    found["launching"] = length(left) / whole
    if on_device:
        found["idle"] = length(difference(window, union(working))) / whole
    return Shares(**found)


def _host_claims(events: Sequence[Mapping[str, Any]], thread: int) -> list[tuple[str, Intervals]]:
    """Who claims a moment on the CPU, in order: there the thread that trains is the device."""
    spans = _spans(events)
    operators = union(
        _times(e) for e in events if e["cat"] == "cpu_op" and e["tid"] == thread and not _sends(e)
    )
    return [
        ("loader", spans("loader")),
        ("copies", spans("batch")),
        ("synchronisation", spans("read")),
        ("communication", difference(_collectives(events), operators)),
        ("optimizer", spans("optimizer")),
        ("compute", union([*spans("forward"), *spans("backward")])),
    ]


def _device_claims(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, Intervals]]:
    """The same on CUDA: first what the device does, then what the host does while it does nothing."""
    kernels = [event for event in events if event["cat"] == "kernel"]
    computing = union(_times(event) for event in kernels if not _sends(event))
    updating = union(
        _times(event) for event in events if _is(event, "gpu_user_annotation", SPAN + "optimizer")
    )
    copying = union(_times(e) for e in events if e["cat"] in ("gpu_memcpy", "gpu_memset"))
    spans = _spans(events)
    return [
        ("optimizer", intersection(computing, updating)),
        ("compute", computing),
        ("communication", union(_times(event) for event in kernels if _sends(event))),
        ("copies", copying),
        ("communication", _collectives(events)),  # gloo's run on the host
        ("loader", spans("loader")),
        ("synchronisation", spans("read")),
    ]


def _spans(events: Sequence[Mapping[str, Any]]) -> Any:
    return lambda name: union(
        _times(event) for event in events if _is(event, "user_annotation", SPAN + name)
    )


def _collectives(events: Sequence[Mapping[str, Any]]) -> Intervals:
    return union(
        _times(event)
        for event in events
        if event["cat"] == "user_annotation" and event["name"].startswith("gloo:")
    )


def _sends(event: Mapping[str, Any]) -> bool:
    name = event["name"]
    return "nccl" in name or "c10d" in name


def _is(event: Mapping[str, Any], category: str, name: str) -> bool:
    return event.get("cat") == category and event["name"] == name


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """All of it, merged."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def difference(intervals: Intervals, others: Intervals) -> Intervals:
    """What of the first is in none of the others."""
    edges = [(float("-inf"), float("-inf")), *others, (float("inf"), float("inf"))]
    gaps = [(before[1], after[0]) for before, after in pairwise(edges)]
    return intersection(intervals, gaps)


def intersection(intervals: Intervals, others: Intervals) -> Intervals:
    """What is in both."""
    common: Intervals = []
    i = j = 0
    while i < len(intervals) and j < len(others):
        start = max(intervals[i][0], others[j][0])
        end = min(intervals[i][1], others[j][1])
        if start < end:
            common.append((start, end))
        if intervals[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return common


def length(intervals: Intervals) -> float:
    """Of all together."""
    return sum(end - start for start, end in intervals)
