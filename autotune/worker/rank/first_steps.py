"""Checks on a script's first steps, for comparison with another configuration's.

They cover rows, replicas, parameters without a gradient, operations over a whole batch, the size of
the first gradient and the learning rates. Of the
gradients that the first optimizer sees, the norm is taken in every step, and sketches in the first
one, which two runs of a seeded script begin with equal weights and rows.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]

from autotune.worker.decoding import decoded
from autotune.worker.inject.epochs import Epochs
from autotune.worker.inject.rows import RankRows, Rows, together
from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.inject.statistics import Statistics
from autotune.worker.observers.gradients import held_norm
from autotune.worker.protocol import CHECKED_STEPS, Observed, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.model_draws import ON_DEVICE, ModelDraws
from autotune.worker.rank.sketch import Sketcher
from autotune.worker.rank.training import convolves
from autotune.worker.rank.trajectory import (
    ReplicaSums,
    plain,
    spread,
    square,
    sums_of,
    whole,
)


class FirstStepChecks:
    """Passive observer of the first CHECKED_STEPS optimizer steps of a script on one rank."""

    def __init__(
        self, request: TrialRequest, context: RankContext, store: Store, probe: ScriptProbe
    ) -> None:
        assert request.script is not None
        self._step = request.script.samples
        self._context = context
        self._store = store
        self._probe = probe
        self._rows = Rows(self._step * CHECKED_STEPS, context.world_size)
        self._epochs = Epochs(request.script.batches_per_epoch)
        self._statistics = Statistics()
        self._idle: set[int] = set()
        self._gradient = math.nan
        self._rates: list[float] = []
        self._unreported = Observed()
        self._compared = 0

    def watch(self) -> None:
        """Look from now on; to be called when everything else that looks at the script does."""
        self._epochs.watch()
        self._statistics.watch()
        self._probe.rows = self._rows

    def taken(self, steps: int) -> None:
        """Take in an optimizer step that is over, with its gradients.

        Args:
            steps: number of steps taken so far.
        """
        if steps > CHECKED_STEPS:
            return
        self._idle |= {id(parameter) for parameter in self.without_gradient()}
        self._observe_update(first=steps == 1)
        if steps == CHECKED_STEPS:
            self._tell()

    def _observe_update(self, *, first: bool) -> None:
        """Take in the learning rate and the size of the first gradient, unless a graph is captured."""
        leader = self._probe.leader
        assert leader is not None
        reads = not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
        rate = leader.param_groups[0].get("lr") if reads else None
        self._rates.append(math.nan if rate is None else float(rate))
        if first and reads:
            self._gradient = held_norm(leader)

    def without_gradient(self) -> list[nn.Parameter]:
        """Return parameters under DistributedDataParallel that this step has given no gradient."""
        model = self._probe.built.model
        if model is None:
            return []
        return [p for p in model.parameters() if p.requires_grad and p.grad is None]

    def start(self) -> str:
        """Return a digest of the rows of the first step on all ranks, on rank 0.

        It is empty if not all are known. Every rank must call it, after the first step.
        """
        mine = self._rows.first(self._step)
        ranks = self._exchanged("start", mine.order if mine else "")
        return "/".join(ranks) if all(ranks) else ""

    def observed(self) -> Observed:
        """Return new observations for a block: the first steps once, epochs when they change."""
        found, self._unreported = self._unreported, Observed()
        if self._epochs.compared > self._compared:
            self._compared = self._epochs.compared
            found["epochs"] = self._compared
            found["stale"] = list(self._epochs.stale)
        return found

    def _tell(self) -> None:
        rows, model = self._rows.first(self._step * CHECKED_STEPS), self._probe.built.model
        self._probe.rows = None
        self._statistics.close()
        shared = model is not None and self._context.world_size > 1
        sums = sums_of(model.parameters()) if shared and model is not None else None
        ranks = self._exchanged("first", [rows and vars(rows), sums, self._gradient])
        if self._context.rank:
            return
        known = [decoded(RankRows, of_rank) for of_rank, _, _ in ranks if of_rank]
        found = Observed(
            unused_parameters=len(self._idle),
            optimizer=type(self._probe.leader).__name__,
            batch_dependent=self._statistics.found(self._probe.built.inner),
            convolutions=int(convolves(_parameters(self._probe))),
        )
        if known and len(known) == sum(of_rank is not None for of_rank, _, _ in ranks):
            found["consumed"] = together(known)
        if shared:
            found["replica_spread"] = spread([ReplicaSums(*of_rank) for _, of_rank, _ in ranks])
        gradient = math.sqrt(statistics.fmean(norm**2 for *_, norm in ranks))
        if math.isfinite(gradient):
            found["first_gradient"] = gradient
        if all(map(math.isfinite, self._rates)):
            found["learning_rates"] = self._rates
        self._unreported = found

    def _exchanged(self, name: str, mine: Any) -> list[Any]:
        """Return what every rank has stored under a name, on rank 0; an empty list on others."""
        self._store.set(f"{name}/{self._context.rank}", json.dumps(mine))
        ranks = range(0 if self._context.rank else self._context.world_size)
        return [json.loads(self._store.get(f"{name}/{rank}")) for rank in ranks]


class LeaderNorms:
    """Norm of the gradient that the first optimizer sees, clipped if the script clips it."""

    def __init__(self, probe: ScriptProbe, rows: Callable[[], str]) -> None:
        """Prepare for the first step.

        Args:
            rows: returns a digest of the rows of the first step; empty if they are not known.
        """
        self._probe = probe
        self._rows = rows
        self._square = math.nan
        self._places: dict[nn.Parameter, int] = {}
        self._sketcher = Sketcher(())
        self._weights: list[list[Any]] = []
        self._seen = Observed()
        self.draws = ModelDraws()
        """Random numbers that the model draws in the first step."""

    def clear(self) -> None:
        """Begin a step."""
        self._square = math.nan

    def observe(self) -> None:
        """Take in the gradients, just before a step."""
        assert self._probe.leader is not None
        self._square = square(self._probe.leader)
        if not self._places:
            self._observe_first()

    def first_taken(self) -> None:
        """Take in what the first step began with. Every rank must call it."""
        rows = self._rows()
        if rows and not self.draws.on_device:
            # The gradient is that of later rows where a GradScaler has left steps out (inf, fp16).
            began = [rows, self._weights, self._probe.steps_left_out]
            began += [self.draws.left] if self.draws.left else []
            start = hashlib.blake2b(json.dumps(began).encode(), digest_size=8)
            self._seen["start"] = start.hexdigest()
        else:
            self._seen = Observed(not_compared=ON_DEVICE if rows else self._why_no_rows())

    def _why_no_rows(self) -> str:
        batch = self._probe.rows.unread if self._probe.rows else ""
        if not batch:
            return "no sample of its first step was seen to come from a DataLoader"
        return (
            f"the samples of its first step cannot be read from a {batch} (have the DataLoader yield "
            "tensors, or lists, tuples or dicts of them)"
        )

    def of_step(self) -> float:
        """Return the norm of the step that is over."""
        return math.sqrt(self._square)

    def observing(self, index: int) -> AbstractContextManager[Observed]:
        """Return a context around step `index`; for the first, it yields what was seen before."""
        return nullcontext(self._seen if not index else Observed())

    def _observe_first(self) -> None:
        names = _parameter_names(self._probe)
        parameters = list(_parameters(self._probe))
        self._places = {parameter: place for place, parameter in enumerate(parameters)}
        self._sketcher = Sketcher(
            (names.get(parameter, f"parameter {place}"), parameter.numel())
            for parameter, place in self._places.items()
        )
        weights = self._sketcher.of(whole(parameter.detach()) for parameter in self._places)
        self._weights = [one.as_row() for one in weights]
        scale = getattr(self._probe.leader, "grad_scale", None)  # fp16: of a fused update
        for parameter, place in self._places.items():
            if parameter.grad is not None:
                gradient = whole(parameter.grad.detach())
                scaled = gradient if scale is None else gradient.double() / float(scale)
                self._sketcher.add(place, scaled)
        self._seen["gradient"] = [one.as_row() for one in self._sketcher.done()]


def _parameters(probe: ScriptProbe) -> Iterator[nn.Parameter]:
    """Return the parameters of the first optimizer."""
    groups: list[dict[str, Any]] = probe.leader.param_groups if probe.leader else []
    return (parameter for group in groups for parameter in group["params"])


def _parameter_names(probe: ScriptProbe) -> dict[nn.Parameter, str]:
    """Return the names of parameters of a model under DistributedDataParallel."""
    inner = probe.built.inner
    named = inner.named_parameters() if inner is not None else ()
    return {parameter: plain(name) for name, parameter in named}
