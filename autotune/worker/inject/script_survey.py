"""Survey of an unmodified training script: its parts and its present settings."""

import gc
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.worker.effects.apply import targets_in
from autotune.worker.gradients import held_norm, parameters_of
from autotune.worker.inject import detected
from autotune.worker.inject.accumulation import strays
from autotune.worker.inject.batch_samples import samples_given, samples_returned, tensors
from autotune.worker.inject.changes import Changes
from autotune.worker.inject.constructed import ACCUMULATED_BY_LOOP, Constructed, Setting
from autotune.worker.inject.draws import Batch, of_one_pass
from autotune.worker.inject.graph import product_formats
from autotune.worker.inject.options import Options
from autotune.worker.inject.roots import in_backward
from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.inject.settled import Settled, may_hold_settings
from autotune.worker.observers.statistics import Statistics
from autotune.worker.patches import wrapping
from autotune.worker.survey_result import SETTINGS, Option, SurveyResult

_MOST_SIGNS = 4000
"""Batches and backward passes before the first optimizer step: more than any script accumulates."""
_FEW_BACKWARDS = 8
"""Backward passes after which a script that has built no optimizer of torch.optim is left."""
_ABOUT = 0.5
"""Tolerance for the parts of a batch, as some are seen before the next batch is drawn."""
_IN_PARTS = 1.5
"""Backward passes per batch from which on a script is taken to split its batches."""
_MOST_FILES = 20
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class _Step(NamedTuple):
    """Optimizer step.

    Attributes:
        samples: of batches that were drawn for it and trained on.
        batches: number of these.
        full: samples of all steps until this one, if no batch were the short last one of an epoch.
        passes: its micro-batches, by backward passes.
        until: number of all steps until this one, including those that a GradScaler has skipped.
    """

    samples: int
    batches: int
    full: int
    passes: int
    until: int


@dataclass
class _Passes:
    """Forward passes of one module, with gradients on.

    Attributes:
        parameters: number of its trained values.
        since_step: passes since the last optimizer step.
        of_steps: passes between steps.
        rows: samples of each pass, by what the module is given or else by what it returns.
        returned: whether any were counted by what it returns.
    """

    module: nn.Module
    parameters: int
    since_step: int = 0
    of_steps: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    returned: bool = False


