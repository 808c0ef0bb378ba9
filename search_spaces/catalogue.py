"""All knobs. A new one takes an entry beside its like, a function in autotune.worker.effects, a test."""

from collections.abc import Container, Sequence
from importlib import resources
from typing import Any

import yaml

from search_spaces.knob import Knob, KnobValue, written
from search_spaces.knobs import model, process, step, wrapper

CATALOGUE: dict[str, Knob] = {
    knob.name: knob for knob in (*step.KNOBS, *wrapper.KNOBS, *model.KNOBS, *process.KNOBS)
}
_FOLDER = resources.files("search_spaces") / "presets"


def defaults() -> dict[str, KnobValue]:
    """Return every knob at its default: what a plain script does."""
    return {name: knob.default for name, knob in CATALOGUE.items()}


def without_target(lacks: Container[str]) -> list[str]:
    """Return the knobs that have nothing to act on in a workload.

    Args:
        lacks: targets that the workload has not.
    """
    return sorted(name for name, knob in CATALOGUE.items() if knob.target in lacks)


def not_from_outside(name: str, values: Sequence[KnobValue], baseline: KnobValue) -> str:
    """Return why a knob cannot take these values in a script that does not turn it itself.

    Args:
        name: of the knob, which may be the study's own.
        baseline: what the script has by itself.

    Returns:
        An empty text if it can.
    """
    via = CATALOGUE[name].inject if name in CATALOGUE else None
    if via is None:
        return "cannot be changed from outside the script"
    wanted = [value for value in values if value != baseline]
    if wanted and via.baseline not in (None, baseline):
        return f"cannot be changed from outside a script that has {written(baseline)} by itself"
    refused = [written(value) for value in wanted if via.values and value not in via.values]
    return f"cannot be {' or '.join(refused)} from outside the script" if refused else ""


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in _FOLDER.iterdir()
        if entry.name.endswith(".yaml")
    )


def preset(name: str) -> dict[str, list[Any]]:
    """Return the preset's values per knob.

    Raises:
        KeyError: there is no such preset.
    """
    loaded: dict[str, list[Any]] = yaml.safe_load(_text(name))
    return loaded


def preset_summary(name: str) -> str:
    """Return the purpose of a preset: the comment at its head.

    Raises:
        KeyError: there is no such preset.
    """
    return " ".join(
        line.removeprefix("#").strip() for line in _text(name).splitlines() if line.startswith("#")
    )


def _text(name: str) -> str:
    if name not in preset_names():
        raise KeyError(name)
    return (_FOLDER / f"{name}.yaml").read_text("utf-8")
