"""Compiled code that trials share, beside what the user has compiled before."""

from pathlib import Path

import pytest

from autotune.worker.files import COMPILER_CACHES
from autotune.worker.node import sandbox


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, below in COMPILER_CACHES.items():
        monkeypatch.setenv(name, str(tmp_path / "study" / below))
    return tmp_path


def test_extension_that_the_user_has_built_is_found(home: Path) -> None:
    built = home / ".cache/torch_extensions/py311_cpu/mine"
    built.mkdir(parents=True)
    (built / "mine.so").touch()
    sandbox.shared_caches({})
    cache = home / "study/extensions/py311_cpu"
    assert (cache / "mine/mine.so").exists()
    assert not cache.is_symlink(), "another extension goes there, and not to the user's"


def test_folders_that_the_study_names_itself_are_left(home: Path) -> None:
    assert sandbox.shared_caches(dict.fromkeys(COMPILER_CACHES, "/mine")) == []
    assert not (home / "study").exists()
