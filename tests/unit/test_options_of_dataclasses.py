"""Options of a command line that a library has made of a dataclass."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

_SCRIPT = """
import dataclasses
from autotune.worker.inject.options import Options

@dataclasses.dataclass
class Data:
    batch_size: int = 16
    path: object = None

@dataclasses.dataclass
class Settings:
    data: Data
    grad_accum: int = 2

def main():
    settings = Settings(Data())
    return Options().found()

found = main()
"""


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("tyro", {"--data.batch-size": 16, "--grad-accum": 2}),
        ("simple_parsing", {"--batch_size": 16, "--grad_accum": 2}),
        ("draccus", {"--data.batch_size": 16, "--grad_accum": 2}),
    ],
)
def test_fields_of_a_dataclass_are_options_as_its_library_spells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, expected: dict[str, int]
) -> None:
    monkeypatch.setitem(sys.modules, library, ModuleType(library))
    (tmp_path / "train.py").write_text(_SCRIPT)
    found = runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")["found"]
    assert {option.flag: option.value for option in found} == expected
    assert all(option.sure for option in found)


def test_dataclass_of_a_script_without_such_a_library_is_no_option(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    found = runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")["found"]
    assert not [option for option in found if option.name == "batch_size"]
