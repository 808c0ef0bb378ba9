"""What lies in a folder, in every respect that its owner may care for; and folders to look at."""

import hashlib
import os
import sys
from pathlib import Path

LIBRARIES = {
    "calm": "",
    "writer": "from pathlib import Path; Path.home().joinpath('.cache-of-fonts').write_text('new')",
    "leaning": "import calm, writer",
    "wide/__init__": "import wide.about, writer",
    "wide/about": "",
}
"""Module -> what it does when it is imported."""
USES_LIBRARIES = """
import json, os, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import calm, wide, leaning, writer
beforehand = [m.__name__ for m in (calm, wide, leaning, writer) if m.PROCESS != os.getpid()]
print("beforehand", json.dumps(beforehand), flush=True)
assert writer.Path.home().joinpath(".cache-of-fonts").exists()
time.sleep(1.1)  # as long as libraries take that are worth it
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4):
        model(x).square().mean().backward()
        optimizer.step()
"""
"""A script that tells which libraries it has found imported."""
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


def install_libraries(home: Path) -> Path:
    """Install the libraries for the user with this home; return the folder."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = home / ".local" / "lib" / version / "site-packages"
    folder.mkdir(parents=True)
    (folder / "wide").mkdir()
    for name, code in LIBRARIES.items():
        (folder / f"{name}.py").write_text(f"import os\nPROCESS = os.getpid()\n{code}\n")
    return folder


def home(folder: Path) -> Path:
    """Make a home with a file in it."""
    folder.mkdir()
    (folder / "history").write_text("mine")
    return folder
