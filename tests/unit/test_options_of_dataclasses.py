"""Options of a command line that a library has made of a dataclass, or Hydra of its configuration."""

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
_OF_PARTS = """
def train(settings):
    return Options().found()

def main():
    settings, loop = Settings(Data()), Data()
    loop.path = loop
    return train(settings.data)

found = main()
"""
_BY_HYDRA = """
from omegaconf import OmegaConf
from autotune.worker.inject.options import Options

def train(config):
    return fit(OmegaConf.create([{"lr": 1}])[0], config)

def fit(step, config):
    return Options().found()

def main(config):
    return train(config.train)

found = main(OmegaConf.create({"train": {"batch_size": 16}, "seed": 1}))
"""


def _found(folder: Path, text: str) -> dict[str, object]:
    """The options that a script finds, each with its value."""
    (folder / "train.py").write_text(text)
    found = runpy.run_path(str(folder / "train.py"), run_name="__main__")["found"]
    return {option.flag: option.value for option in found if option.sure}


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
    assert _found(tmp_path, _SCRIPT) == expected


def test_function_that_has_a_part_of_a_dataclass_hides_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "draccus", ModuleType("draccus"))
    text = _SCRIPT.partition("def main")[0] + _OF_PARTS
    assert _found(tmp_path, text) == {"--data.batch_size": 16, "--grad_accum": 2}


def test_function_that_has_a_part_of_hydras_configuration_hides_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("omegaconf")
    monkeypatch.setitem(sys.modules, "hydra", ModuleType("hydra"))
    assert _found(tmp_path, _BY_HYDRA) == {"train.batch_size=": 16, "seed=": 1}


def test_dataclass_of_a_script_without_such_a_library_is_no_option(tmp_path: Path) -> None:
    assert _found(tmp_path, _SCRIPT) == {}
