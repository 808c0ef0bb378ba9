"""Short run under the torch profiler: the parts of each rank's step. Nothing in it is timed."""

import gzip
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from autotune.worker.effects.apply import ATTENTION, lacking
from autotune.worker.files import TrialFiles
from autotune.worker.observers import memory
from autotune.worker.observers.batch_moves import BatchMoves
from autotune.worker.protocol import BlockReport, Observed, TrialRequest
from autotune.worker.rank import trace
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.rendezvous import RankFigures
from autotune.worker.rank.training import Training

_ATTENTION = "scaled_dot_product"
_FEWEST = 2
_WARM_UP = 5
"""Steps before the profile, after which allocation and compilation are over."""
_FEWEST_WARM_UP = 1
_OWN_COST = 2.0
"""Cost of a profiled step relative to a plain one, reading the trace included."""


class ProfileSteps(NamedTuple):
    """Number of steps of a profile after its first one."""

    warm_up: int
    profiled: int


def affordable(steps: int, first: float, seconds: float) -> ProfileSteps | None:
    """Return the steps for which there is time; None if there is none for the fewest.

    Where steps are long, the warm-up is shortened first.

    Args:
        steps: to be profiled, at most.
        first: seconds that the first step took.
        seconds: for all of them, the first one included.
    """
    left = seconds - first
    for course in (
        ProfileSteps(_WARM_UP, steps),
        ProfileSteps(_FEWEST_WARM_UP, steps),
        ProfileSteps(_FEWEST_WARM_UP, _FEWEST),
    ):
        if first * (course.warm_up + _OWN_COST * course.profiled) <= left:
            return course
    return None


class _RankProfile(NamedTuple):
    figures: RankFigures
    shares: trace.Shares


class Subject:
    """Training under the profiler: the built-in loop or a script."""

    def __init__(self, training: Training, progressed: Callable[[], None]) -> None:
        """Wrap a training.

        Args:
            progressed: reports progress of the run outside a step.
        """
        self.training = training
        self.progressed = progressed

    @property
    def moves(self) -> Mapping[str, str]:
        """Return where the model moves the batch away from the outermost dimension."""
        return {}

    def watched(self) -> AbstractContextManager[Any]:
        """Return a context for the first step, in which operators are recorded."""
        return nullcontext()

    def marked(self) -> AbstractContextManager[Any]:
        """Return a context for the profiled steps, in which their spans are named in the trace."""
        return nullcontext()

    def lacks(self, events: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the targets of knobs that the training has not."""
        del events
        return []


def run_profile(
    subject: Subject,
    request: TrialRequest,
    context: RankContext,
    report: Callable[[BlockReport], None],
) -> Iterator[None]:
    """Profile about `request.profile` optimizer steps; the training takes one at each yield.

    Rank 0 reports them as one block. Every rank writes its trace, which Perfetto opens, as
    `trace-<rank>.json.gz` beside its log.
    """
    training = subject.training
    started = yield from _first_step(subject)
    began = time.perf_counter()
    first = max(rank.seconds for rank in started)
    # A trace of millions of events would take minutes to look through.
    steps = max(_FEWEST, request.profile // training.knobs["accumulation_steps"])
    course = affordable(steps, first, request.limit.soft)
    if course is None:
        if context.rank == 0:
            took = Observed(look_seconds=time.perf_counter() - began)
            report(training.block(request.trial, 0, started, took))
        return
    for _ in range(course.warm_up):
        yield
    with _profiler(context.device) as profiler:
        # The profiler starts only now: that takes time, and not the same on all ranks.
        training.meet()
        training.begin_block()
        with subject.marked():
            for left in reversed(range(course.profiled)):
                if not left:
                    training.ends_with_next()
                with span("step"):
                    yield
        figures = training.end_block()
    subject.progressed()
    events = _events(profiler, TrialFiles(Path(request.log_dir)).trace(context.rank))
    subject.progressed()
    ranks = training.gather(_RankProfile(figures, trace.shares(events)))
    if context.rank == 0:
        observed = _observed(ranks, context) | Observed(
            batch_moves=dict(subject.moves),
            look_seconds=time.perf_counter() - began,
            lacks=subject.lacks(events),
        )
        report(training.block(request.trial, 0, [rank.figures for rank in ranks], observed))


def _first_step(subject: Subject) -> Generator[None, None, list[RankFigures]]:
    subject.training.begin_block()
    subject.training.ends_with_next()
    with subject.watched():
        yield
    return subject.training.gather(subject.training.end_block())


def _profiler(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)


def _observed(ranks: Sequence[_RankProfile], context: RankContext) -> Observed:
    """Return parts of the step and peaks: of each device of a process that drives several, else rank."""
    if context.devices[1:]:
        peaks = [memory.peak_bytes(device) for device in context.devices]
    else:
        peaks = [int(rank.figures.peak_bytes) for rank in ranks]
    parts = {part: [getattr(rank.shares, part) for rank in ranks] for part in trace.PARTS}
    return Observed(parts=parts, peaks=peaks)


class LoopSubject(Subject):
    """Built-in loop under the profiler, which names the spans of its steps itself."""

    def __init__(self, loop: TrainingLoop, replicas: int) -> None:
        """Wrap a loop; each of its processes does the work of `replicas` ranks."""
        super().__init__(loop, loop.progressed)
        self._loop = loop
        self._moves = BatchMoves(loop.knobs["micro_batch"] * replicas)

    @property
    def moves(self) -> Mapping[str, str]:
        """Return the moves seen in the first step."""
        return self._moves.found

    def watched(self) -> AbstractContextManager[Any]:
        """Return a context that records the batch's moves, unless operators cannot be inspected."""
        inspectable = self._loop.applied.inspectable
        return self._moves.watching(self._loop.workload.model) if inspectable else nullcontext()

    def lacks(self, events: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return targets of knobs that neither the workload nor the operators of its profile show."""
        found = lacking(self._loop.workload)
        # A compiled model shows no operators.
        if self._loop.applied.inspectable and not any(
            _ATTENTION in str(event.get("name")) for event in events
        ):
            found.append(ATTENTION)
        return found


def span(name: str) -> torch.profiler.record_function:
    """Return a context that names a span of the step in the trace."""
    return torch.profiler.record_function(trace.SPAN + name)


def _events(profiler: profile, file: Path) -> list[dict[str, object]]:
    profiler.export_chrome_trace(str(file))
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        events: list[dict[str, object]] = json.load(opened)["traceEvents"]
    return events
