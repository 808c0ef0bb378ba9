"""All knobs. A new one takes an entry beside its like, a function in autotune.worker.effects, a test."""

from search_spaces.knob import Knob, KnobValue
from search_spaces.knobs import model, process, step, wrapper

CATALOGUE: dict[str, Knob] = {
    knob.name: knob for knob in (*step.KNOBS, *wrapper.KNOBS, *model.KNOBS, *process.KNOBS)
}


def defaults() -> dict[str, KnobValue]:
    """Every knob at its default: what a plain script does."""
    return {name: knob.default for name, knob in CATALOGUE.items()}
