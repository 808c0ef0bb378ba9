"""Search spaces with a name, kept as YAML beside this file."""

from importlib import resources
from typing import Any

import yaml

_FOLDER = resources.files("search_spaces") / "presets"


def preset_names() -> list[str]:
    """Names of all presets, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in _FOLDER.iterdir()
        if entry.name.endswith(".yaml")
    )


def preset(name: str) -> dict[str, list[Any]]:
    """The preset's values per knob.

    Raises:
        KeyError: there is no such preset.
    """
    if name not in preset_names():
        raise KeyError(name)
    loaded: dict[str, list[Any]] = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text("utf-8"))
    return loaded
