"""Which configuration can follow another in processes that are there already, and why one cannot."""

from collections.abc import Callable, Container, Iterable, Mapping

from search_spaces.catalogue import CATALOGUE
from search_spaces.knob import STEP, KnobValue, written

Values = Mapping[str, KnobValue]

_PLAIN = {
    "parallelism": ("ddp", "none"),
    "gradient_compression": ("none", "fp16", "bf16"),
    "layer_keep": (1,),
    "curriculum_start": (1,),
}
"""Knob -> values beside which nothing that a training has done so far shows in what comes: the others
hold optimizers or states of their own, or change in the course of a training."""
_IN_GRAPH = ("micro_batch", "precision", "attention")
"""What a compiled model was compiled for."""
_LASTING: Mapping[str, tuple[KnobValue, ...]] = {
    "precision": ("pure_bf16",),
    "attention": ("flash3",),
}
"""Step-level knob -> values that act on the model or the process as well."""

_BOUND: Mapping[str, tuple[Callable[[Values], bool], tuple[str, ...]]] = {
    "torch.compile": (lambda values: values["compile"] != "none", _IN_GRAPH),
    "float8": (lambda values: values["float8"] != "none", ("precision", "optimizer_kernels")),
    "static_graph": (lambda values: bool(values["static_graph"]), ("accumulation_steps",)),
}
"""What is made once, where it is -> step-level knobs that it is made for."""


def why_not_live(now: Values, following: Values) -> str:
    """Why processes that have trained one configuration cannot take another; empty: they can.

    Args:
        now: a value for every knob, a study's own among them; so is `following`.
    """
    changed = {name for name in following if now.get(name) != following[name]}
    reasons = (
        _above_the_step(changed),
        _with_a_history(following),
        _lasting(changed, now, following),
        _bound(changed, following),
    )
    return next(filter(None, reasons), "")


def _above_the_step(changed: Iterable[str]) -> str:
    for name in sorted(changed):
        if name not in CATALOGUE:
            return f"{name} is a knob of the study's own"
        if CATALOGUE[name].acts_on != STEP:
            return f"{name} acts on the {CATALOGUE[name].acts_on}"
    return ""


def _with_a_history(following: Values) -> str:
    for name, plain in _PLAIN.items():
        if following[name] not in plain:
            return f"{name}={written(following[name])} goes with a training from its first step on"
    return ""


def _lasting(changed: Container[str], now: Values, following: Values) -> str:
    for name, lasting in _LASTING.items():
        kept = [values[name] for values in (now, following) if values[name] in lasting]
        if name in changed and kept:
            return f"{name}={written(kept[0])} stays for as long as its process"
    return ""


def _bound(changed: Container[str], following: Values) -> str:
    for beside, (holds, names) in _BOUND.items():
        for name in names:
            if name in changed and holds(following):
                return f"{name} is part of what was made for {beside}"
    return ""
