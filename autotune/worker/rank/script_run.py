"""An unmodified training script as one rank runs it.

It is started as its launcher would, observed step by step, and left when enough of its blocks are
done.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, NoReturn

from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]

from autotune.worker.gradients import parameters_of
from autotune.worker.inject import detected
from autotune.worker.inject.accumulation import strays
from autotune.worker.inject.changes import LOADER
from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.inject.settled import Loaded
from autotune.worker.inject.spans import Spans
from autotune.worker.observers import communication, memory
from autotune.worker.protocol import (
    SPAWN,
    BlockReport,
    Observed,
    Outcome,
    TrialRequest,
)
from autotune.worker.rank import profiling
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.first_steps import FirstStepChecks
from autotune.worker.rank.line import RankLine
from autotune.worker.rank.norms import LeaderNorms
from autotune.worker.rank.quiet import plain_autocast, without_dropout_anywhere
from autotune.worker.rank.rendezvous import Gather, RankFigures, over_store
from autotune.worker.rank.script_process import ScriptProcess
from autotune.worker.rank.training import Training, run_blocks
from autotune.worker.rank.trajectory import run_trajectory


class ScriptTraining(Training):
    """Training of a script, as hooks in it observe it."""

    log_interval = 1

    def __init__(
        self,
        request: TrialRequest,
        context: RankContext,
        gather: Gather,
        probe: ScriptProbe,
        counted: Callable[[], float],
        check: Callable[[], None],
        observed: Callable[[], Observed],
    ) -> None:
        """Begin after the first step.

        Args:
            gather: exchange that is independent of the script's process groups.
            counted: returns the samples that all ranks have trained on so far.
            check: called at the end of each block, to check the number of samples.
            observed: returns further observations since its last call.
        """
        super().__init__(request, context, gather)
        self._probe = probe
        self._counted = counted
        self._check = check
        self._observed = observed
        self._drawn_at_start = (0, 0)
        self.model = probe.built.model or nn.Identity()
        self.samples_done = counted()
        self.allocation_failures = memory.allocation_failures(context.devices)
        """Until the first step or the latest block ended."""

    def begin_block(self, *, follows: bool = False) -> None:
        """Count and time from here on."""
        # Steps may have passed since the last block that belong to none.
        self.samples_done = self._counted()
        self._drawn_at_start = (self._probe.samples, self._probe.tokens)
        self._probe.wait_seconds = 0.0
        self._probe.records_loss = False
        super().begin_block(follows=follows)

    def ends_with_next(self) -> None:
        """Record the loss of the next step, the last one of the block."""
        self._probe.records_loss = True

    def read_loss(self) -> None:
        """Bring the loss to the host."""
        self.loss = self._probe.loss
        super().read_loss()

    def end_block(self) -> RankFigures:
        """Return the figures of the block until here."""
        self.loss = self._probe.loss
        self.clock.wait_seconds = self._probe.wait_seconds
        figures = super().end_block()
        self.allocation_failures = memory.allocation_failures(self._devices)
        self._check()
        self.samples_done = self._counted()
        return figures

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return the parameters of the optimizer whose steps are those of the training."""
        assert self._probe.leader is not None
        return parameters_of(self._probe.leader)

    def tokens(self, samples: int) -> int:
        """Return the number of tokens in some samples of the block.

        Tokens per row are those of this rank's rows, even where ranks share them.
        """
        rows, tokens = self._drawn_at_start
        drawn = self._probe.samples - rows
        return round(samples * (self._probe.tokens - tokens) / drawn) if drawn else 0

    def block(
        self, trial: str, index: int, ranks: Sequence[RankFigures], observed: Observed
    ) -> BlockReport:
        """Return the report of the block, with observations of the first steps and of padding."""
        found = Observed(**{**self._observed(), **observed})
        if self._probe.padded:
            found["padded"] = 1
        return super().block(trial, index, ranks, found)


class _ScriptSubject(profiling.Subject):
    """Script under the profiler; its spans are named from outside.

    Nothing else is told of it: it may be compiled, or have dispatch modes of its own, and `init` and
    `doctor` have tried what acts on it.
    """

    def __init__(self, training: Training, spans: Spans, progressed: Callable[[], None]) -> None:
        super().__init__(training, progressed)
        self._spans = spans

    def marked(self) -> AbstractContextManager[None]:
        """Return a context in which the spans of the script are named."""
        return self._spans.marked()


