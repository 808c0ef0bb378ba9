"""Explanations of SQLite's errors, in terms of the file and its disk."""

import os
from pathlib import Path

from storage.disk import full, is_full

_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")


def explain_sqlite_error(error: BaseException, path: Path) -> str:
    """Return why a database file cannot be opened, read or written, and what would help.

    Args:
        error: error of SQLite or of the operating system.
        path: path of the database file.
    """
    name = getattr(error, "sqlite_errorname", "")
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    if name == "SQLITE_FULL" or is_full(path.parent):
        return f"{full(path.parent)}, which SQLite needs to write ({said}); free some"
    if path.is_dir():
        return "that is a folder, not a file"
    if name.startswith(_DAMAGED):
        return f"the file is no database of SQLite, or is damaged ({said})"
    if name.startswith("SQLITE_BUSY"):
        return f"another program keeps the file locked ({said})"
    if name.startswith("SQLITE_READONLY") or not _may_be_written(path):
        return (
            f"it may not be written ({said}): SQLite writes to the file and to others beside it, so "
            f"that it and {path.parent} must be writable for you; --storage takes another place"
        )
    return said


def _may_be_written(path: Path) -> bool:
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
