"""Filter for files that a script opens and that may hold its settings."""

import re
import sys
from pathlib import Path

_MOST_BYTES = 100 * 1024
"""Largest settings file: people write them by hand, and larger files are data."""
_FOLDERS = {"site-packages", "dist-packages", "node_modules", "__pycache__", ".cache", ".git"}
"""Folders of libraries and caches."""
_DATA = re.compile(
    r"tokeni[sz]er|vocab|merges|special_tokens|added_tokens|\.index\.json$|package-lock|annotations",
    re.IGNORECASE,
)
"""Names of files that belong to models or data and hold no settings of a training."""


def may_hold_settings(path: Path) -> bool:
    """Return whether a file of YAML, JSON or TOML may say how a script trains.

    Args:
        path: absolute.
    """
    if is_of_library(path) or _DATA.search(path.name):
        return False
    try:
        return path.is_file() and path.stat().st_size <= _MOST_BYTES
    except OSError:
        return False


def is_of_library(path: Path) -> bool:
    """Return whether a file is one of an installed library or of a cache."""
    return path.is_relative_to(sys.prefix) or bool(_FOLDERS & {*path.parts})
