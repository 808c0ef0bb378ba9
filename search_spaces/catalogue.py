"""All knobs. A new one takes an entry beside its like, a function in autotune.worker.effects, a test."""

from collections.abc import Container, Sequence

from search_spaces.knob import Knob, KnobValue, written
from search_spaces.knobs import model, process, step, wrapper

CATALOGUE: dict[str, Knob] = {
    knob.name: knob for knob in (*step.KNOBS, *wrapper.KNOBS, *model.KNOBS, *process.KNOBS)
}


def defaults() -> dict[str, KnobValue]:
    """Return every knob at its default: what a plain script does."""
    return {name: knob.default for name, knob in CATALOGUE.items()}


def without_target(lacks: Container[str]) -> list[str]:
    """Return the knobs that have nothing to act on in a workload.

    Args:
        lacks: targets that the workload has not.
    """
    return sorted(name for name, knob in CATALOGUE.items() if knob.target in lacks)


def not_from_outside(name: str, values: Sequence[KnobValue], baseline: KnobValue) -> str | None:
    """Return why a knob cannot take these values in a script that does not turn it itself.

    Args:
        name: of the knob, which may be the study's own.
        values: to be tried.
        baseline: what the script has today.

    Returns:
        None if it can.
    """
    via = CATALOGUE[name].inject if name in CATALOGUE else None
    if via is None:
        return "cannot be changed from outside the script"
    wanted = [value for value in values if value != baseline]
    if wanted and via.today not in (None, baseline):
        return f"cannot be changed from outside a script that has {written(baseline)} by itself"
    refused = [written(value) for value in wanted if via.values and value not in via.values]
    return f"cannot be {' or '.join(refused)} from outside the script" if refused else None
