"""What lies in a folder, in every respect that its owner may care for; and folders to look at."""

import hashlib
import os
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "writing.py"
Footprint = dict[str, tuple[object, ...]]


def footprint(folder: Path, *, without: frozenset[str] = frozenset()) -> Footprint:
    """Everything in a folder: path -> kind, mode, owner, time of change and content.

    Args:
        folder: to look through.
        without: names at its top that are left out, and its own time of change with them.
    """
    found: Footprint = {}
    for above, folders, files in os.walk(folder):
        if above == str(folder):
            folders[:] = [name for name in folders if name not in without]
            files = [name for name in files if name not in without]
        for name in [*folders, *files]:
            path = Path(above) / name
            known = path.lstat()
            content = str(path.readlink()) if path.is_symlink() else _digest(path)
            key = str(path.relative_to(folder))
            found[key] = (known.st_mode, known.st_uid, known.st_mtime_ns, content)
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def project(folder: Path) -> Path:
    """Fill a folder with a script and files that it will want to change."""
    for below in ("old", "tree/inner"):
        (folder / below).mkdir(parents=True)
    (folder / "train.py").write_bytes(SCRIPT.read_bytes())
    for name, text in {
        "old/model.pt": "MY TRAINED MODEL",
        "log.txt": "mine\n",
        "config.json": "{}",
        "gone.txt": "here",
        "tree/inner/leaf": "leaf",
        "script.sh": "",
    }.items():
        (folder / name).write_text(text)
    (folder / "link").symlink_to("log.txt")
    return folder


def home(folder: Path) -> Path:
    """Make a home with a file in it."""
    folder.mkdir()
    (folder / "history").write_text("mine")
    return folder
