"""A short run under the torch profiler: what each rank's step is made of. Nothing in it is timed."""

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from autotune.trial.effects.unusable import unusable
from autotune.trial.files import TrialFiles
from autotune.trial.observers import memory
from autotune.trial.observers.layout import BatchMoves
from autotune.trial.protocol import BlockReport, Observed, TrialRequest
from autotune.trial.rank import trace
from autotune.trial.rank.context import RankContext
from autotune.trial.rank.gathering import RankFigures
from autotune.trial.rank.loop import TrainingLoop

_ATTENTION = "scaled_dot_product"
_FEWEST = 2
_WARM_UP = 5
"""Steps before: allocation and compilation are over, and the ranks in step."""
_FEWEST_WARM_UP = 1
_OWN_COST = 2.0
"""Steps under the profiler take longer, and what it has written down is read afterwards."""


class Course(NamedTuple):
    """How many steps a profile takes after its first one."""

    warm_up: int
    profiled: int


def affordable(steps: int, first: float, seconds: float | None) -> Course | None:
    """The steps for which there is time; None if there is none for the fewest. Steps that are long give
    way, the warm-up first.

    Args:
        steps: to be profiled, at most.
        first: seconds that the first step took.
        seconds: that the whole run may take; None: no limit.
    """
    if seconds is None:
        return Course(_WARM_UP, steps)
    left = seconds - first
    for course in (
        Course(_WARM_UP, steps),
        Course(_FEWEST_WARM_UP, steps),
        Course(_FEWEST_WARM_UP, _FEWEST),
    ):
        if first * (course.warm_up + _OWN_COST * course.profiled) <= left:
            return course
    return None


class _RankProfile(NamedTuple):
    figures: RankFigures
    shares: trace.Shares


def run_profile(
    loop: TrainingLoop,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> None:
    """Take `request.profile` optimizer steps under the profiler; rank 0 reports them as one block.

    Every rank leaves its trace, which Perfetto opens, as `trace-<rank>.json.gz` beside its log.
    """
    moves = BatchMoves(loop.knobs["micro_batch"] * request.replicas)
    loop.begin_block()
    with moves.watching(loop.workload.model) if loop.applied.inspectable else nullcontext():
        loop.step()
    first = max(rank.seconds for rank in loop.gather(loop.end_block()))
    # A trace of millions of events would take minutes to look through.
    steps = max(_FEWEST, request.profile // loop.knobs["accumulation_steps"])
    if (course := affordable(steps, first, request.seconds)) is None:
        return
    for _ in range(course.warm_up):
        loop.step()
    dist.barrier()
    steps = course.profiled
    activities = [ProfilerActivity.CPU]
    if context.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        loop.begin_block()
        for _ in range(steps):
            with loop.span("step"):
                loop.step()
        figures = loop.end_block()
    loop.progressed()
    file = TrialFiles(Path(request.log_dir)).trace(context.rank)
    events = _events(profiler, file)
    loop.progressed()
    ranks = loop.gather(_RankProfile(figures, trace.shares(events)))
    if context.rank == 0:
        devices, peaks = context.devices, [rank.figures.peak_bytes for rank in ranks]
        observed = Observed(
            parts={part: [getattr(rank.shares, part) for rank in ranks] for part in trace.PARTS},
            peaks=[int(p) for p in (map(memory.peak_bytes, devices) if devices[1:] else peaks)],
            batch_moves=moves.found,
            unusable=_unusable(loop, events),
        )
        report(loop.block(request.trial, 0, [rank.figures for rank in ranks], observed))


def span(name: str) -> torch.profiler.record_function:
    """A named stretch of the step, to be found in the trace."""
    return torch.profiler.record_function(trace.SPAN + name)


def _unusable(loop: TrainingLoop, events: Iterable[Mapping[str, Any]]) -> list[str]:
    found = unusable(loop.workload)
    # Of a model that is compiled, no operator shows.
    if loop.applied.inspectable and not any(_ATTENTION in str(e.get("name")) for e in events):
        found = sorted([*found, "attention"])
    return found


def _events(profiler: profile, file: Path) -> list[dict[str, object]]:
    profiler.export_chrome_trace(str(file))
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        events: list[dict[str, object]] = json.load(opened)["traceEvents"]
    return events
