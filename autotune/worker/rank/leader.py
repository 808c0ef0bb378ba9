"""Gradients that the first optimizer of a script sees.

Their norm is taken in every step, and sketches of those of the first step, which two runs of a
seeded script begin with equal weights and rows.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.protocol import Observed
from autotune.worker.rank.sketch import Sketched, Sketcher
from autotune.worker.rank.trajectory import plain, square, whole


class LeaderNorms:
    """Norm of the gradient that the first optimizer sees, clipped if the script clips it."""

    def __init__(self, probe: ScriptProbe, rows: Callable[[], str]) -> None:
        """Prepare for the first step.

        Args:
            probe: of this rank.
            rows: returns a digest of the rows of the first step; empty if they are not known.
        """
        self._probe = probe
        self._rows = rows
        self._square = math.nan
        self._places: dict[nn.Parameter, int] = {}
        self._sketcher = Sketcher(())
        self._weights: list[Sketched] = []
        self._seen = Observed()

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
        """Take in how far the first step has moved the weights. Every rank must call it."""
        # On every rank, whether or not the rows are known: sharded parameters are gathered.
        moved = [now.less(at) for now, at in zip(self._sketched(), self._weights, strict=True)]
        if rows := self._rows():
            weights = [one.as_row() for one in self._weights]
            start = hashlib.blake2b(json.dumps([rows, weights]).encode(), digest_size=8)
            self._seen["start"] = start.hexdigest()
            self._seen["moved"] = [one.as_row() for one in moved]
            self._seen["weights"] = [one.norm for one in self._weights]
        else:
            self._seen = Observed()

    def of_step(self) -> float:
        """Return the norm of the step that is over."""
        return math.sqrt(self._square)

    def observing(self, index: int) -> AbstractContextManager[Observed]:
        """Return a context around step `index`; for the first, it yields what was seen before."""
        return nullcontext(self._seen if not index else Observed())

    def _observe_first(self) -> None:
        names = _names(self._probe)
        parameters = list(self._parameters())
        self._places = {parameter: place for place, parameter in enumerate(parameters)}
        self._sketcher = Sketcher(
            (names.get(parameter, f"parameter {place}"), parameter.numel())
            for parameter, place in self._places.items()
        )
        self._weights = self._sketched()
        scale = getattr(self._probe.leader, "grad_scale", None)  # fp16: of a fused update
        for parameter, place in self._places.items():
            if parameter.grad is not None:
                gradient = whole(parameter.grad.detach())
                scaled = gradient if scale is None else gradient.double() / float(scale)
                self._sketcher.add(place, scaled)
        self._seen["gradient"] = [one.as_row() for one in self._sketcher.done()]

    def _sketched(self) -> list[Sketched]:
        for parameter, place in self._places.items():
            self._sketcher.add(place, whole(parameter.detach()))
        return self._sketcher.done()

    def _parameters(self) -> Iterator[nn.Parameter]:
        groups: list[dict[str, Any]] = self._probe.leader.param_groups if self._probe.leader else []
        return (parameter for group in groups for parameter in group["params"])


def _names(probe: ScriptProbe) -> dict[nn.Parameter, str]:
    """Return the names of parameters of a model under DistributedDataParallel."""
    inner = probe.built.inner
    named = inner.named_parameters() if inner is not None else ()
    return {parameter: plain(name) for name, parameter in named}
