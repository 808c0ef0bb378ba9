"""Checks on a script's first steps, for comparison with another configuration's.

They cover rows, replicas, parameters without a gradient, operations over a whole batch, the size of
the first gradient and the learning rates.
"""

import json
import math
import statistics
from typing import Any

import torch
from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]

from autotune.worker.decoding import decoded
from autotune.worker.gradients import held_norm, parameters_of
from autotune.worker.inject.epochs import Epochs
from autotune.worker.inject.rows import RankRows, Rows, together
from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.observers.statistics import Statistics
from autotune.worker.protocol import CHECKED_STEPS, Observed, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.training import convolves
from autotune.worker.rank.trajectory import ReplicaSums, spread, sums_of


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
        leader = self._probe.leader
        assert leader is not None
        known = [decoded(RankRows, of_rank) for of_rank, _, _ in ranks if of_rank]
        found = Observed(
            unused_parameters=len(self._idle),
            optimizer=type(leader).__name__,
            batch_dependent=self._statistics.found(self._probe.built.inner),
            convolutions=int(convolves(parameters_of(leader))),
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
