"""Search spaces with a name, kept as YAML beside this file."""

from importlib import resources
from typing import Any

import yaml

_FOLDER = resources.files("search_spaces") / "presets"


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
