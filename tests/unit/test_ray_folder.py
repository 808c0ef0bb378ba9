"""Sockets and logs of a Ray of our own go with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from launchers.driver import OwnFolder

_HOLD = """
import sys, time
from launchers.driver import OwnFolder

folder = OwnFolder()
(folder.path / "socket").touch()
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path


def test_one_of_a_process_that_was_killed_is_removed_by_the_next(base: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    theirs = Path(other.stdout.readline().strip())
    ours = OwnFolder()
    assert (theirs / "socket").exists(), "its owner lives"
    other.kill()
    other.wait()
    OwnFolder().remove()
    assert list(base.iterdir()) == [ours.path]
    ours.remove()
    ours.remove()
    assert list(base.iterdir()) == []


def test_what_is_not_ours_stays(base: Path) -> None:
    (base / "ray").mkdir()
    (base / "autotune-ray-x").symlink_to(base / "ray")
    OwnFolder().remove()
    assert (base / "ray").is_dir()


def test_a_folder_of_the_users_stays_whatever_its_name(base: Path) -> None:
    for mode in (0o755, 0o700):
        folder = base / f"autotune-ray-mine-{mode:o}"
        folder.mkdir(mode=mode)
        (folder / "train.py").touch()
    OwnFolder().remove()
    assert len(list(base.glob("*/train.py"))) == 2
