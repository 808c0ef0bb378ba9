"""Price of compiling a model, in seconds: a prior by mode until compilations were measured. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.analysis.policy import ANALYSIS
from search_spaces.knob import Knobs

_NONE = "none"
_PRIOR = {
    "default": ANALYSIS.compile_default,
    "reduce-overhead": ANALYSIS.compile_graphs,
    "max-autotune": ANALYSIS.compile_max,
    "max-autotune-no-cudagraphs": ANALYSIS.compile_max,
}
"""Seconds by mode on a CUDA device."""
_GRAPH = ("micro_batch", "precision", "compile", "compile_scope", "float8", "attention")
"""Knobs that a graph is compiled for."""


@dataclass(frozen=True)
class Compiled:
    """One compilation, in new processes or in a warm worker.

    Attributes:
        knobs: configuration, a value for every knob.
        seconds: of its first step, beyond a steady one.
    """

    knobs: Knobs
    seconds: float

    @property
    def graph(self) -> tuple[Any, ...]:
        """Return the graph that was compiled."""
        return graph(self.knobs)


@dataclass(frozen=True)
class Compilation:
    """Price of compilation in one study.

    Attributes:
        device: 'cpu' or 'cuda'.
        seen: compilations that were measured, the latest last.
        in_vain: compilations that were ended before they were over.
    """

    device: str = "cpu"
    seen: Sequence[Compiled] = field(default_factory=tuple)
    in_vain: Sequence[Compiled] = field(default_factory=tuple)

    def seconds(self, knobs: Knobs) -> float:
        """Return what compiling a configuration once more takes; 0 where nothing is compiled."""
        if not compiles(knobs):
            return 0.0
        own = [one.seconds for one in self.seen if one.graph == graph(knobs)]
        if own:
            return ANALYSIS.compile_warm * own[0] if len(own) == 1 else own[-1]
        too_short = [one.seconds for one in self.in_vain if _alike(one.knobs, knobs)]
        return max(self._cold(knobs), ANALYSIS.compile_longer * max(too_short, default=0.0))

    def once(self, knobs: Knobs) -> "Compilation":
        """Return the price once this configuration has run."""
        if not compiles(knobs):
            return self
        run = Compiled(knobs, self.seconds(knobs))
        return Compilation(self.device, [*self.seen, run], self.in_vain)

    def _cold(self, knobs: Knobs) -> float:
        """Return what a graph takes that no process has compiled."""
        first = {one.graph: one for one in reversed(self.seen)}.values()
        if alike := [one.seconds for one in first if _alike(one.knobs, knobs)]:
            return statistics.median(alike)
        mode, float8 = (
            knobs["compile"],
            ANALYSIS.compile_float8 if knobs["float8"] != _NONE else 0.0,
        )
        plain = [
            one.seconds
            for one in first
            if one.knobs["compile"] == mode and one.knobs["float8"] == _NONE
        ]
        prior = _PRIOR[mode] if self.device == "cuda" else ANALYSIS.compile_on_cpu
        return float8 + (statistics.median(plain) if plain else prior)


def compiles(knobs: Knobs) -> bool:
    """Return whether a configuration compiles its model."""
    return bool(knobs["compile"] != _NONE)


def graph(knobs: Knobs) -> tuple[Any, ...]:
    """Return what a compiled graph of this configuration is made for."""
    return tuple(knobs[name] for name in _GRAPH)


def _alike(one: Knobs, other: Knobs) -> bool:
    """Return whether compilation of both takes much the same time."""
    names = ("compile", "compile_scope")
    both = (one["float8"] != _NONE) == (other["float8"] != _NONE)
    return both and all(one[name] == other[name] for name in names)
