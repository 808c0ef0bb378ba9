"""Shares of a step's time by part, from the events of a torch profiler trace. Pure functions.

Every moment of the traced steps is given to exactly one part, so that the parts add up to one.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Intervals = list[tuple[float, float]]
"""Disjoint and in order."""

SPAN = "autotune/"
"""Prefix of the training loop's own spans in a trace: step, batch, loader, forward..."""


class Shares(NamedTuple):
    """Share of the traced steps by part.

    search_spaces.knob.PARTS are the same without idle, and with parts that no profile shows.
    """

    compute: float
    """Forward and backward pass."""
    communication: float
    """Collectives while nothing is computed."""
    optimizer: float
    loader: float
    """Waiting for a batch."""
    copies: float
    """Copies of batches to the device."""
    synchronisation: float
    """Reading the loss on the host."""
    launching: float
    """The rest, in which the device waits for the host."""
    idle: float
    """Time in which the device did nothing; no part of the sum; 0 on the CPU."""


PARTS = Shares._fields

_COPIES = ("gpu_memcpy", "gpu_memset")
_DEVICE = ("kernel", *_COPIES)
_HOST = ("cpu_op", "user_annotation")
_CALLS = ("cuda_runtime", "cuda_driver")
_READ = "aten::_local_scalar_dense"
"""Operator that implements Tensor.item()."""
_UNKNOWN = -1
_COLLECTIVES = (
    "c10d::",
    "gloo:",
    "nccl:",
    "FSDP::",
    "torch::distributed::reducer::",
    "torch.distributed.ddp.reducer::",
)
"""Prefixes of the names of spans for collectives (torch 2.13)."""


def shares(events: Iterable[Mapping[str, Any]]) -> Shares:
    """Return the share of each part in the traced steps.

    Args:
        events: `traceEvents` of a trace of one rank that torch.profiler has exported.

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
    if on_device:  # the host runs ahead: the steps end with the device's last work
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
    """Return the parts' claims on the CPU in order of precedence, from the thread that trains."""
    spans = _spans(events)
    operators = union(
        _times(e) for e in events if e["cat"] == "cpu_op" and e["tid"] == thread and not _sends(e)
    )
    # An optimizer that calls a closure has both passes within its step.
    passes = union([*spans("forward"), *spans("backward")])
    return [
        ("loader", spans("loader")),
        ("copies", spans("batch")),
        ("synchronisation", _reads(events)),
        ("communication", difference(_collectives(events), operators)),
        ("optimizer", difference(spans("optimizer"), passes)),
        ("compute", union([*passes, *operators])),
    ]


def _device_claims(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, Intervals]]:
    """Return the parts' claims on CUDA in order of precedence: device first, then host."""
    kernels = [event for event in events if event["cat"] == "kernel"]
    calls = {_correlation(event): event for event in events if event["cat"] in _CALLS}
    copies = _Copies.of(events, calls)
    computing = union(
        [*(_times(event) for event in kernels if not _sends(event)), *copies.of_the_model]
    )
    updates = _updates(events)
    updating = union(
        _times(event)
        for event in events
        if event["cat"] in _DEVICE
        and (call := calls.get(_correlation(event)))
        and _within(call, updates)
    )
    sending = [_times(event) for event in kernels if _sends(event)]
    spans = _spans(events)
    return [
        ("optimizer", intersection(computing, updating)),
        ("compute", computing),
        ("communication", union([*sending, *copies.of_collectives])),
        ("copies", union(copies.of_batches)),
        ("communication", _collectives(events)),  # gloo runs on the host
        ("loader", spans("loader")),
        ("synchronisation", _reads(events)),
    ]


def _updates(events: Sequence[Mapping[str, Any]]) -> dict[Any, Intervals]:
    """Return when each thread of the host was in the optimizer, without passes of a closure.

    The device's share of it is found by the calls that launched the work: the profiler assigns a
    kernel to the innermost annotation alone, and PyTorch's optimizers have one of their own within
    ours.
    """
    passes = _by_thread(e for e in events if e["name"] in (SPAN + "forward", SPAN + "backward"))
    steps = _by_thread(e for e in events if _is(e, "user_annotation", SPAN + "optimizer"))
    return {thread: difference(own, passes.get(thread, [])) for thread, own in steps.items()}


