"""A command as a user who is not root: `python -m tests.support.ordinary_user COMMAND ...`."""

import os
import stat
import sys
import tempfile
from pathlib import Path

from autotune.worker.sandbox import kernel
from tests.support.stranger import USER

_ROOT = Path(__file__).parents[2]


def become() -> None:
    """Be that user from now on. Folders that only root may enter, and that hold the interpreter or this
    project, can be entered in this process and in those that it starts."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.keep_mounts_here()
    layers = Path(tempfile.mkdtemp())
    kernel.mount("tmpfs", str(layers), "tmpfs", {})
    for number, folder in enumerate(_closed()):
        upper, work = layers / f"{number}-upper", layers / f"{number}-work"
        upper.mkdir(mode=0o755)
        work.mkdir()
        options = {"lowerdir": str(folder), "upperdir": str(upper), "workdir": str(work)}
        kernel.mount("overlay", str(folder), "overlay", dict(options))
    os.umask(0o022)
    kernel.unmount(str(layers))
    layers.rmdir()
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


def _closed() -> list[Path]:
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), _ROOT.resolve()]
    above = dict.fromkeys(folder for path in needed for folder in (*path.parents, path))
    outer = sorted(above, key=lambda folder: len(folder.parts))
    return [folder for folder in outer if not folder.stat().st_mode & stat.S_IXOTH]


if __name__ == "__main__":
    become()
    os.execvp(sys.argv[1], sys.argv[1:])
