"""Why a configuration cannot follow another in warm processes: derived from where each knob acts."""

from collections.abc import Container, Iterable, Mapping

from search_spaces.catalogue import CATALOGUE
from search_spaces.knob import STEP, KnobValue, written

Values = Mapping[str, KnobValue]


def why_not_live(now: Values, following: Values) -> str:
    """Return why processes that have trained one configuration cannot take another; empty: they can.

    Args:
        now: a value for every knob, a study's own among them.
        following: likewise.
    """
    changed = {name for name in following if now.get(name) != following[name]}
    reasons = (
        _irreversible(changed, following),
        _with_a_history(following),
        _lasting(changed, now, following),
        _bound(changed, following),
    )
    return next(filter(None, reasons), "")


def _irreversible(changed: Iterable[str], following: Values) -> str:
    for name in sorted(changed):
        if name not in CATALOGUE:
            return f"{name} is a knob of the study's own"
        knob = CATALOGUE[name]
        if knob.acts_on != STEP and following["parallelism"] not in knob.reversible:
            return f"{name} acts on the {knob.acts_on}"
    return ""


def _with_a_history(following: Values) -> str:
    for name, knob in CATALOGUE.items():
        if knob.stateful is not None and knob.among(following[name], knob.stateful):
            return f"{name}={written(following[name])} goes with a training from its first step on"
    return ""


def _lasting(changed: Container[str], now: Values, following: Values) -> str:
    for name, knob in CATALOGUE.items():
        kept = [values[name] for values in (now, following) if values[name] in knob.lasting]
        if name in changed and kept:
            return f"{name}={written(kept[0])} stays for as long as its process"
    return ""


def _bound(changed: Container[str], following: Values) -> str:
    for maker, knob in CATALOGUE.items():
        for name in knob.made_for:
            if name in changed and knob.among(following[maker], knob.lasting):
                return f"{name} is part of what was made for {maker}"
    return ""