class Survey:
    """Passive observer of a script. It costs time, so nothing is timed meanwhile.

    Attributes:
        steps: of the optimizer that were seen.
        share: of what its loaders yield, that this rank trains on; below 1 if it draws for others.
    """

    def __init__(
        self, changes: Changes, constructed: Constructed, *, looks_at_passes: bool = True
    ) -> None:
        """Prepare the survey.

        Args:
            changes: to the script, which have begun before the survey does.
            constructed: constructors of frameworks, likewise.
            looks_at_passes: whether to look at forward passes.
        """
        self._changes = changes
        self._constructed = constructed
        self._looks_at_passes = looks_at_passes
        self.probe = ScriptProbe(
            self._changes.built, trained=self._counted, first_loss=self._look_at_products
        )
        self._options = Options()
        self._settled = Settled()
        self._statistics = Statistics()
        self.steps = 0
        self.share = 1.0
        self._within = False
        self._signs = 0
        self._columns: list[int] = []
        self._passes: dict[int, _Passes] = {}
        self._batches: list[float] = []
        self._of_passes: list[int] = []
        self._steps: list[_Step] = []
        self._products: frozenset[torch.dtype] = frozenset()
        self._gradient = math.nan
        self._settings: dict[str, None] = {}
        self._folder = Path.cwd()
        self._idle: list[str] = []

    def watch(
        self,
        went_on: Callable[[], None],
        taken: Callable[[], None],
        given_up: Callable[[str], None],
    ) -> None:
        """Observe from now on.

        Args:
            went_on: called whenever the script makes progress.
            taken: called after each optimizer step; it calls `taken` of the survey.
            given_up: called where there is much of a training, and never a step; with a
                description.
        """
        detected.leave_graphs_uncompiled()
        self._options.watch()
        self._settled.watch()
        self._statistics.watch()
        if self._looks_at_passes:
            self._watch_passes()
        sys.addaudithook(self._audit)

        def alive() -> None:
            went_on()
            self._signs += 1
            if not self.steps and self._signs >= _MOST_SIGNS:
                given_up(self.so_far())
            few = self.probe.accumulation.passes == _FEW_BACKWARDS
            if not self.steps and few and not _optimizers():
                given_up(f"{self.so_far()}, and built no optimizer of torch.optim")

        self.probe.watch(went_on=alive, taken=taken)

    def taken(self, steps: int) -> None:
        """Take in an optimizer step that is over.

        Args:
            steps: number of steps taken so far.
        """
        self.steps = steps
        if steps == 1:
            assert self.probe.leader is not None
            self._gradient = held_norm(self.probe.leader)
            self._idle = self._changes.idle(draws=self.probe.saw_loader)
        self._steps.append(self._step())
        for passes in self._passes.values():
            passes.of_steps.append(passes.since_step)
            passes.since_step = 0

    def _step(self) -> _Step:
        """Return the last step."""
        probe = self.probe
        samples = probe.samples - sum(step.samples for step in self._steps)
        batches = len(self._batches) - sum(step.batches for step in self._steps)
        until = self.steps + probe.steps_left_out
        return _Step(samples, batches, probe.full_samples, probe.accumulation.of_step, until)

    def _look_at_products(self, loss: torch.Tensor) -> None:
        self._products = product_formats([loss])

    def so_far(self) -> str:
        """Describe how far the script has come."""
        drawn = "drew batches from a DataLoader and " if self.probe.draws.drawn else ""
        passes = self.probe.accumulation.passes
        return f"it {drawn}ran {counted(passes, 'backward pass', 'backward passes')}"

    def _counted(self, batches: Sequence[Batch]) -> None:
        """Take in the batches that a backward pass trains on."""
        number, passes = of_one_pass(batches)
        self._batches += [number / passes] * passes
        self._of_passes.append(number)

    def surveyed(self, ended: str = "") -> SurveyResult:
        """Return the result; call it while the script runs, as its variables are inspected."""
        leader = self.probe.leader
        trained = self._trained()
        micro_batch = self._micro_batch(trained)
        accumulation_steps = self._accumulation(trained, micro_batch)
        uneven = self._uneven(micro_batch * accumulation_steps)
        ramps = self._ramps() or (uneven and len(self.probe.accumulation.numbers) > 1)
        return SurveyResult(
            steps=self.steps,
            micro_batch=micro_batch,
            rows=self._rows_of_one(trained) if micro_batch == 1 else 0,
            columns=statistics.mode(self._columns) if self._columns else 0,
            accumulation_steps=accumulation_steps,
            varies=self.probe.draws.varies,
            accumulation_varies=ramps,
            reuses=uneven and not ramps,
            guessed=self.probe.guessed,
            returned=bool(trained and trained.returned and not self._batches),
            backwards=self.probe.accumulation.passes,
            loader=self.probe.saw_loader,
            ddp=self._changes.built.model is not None,
            sharded=leader is not None and any(map(detected.is_sharded, parameters_of(leader))),
            scaled=self.probe.scaled,
            first_gradient=self._gradient if math.isfinite(self._gradient) else 0.0,
            optimizer=type(leader).__name__ if leader else "",
            convolutions=any(map(_has_convolutions, self._models())),
            sparse=any(map(_has_sparse_gradients, self._models())),
            targets=tuple({target: None for one in self._models() for target in targets_in(one)}),
            idle=tuple(self._idle),
            batch_dependent=self._statistics.found(trained.module if trained else None),
            own=self._own(),
            settled=self._settled.found(),
            threads=torch.get_num_threads(),
            attends=self._settled.attends,
            reads=self._settled.reads,
            frames=detected.compiled_frames(),
            options=self._all_options(micro_batch),
            settings=tuple(self._settings),
            ended=ended,
        )

    def _all_options(self, micro_batch: int) -> tuple[Option, ...]:
        """Return the options of the script, and arguments of classes that none is named for.

        The batch size of its DataLoader is one of them where a framework counts the steps, and the
        script derives nothing from the number of batches.
        """
        own, built = self._options.found(), self._constructed.found()
        names = {option.name for option in own if option.sure}
        found = [*own, *(one for one in built if one.name not in names)]
        counts = any(one.flag == ACCUMULATED_BY_LOOP for one in built)
        if counts and self.probe.saw_loader and not self._settled.asks_length:
            flag = str(Setting("DataLoader", "batch_size", micro_batch))
            found.append(Option(flag, "batch_size", micro_batch))
        return tuple(found)

    def _own(self) -> dict[str, Any]:
        """Return what the script has in force by itself.

        FSDP2 casts parameters and inputs, without autocast: the products tell.
        """
        own = self.probe.detected()
        if own.get("precision") == "fp32" and self._products == {torch.bfloat16}:
            own["precision"] = "bf16"
        return own

    def _micro_batch(self, trained: "_Passes | None") -> int:
        """Return the samples of a micro-batch.

        They are what a loader yields, unless the script calls backward for equal parts of it. Where
        one rank draws for others, they are its share of what it draws for a backward pass.
        """
        rows = [count for count in trained.rows if count] if trained else []
        passed = statistics.mode(rows) if rows else 0
        batches = self._batches if self.share == 1 else [self.share * n for n in self._of_passes]
        if not batches or not trained:
            return passed
        batch = round(statistics.mode(batches))
        parts = sum(step.passes for step in self._steps) / len(batches)
        in_parts = passed and parts >= _IN_PARTS and abs(batch / passed - parts) < _ABOUT
        return passed if in_parts else batch

    def _rows_of_one(self, trained: "_Passes | None") -> int:
        """Return the rows that the model gets where its loader counts a batch as one sample."""
        found = statistics.mode(trained.rows) if trained and trained.rows else 0
        return found if self.probe.saw_loader and found > 1 else 0

    def _accumulation(self, trained: "_Passes | None", micro_batch: int) -> int:
        """Return the micro-batches per step.

        They are told by what loaders yield, as a model may see a batch several times; else by
        backward passes, of which several may follow one pass of the model.
        """
        if not self._steps:
            return 1
        if self.probe.flushes and not self.probe.draws.varies:
            return max(self.probe.accumulation.numbers)
        if self.probe.draws.varies:
            return round(statistics.median(step.batches for step in self._steps)) or 1
        if micro_batch and any(step.samples for step in self._steps):
            drawn = self.share * statistics.median(step.samples for step in self._steps)
            return max(1, round(drawn / micro_batch))
        forward = [count for count in trained.of_steps if count] if trained else []
        backward = [step.passes for step in self._steps if step.passes]
        if not forward:
            return 1
        return min(map(statistics.mode, filter(None, (forward, backward))))

    def _ramps(self) -> bool:
        """Return whether steps have more and more micro-batches.

        The first one may have fewer for another reason: scripts step where the number of a batch,
        from 0, is a multiple.
        """
        passes = [step.passes for step in self._steps]
        drawn = [step.batches for step in self._steps]
        return passes == drawn == sorted(passes) and passes[1:2] != passes[-1:]

    def _uneven(self, wanted: int) -> bool:
        """Return whether steps have other samples than most, and no prefetching loader explains it.

        Args:
            wanted: samples of most steps.
        """
        untold = self.probe.draws.varies or not self.probe.samples
        ahead = self.share * self.probe.samples_ahead
        return not untold and any(
            strays(self.share * step.full, wanted, step.until, ahead) for step in self._steps
        )

    def _watch_passes(self) -> None:
        """Observe forward passes of what is trained, each by its outermost module.

        Passes that a backward pass repeats, to recompute activations, are left out.
        """

        @wrapping(nn.Module, "__call__")
        def watched(call: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._within or not torch.is_grad_enabled():
                return call(module, *args, **kwargs)
            own = None if in_backward() else self._passed(module, args, kwargs)
            self._within = True
            try:
                result = call(module, *args, **kwargs)
            finally:
                self._within = False
            if own and not own.rows[-1]:
                own.rows[-1], own.returned = samples_returned(result), True
            return result

    def _passed(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Passes:
        if id(module) not in self._passes:
            several = [p.numel() for p in module.parameters() if p.requires_grad]
            self._passes[id(module)] = _Passes(module, sum(several))
        own = self._passes[id(module)]
        own.since_step += 1
        tensor = next(tensors([*args, kwargs]), None)
        if own.parameters and tensor is not None:
            even = tensor.dim() > 1 and not tensor.is_nested
            self._columns.append(tensor.size(1) if even else 0)
        own.rows.append(samples_given(args, kwargs))
        return own

    def _trained(self) -> "_Passes | None":
        """Return the passes of the largest model; a loss has no parameters, and is left out."""
        largest = max(self._passes.values(), key=lambda passes: passes.parameters, default=None)
        return largest if largest and largest.parameters else None

    def _models(self) -> list[nn.Module]:
        """Return all models that are trained, as a GAN has several."""
        return [passes.module for passes in self._passes.values() if passes.parameters]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes):
            return
        name, flags = os.fsdecode(arguments[0]), arguments[2]
        reads = not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if reads and name.lower().endswith(SETTINGS) and len(self._settings) < _MOST_FILES:
            self._read(Path(os.path.normpath(Path.cwd() / name)))

    def _read(self, path: Path) -> None:
        """Note a file that may hold settings: not one of a library or of a cache."""
        if not may_hold_settings(path):
            return
        beside = Path(sys.argv[0]).absolute().parent.resolve()
        if path.is_relative_to(self._folder) or path.resolve().is_relative_to(beside):
            self._settings[os.path.relpath(path, self._folder)] = None
        elif any(path.name in argument for argument in sys.argv[1:]):
            self._settings[str(path)] = None


def _optimizers() -> bool:
    """Return whether the script has built an optimizer of torch.optim."""
    return any(issubclass(type(thing), Optimizer) for thing in gc.get_objects())


def counted(number: int, one: str, several: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else several}"


def _has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, _CONVOLUTIONS) for module in model.modules())


def _has_sparse_gradients(model: nn.Module) -> bool:
    embeddings = (one for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag))
    return any(embedding.sparse for embedding in embeddings)