class ScriptRun(ScriptProcess):
    """Driver of a timed run by the hooks in a script's training."""

    def __init__(
        self,
        request: TrialRequest,
        context: RankContext,
        line: RankLine,
        store: Store,
        began: Callable[[], None],
    ) -> None:
        """Prepare the run.

        Args:
            store: of the blocks alone.
            began: called before the first block.
        """
        super().__init__(request, context, line)
        self._began = began
        self._probe = ScriptProbe(
            self._changes.built, counts_tokens=self._script.counts == _Unit.TOKENS
        )
        self._loaded = Loaded()
        self._first_steps = FirstStepChecks(request, context, store, self._probe)
        self._norms = LeaderNorms(self._probe, self._first_steps.start)
        self._quiet = ExitStack()
        self._spans = Spans(self._probe.built, profiling.span)
        self._gather = over_store(store, context.rank, context.world_size)
        self._drawing = context.world_size
        self._training: ScriptTraining | None = None
        self._steps: Iterator[None] = iter(())

    def watch(self) -> None:
        """Let the optimizer steps of this process drive the run."""
        self._changes.met("cpu_affinity")  # set for every rank before it began
        self._loaded.watch()
        if self._request.profile:
            self._spans.watch()
        norms = self._norms.observe if self._request.trajectory else None
        self._probe.watch(went_on=self._goes_on, taken=self._stepped, at_gradients=norms)
        self._first_steps.watch()
        if norms:
            self._quiet.enter_context(without_dropout_anywhere())
            self._quiet.enter_context(self._norms.draws.watched())
        if self._request.autocast:
            self._quiet.enter_context(plain_autocast(self._request.device))

    def _ended(self, how: str) -> NoReturn:
        taken = self._training.steps_done if self._training else 0
        if failed := self._caught():
            outcome, what = failed
            self._line.leave(
                outcome, f"{what} after {taken} measured optimizer steps, and the script ended"
            )
        self._line.leave(
            Outcome.ERROR,
            f"the script ended {how}after {taken} measured optimizer steps, before enough was seen; "
            "have it train for longer",
            ended_after=None if how else taken,
        )

    def _caught(self) -> tuple[Outcome, str] | None:
        """Return outcome and cause of a failure that the script has caught, and not recovered from."""
        before = self._training.allocation_failures if self._training else 0
        failed = self._probe.failed
        # torch recovers from some by itself, as where a kernel has no room for its workspace.
        is_left = failed is not None or self._probe.may_be_in_step
        if is_left and memory.allocation_failures(self._context.devices) > before:
            return Outcome.OOM, "a CUDA device was out of memory"
        return failed

    def _starts(self, ranks: int) -> NoReturn:
        self._refuse(
            f"the script starts {ranks} ranks itself: say `launch: {SPAWN}` under workload, and "
            f"`resources: {{workers: {ranks}}}`"
        )

    def _taken(self) -> None:
        self._first_steps.taken(self._steps_seen)
        self._line.progressed()
        if self._training is None:
            self._begin()
        else:
            self._training.steps_done += 1
        if next(self._steps, _END) is _END:
            self._line.leave(None, "finished")

    def _begin(self) -> None:
        """Check the first step, and begin to measure."""
        self._quiet.close()
        if self._request.trajectory:
            self._norms.first_taken()
        unread = self._copies.unread()
        drew: list[_Drew] = self._gather(_Drew(self._probe.saw_loader, len(unread)))
        if all(rank.unread for rank in drew):
            self._refuse(
                f"{', '.join(unread)}: no rank has read it, so what the configuration says in it has "
                "no effect; say under workload.flags which file the script reads, or what names it"
            )
        if not self._script.fixed_samples:
            self._drawing = sum(rank.any > 0 for rank in drew) or self._context.world_size
        self._check_samples()
        if problem := self._problem():
            self._refuse(problem)
        self._began()
        self._training = ScriptTraining(
            self._request,
            self._context,
            self._gather,
            self._probe,
            self._counted,
            self._check_samples,
            self._first_steps.observed,
        )
        self._training.loss = self._probe.loss
        where = (self._request, self._context, self._line.report)
        if self._request.profile:
            subject = _ScriptSubject(self._training, self._spans, self._line.progressed)
            self._steps = profiling.run_profile(subject, *where)
        elif self._request.trajectory:
            self._steps = run_trajectory(self._training, self._norms, *where)
        else:
            self._steps = run_blocks(self._training, *where)

    def _problem(self) -> str:
        """Return why the training is not what the configuration says, or cannot be measured."""
        if problem := self._devices.problem():
            return problem
        if unmet := self._constructed.unmet():
            return f"{', '.join(unmet)}: the script has constructed no object of that class"
        if self._probe.loss is None:
            return "no loss was seen: Tensor.backward was never called on a scalar"
        idle = self._changes.idle(draws=self._probe.saw_loader)
        # The loader of a rank that receives its batches from another does not matter.
        given = self._drawing < self._context.world_size and not self._probe.saw_loader
        if idle := [name for name in idle if not (given and name in LOADER)]:
            return f"{', '.join(idle)}: has found nothing to act on in the script"
        if back := self._changes.set_back():
            return f"{', '.join(back)}: {_SET_BACK}"
        if self._context.world_size > 1 and self._apart():
            return self._why_apart()
        in_force, knobs = self._in_force(), self._request.knobs
        if contrary := [*detected.contradictions(in_force, knobs, self._script.changes)]:
            return f"{', '.join(contrary)}: {_SET_BACK}"
        if contrary := [*detected.contradictions(in_force, knobs, self._script.kept)]:
            return (
                f"{', '.join(contrary)}: is what the script has by itself, and not what the "
                "configuration says; say so under `baseline`"
            )
        if not given and not self._counted() and self._script.counts != _Unit.STEPS:
            return (
                "no sample was seen: the script draws none from a DataLoader; say in study.yaml how "
                "many a step has (workload.samples), or count steps (objective.metric: "
                "steps_per_second)"
            )
        return ""

    def _in_force(self) -> dict[str, Any]:
        """Return what is in force in the script, without the number format of plain autocast."""
        found = self._probe.detected()
        if self._request.autocast:
            del found["precision"]
        return found

    def _why_apart(self) -> str:
        if unused := len(self._first_steps.without_gradient()):
            return (
                f"{unused} parameters got no gradient in the first step, and DistributedDataParallel "
                "waits for all of them; this model needs find_unused_parameters=true"
            )
        return (
            "nothing was sent between ranks from the first backward pass to the end of the step: "
            "the ranks of the script do not train together, but each by itself"
        )

    def _apart(self) -> bool:
        return communication.collectives() == self._probe.first_backward

    def _counted(self) -> float:
        """Return the samples that all ranks have trained on until now."""
        expected = self._script.samples * self._steps_seen * self._context.world_size
        if self._script.samples and self._script.fixed_samples:
            return float(expected)
        if self._script.samples and not self._probe.saw_loader:
            # Whether the arguments reach the training cannot be observed: the user must state it.
            return float(expected) if self._script.draws_none else 0.0
        return float(self._probe.samples * self._drawing)

    def _check_samples(self) -> None:
        """End the trial if its steps have other samples than the configuration says.

        Epochs may end with a shorter batch or step, and a script may accumulate more and more.
        """
        wanted, steps = self._script.samples, self._steps_seen + self._probe.steps_left_out
        if not wanted or self._script.fixed_samples or not self._probe.saw_loader:
            return
        share = self._drawing / self._context.world_size
        full = self._probe.full_samples * share
        ahead = self._probe.samples_ahead * share
        if strays(full, wanted, steps, ahead) and not self._accumulation_rises():
            seen = self._probe.samples * share
            self._refuse(
                f"{seen:.15g} samples per rank in {steps} steps of the script, {seen / steps:.4g} a "
                f"step, are not the {wanted} that the configuration says{self._split()}: "
                f"{self._why_others()}"
            )

    def _split(self) -> str:
        """Return how the configuration makes up the samples of a step; empty if it does not."""
        size, number = (self._request.knobs[name] for name in ("micro_batch", "accumulation_steps"))
        return f" ({size} x {number})" if size * number == self._script.samples else ""

    def _accumulation_rises(self) -> bool:
        """Return whether a script accumulates more and more by itself.

        Its micro-batches are equal, and some steps have as many as the configuration says.
        """
        sizes, numbers = self._probe.draws.sizes, self._probe.accumulation.numbers
        wanted = self._script.samples * self._context.world_size / self._drawing
        as_said = any(max(sizes, default=0) * number == wanted for number in numbers)
        uneven = self._probe.draws.varies or self._probe.flushes
        return as_said and len(numbers) > 1 and not uneven

    def _why_others(self) -> str:
        """Return the likely reason for a step with other samples than it should have."""
        if self._probe.draws.varies:
            sizes = self._probe.draws.sizes
            return (
                f"its batches have {min(sizes)} to {max(sizes)} samples; leave micro_batch and "
                "accumulation_steps out of the study, and say `objective: {metric: steps_per_second}`"
            )
        if self._loaded.name:
            return (
                f"it has read {self._loaded.name}, which may bring the settings of an earlier run; "
                "have trials begin without it"
            )
        if self._script.derived:
            return (
                f"told {', '.join(self._script.turned)}, it does not derive "
                f"{self._script.derived} from that; take out `keeps_global_batch`, and say under "
                "workload.flags what turns the other one, or `objective: {global_batch_size: free}`"
            )
        if self._script.turned:
            return f"its arguments do not reach the training: {', '.join(self._script.turned)}"
        return (
            "nothing was changed in its arguments, so `baseline` says something else than the script "
            "does; correct micro_batch and accumulation_steps there, or leave both out of the study and "
            "say `objective: {metric: steps_per_second}`"
        )


class _Unit:
    """Units that a study may count."""

    TOKENS = "tokens"
    STEPS = "steps"


class _Drew(NamedTuple):
    """First step of a rank, as it reports it."""

    any: float
    """1 if a DataLoader has given batches, else 0."""
    unread: float
    """Number of copies of files that it has not opened."""


_END = object()
_SET_BACK = (
    "is what the script has set, over what it was changed to from outside; map the knob to an argument "
    "of the script, or take it out"
)
