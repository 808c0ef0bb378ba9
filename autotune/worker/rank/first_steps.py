"""What a script's first steps show of its training, for comparison with another configuration's: the
rows, the replicas, the parameters without a gradient, and what computes over a batch together."""

import json
from typing import Any

from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]

from autotune.worker.inject.epochs import Epochs
from autotune.worker.inject.rows import RankRows, Rows, together
from autotune.worker.inject.sight import Sight
from autotune.worker.inject.statistics import Statistics
from autotune.worker.protocol import CHECKED_STEPS, Observed, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.replicas import ReplicaSums, spread, sums_of


class FirstStepChecks:
    """Looks at the first CHECKED_STEPS optimizer steps of a script on one rank; changes nothing."""

    def __init__(
        self, request: TrialRequest, context: RankContext, store: Store, sight: Sight
    ) -> None:
        assert request.script is not None
        self._step = request.script.samples
        self._context = context
        self._store = store
        self._sight = sight
        self._rows = Rows(self._step * CHECKED_STEPS, context.world_size)
        self._epochs = Epochs(request.script.batches_per_epoch)
        self._statistics = Statistics()
        self._idle: set[int] = set()
        self._told = Observed()
        self._compared = 0

    def watch(self) -> None:
        """Look from now on; to be called when everything else that looks at the script does."""
        self._epochs.watch()
        self._statistics.watch()
        self._sight.rows = self._rows

    def taken(self, steps: int) -> None:
        """An optimizer step is over, and its gradients are there.

        Args:
            steps: so many there were by now.
        """
        if steps > CHECKED_STEPS:
            return
        self._idle |= {id(parameter) for parameter in self.without_gradient()}
        if steps == CHECKED_STEPS:
            self._tell()

    def without_gradient(self) -> list[nn.Parameter]:
        """Parameters under DistributedDataParallel that this step has given no gradient."""
        model = self._sight.built.model
        if model is None:
            return []
        return [p for p in model.parameters() if p.requires_grad and p.grad is None]

    def start(self) -> str:
        """A digest of the rows of the first step on all ranks, on rank 0; empty if not all are known.
        Every rank must ask, after the first step."""
        mine = self._rows.first(self._step)
        ranks = self._exchanged("start", mine.order if mine else "")
        return "/".join(ranks) if all(ranks) else ""

    def observed(self) -> Observed:
        """What is to be reported with the block that is over: the first steps once, and epochs whenever
        there are new ones."""
        told, self._told = self._told, Observed()
        if self._epochs.compared > self._compared:
            self._compared = self._epochs.compared
            told["epochs"] = self._compared
            told["stale"] = list(self._epochs.stale)
        return told

    def _tell(self) -> None:
        rows, model = self._rows.first(self._step * CHECKED_STEPS), self._sight.built.model
        self._sight.rows = None
        self._statistics.close()
        shared = model is not None and self._context.world_size > 1
        sums = sums_of(model.parameters()) if shared and model is not None else None
        ranks = self._exchanged("first", [rows and rows.as_list(), sums])
        if self._context.rank:
            return
        known = [RankRows.from_list(of_rank) for of_rank, _ in ranks if of_rank]
        told = Observed(
            unused_parameters=len(self._idle),
            batch_dependent=self._statistics.found(self._sight.built.inner),
        )
        if known and len(known) == sum(of_rank is not None for of_rank, _ in ranks):
            told["consumed"] = together(known)
        if shared:
            told["replica_spread"] = spread([ReplicaSums(*of_rank) for _, of_rank in ranks])
        self._told = told

    def _exchanged(self, name: str, mine: Any) -> list[Any]:
        """What every rank has told under a name, on rank 0; nothing on others."""
        self._store.set(f"{name}/{self._context.rank}", json.dumps(mine))
        ranks = range(0 if self._context.rank else self._context.world_size)
        return [json.loads(self._store.get(f"{name}/{rank}")) for rank in ranks]