class _Copies(NamedTuple):
    """Copies and fills of the device outside kernels, by the span that launched them.

    A copy runs long after it was launched: the host's call has the same correlation number, and the
    thread that made it was within some span at that time. A transfer from the host within the span
    of a batch is the batch; a copy launched within a collective, or while DDP fills and empties its
    buckets, is communication (gloo stages tensors of the device in host memory). All else is the
    model's own, or the optimizer's, like kernels; so is a copy whose call was not recorded.
    """

    of_batches: list[tuple[float, float]]
    of_collectives: list[tuple[float, float]]
    of_the_model: list[tuple[float, float]]

    @classmethod
    def of(
        cls, events: Sequence[Mapping[str, Any]], calls: Mapping[Any, Mapping[str, Any]]
    ) -> "_Copies":
        batches = _by_thread(e for e in events if _is(e, "user_annotation", SPAN + "batch"))
        collectives = _by_thread(filter(_communicates, events))
        # A script has no span for its batches: it moves them neither in the model nor in the optimizer.
        named = bool(batches)
        passes = _by_thread(event for event in events if event["name"] in _PASSES)
        found = cls([], [], [])
        for copy in (event for event in events if event["cat"] in _COPIES):
            call = calls.get(_correlation(copy))
            inwards = call is not None and "HtoD" in copy["name"]
            if call and inwards and _within(call, batches):
                found.of_batches.append(_times(copy))
            elif call and _within(call, collectives):
                found.of_collectives.append(_times(copy))
            elif call and inwards and not named and not _within(call, passes):
                found.of_batches.append(_times(copy))
            else:
                found.of_the_model.append(_times(copy))
        return found


_PASSES = {SPAN + name for name in ("forward", "backward", "optimizer")}


def _correlation(event: Mapping[str, Any]) -> Any:
    """Return the number that a call of the host shares with the work it causes on the device."""
    return event.get("args", {}).get("correlation", _UNKNOWN)


def _by_thread(events: Iterable[Mapping[str, Any]]) -> dict[Any, Intervals]:
    found: dict[Any, list[tuple[float, float]]] = {}
    for event in events:
        found.setdefault(event["tid"], []).append(_times(event))
    return {thread: union(times) for thread, times in found.items()}


def _within(call: Mapping[str, Any], spans: Mapping[Any, Intervals]) -> bool:
    """Return whether a call was made within a span of its thread."""
    own = spans.get(call["tid"], [])
    last = bisect_right(own, call["ts"], key=lambda interval: interval[0]) - 1
    return last >= 0 and call["ts"] < own[last][1]


def _communicates(event: Mapping[str, Any]) -> bool:
    """Return whether the host exchanges gradients or parameters, or prepares them for it."""
    return event["cat"] in _HOST and event["name"].startswith(_COLLECTIVES)


def _spans(events: Sequence[Mapping[str, Any]]) -> Any:
    return lambda name: union(
        _times(event) for event in events if _is(event, "user_annotation", SPAN + name)
    )


def _reads(events: Iterable[Mapping[str, Any]]) -> Intervals:
    """Return when a number was read from the device, by the loop or by a script."""
    return union(
        _times(event)
        for event in events
        if _is(event, "user_annotation", SPAN + "read") or _is(event, "cpu_op", _READ)
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
    """Return the union of intervals, merged."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def difference(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the parts of the first intervals that are in none of the others."""
    edges = [(float("-inf"), float("-inf")), *others, (float("inf"), float("inf"))]
    gaps = [(before[1], after[0]) for before, after in itertools.pairwise(edges)]
    return intersection(intervals, gaps)


def intersection(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the parts that are in both."""
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
    """Return the length of all intervals together."""
    return sum(end - start for start, end in intervals)
