"""Which modules count as installed libraries, and what makes a process unfit to be forked from."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.worker import imports
from autotune.worker.protocol import Preload
from tests.support.trials import of_one_rank

REQUEST = dataclasses.replace(of_one_rank({}), factory="mine:build", import_paths=("mine",))
LOOK = """
import json, sys

sys.path.insert(0, {folder!r})
before = set(sys.modules)
import wave, mine, {libraries}
from autotune.worker import imports

print(json.dumps(imports.installed(before, {factory!r})))
"""


def seen(folder: Path, libraries: str, factory: str = "mine:build") -> list[str]:
    (folder / "mine.py").write_text("")
    code = LOOK.format(folder=str(folder), libraries=libraries, factory=factory)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(found.stdout)
    return names


def test_installed_libraries_but_neither_the_standard_one_nor_the_users(tmp_path: Path) -> None:
    names = seen(tmp_path, "yaml, markupsafe")
    assert {"yaml", "yaml.error", "markupsafe"} <= set(names)
    assert names.index("yaml.error") < names.index("markupsafe")
    assert not {"wave", "mine"} & set(names)


def test_the_package_of_the_factory_is_not_among_them(tmp_path: Path) -> None:
    assert "yaml" not in seen(tmp_path, "yaml, markupsafe", factory="yaml.somewhere:build")


def module(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(folder))
    name = f"imported_{abs(hash((str(folder), text)))}"
    (folder / f"{name}.py").write_text(text)
    return name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import os; os.environ.get('RANK')", "RANK"),
        ("import os; 'RANK' in os.environ", "RANK"),
        ("import os; os.getenv('RANK')", "RANK"),
        ("import os; os.environ.pop('RANK', None)", "RANK"),
        ("import os; COPY = os.environ.copy()", "RANK"),
        ("import os; dict(os.environ).get('RANK')", "RANK"),
        ("import os; 'RANK' in {**os.environ}", "RANK"),
        ("import os; OURS = [k for k, v in os.environ.items() if k.startswith('RA')]", "RANK"),
        ("import os; TEXT = ' '.join(f'{k}={v}' for k, v in os.environ.items())", "RANK"),
        ("import copy, os; COPY = copy.deepcopy(dict(os.environ))", "RANK"),
        ("import os; before = dict(os.environ); os.environ.update(before)", "RANK"),
    ],
)
def test_a_question_for_what_belongs_to_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    wanted = Preload((module(tmp_path, text, monkeypatch),), private=("RANK",))
    assert imports.load(wanted) == f"{told} is read or set when the libraries are imported"


@pytest.mark.parametrize(
    "text",
    [
        "for name in os.environ: pass",
        "OURS = {name: os.environ[name] for name in os.environ.keys() if name.startswith('MY_')}",
        "subprocess.run(['true'], check=True)",
    ],
)
def test_enumerated_names_of_the_environment_are_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    name = module(tmp_path, f"import os, subprocess\n{text}\n", monkeypatch)
    assert imports.load(Preload((name,), private=("RANK", "LOCAL_RANK"))) == ""


def test_other_questions_are_no_harm_and_the_watch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    usual = type(os.environ)
    name = module(
        tmp_path, "import os; os.environ.get('HOME'); os.environ['MY'] = '1'", monkeypatch
    )
    assert imports.load(Preload((name,), private=("RANK",))) == ""
    assert type(os.environ) is usual
    assert os.environ.pop("MY") == "1"


def test_one_that_cannot_be_imported_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = module(tmp_path, "raise SystemExit", monkeypatch)
    good = module(tmp_path, "X = 1", monkeypatch)
    assert imports.load(Preload(("there.is.none", leaving, good))) == ""
    assert good in sys.modules
    assert leaving not in sys.modules


def test_one_that_is_also_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "study"
    mine.mkdir()
    name = module(tmp_path, "X = 1", monkeypatch)
    (mine / f"{name}.py").write_text("X = 2")
    unfit = imports.load(Preload((name,), import_paths=(str(mine),)))
    assert unfit == f"{name} is also in the folder of the study"


def test_a_folder_of_data_of_the_same_name_is_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(tmp_path, "X = 1", monkeypatch)
    (tmp_path / "study" / name).mkdir(parents=True)
    assert imports.load(Preload((name,), import_paths=(str(tmp_path / "study"),))) == ""


def test_a_variable_that_the_user_sets_before_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(tmp_path, "import os; HOME = os.environ.get('MY_HOME', '')", monkeypatch)
    brought = imports.ImportRecord()
    monkeypatch.setenv("MY_HOME", "/data")
    preload = brought.preload(REQUEST, ["RANK"])
    assert preload.changed == {"MY_HOME": "/data"}
    monkeypatch.delenv("MY_HOME")
    wanted = dataclasses.replace(preload, modules=(name,))
    assert imports.load(wanted) == "MY_HOME is read or set when the libraries are imported"


def test_a_variable_that_the_library_sets_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_INIT", raising=False)
    name = module(tmp_path, "import os; os.environ.setdefault('MY_INIT', 'no')", monkeypatch)
    wanted = Preload((name,), changed={"MY_INIT": "no"})
    assert imports.load(wanted) == ""
    monkeypatch.delenv("MY_INIT")


def test_what_is_imported_beforehand_stands_where_a_rank_would_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    name = module(tmp_path, "import os; PLACE = os.getcwd(), os.environ['COLOUR']", monkeypatch)
    wanted = Preload((name,), {"COLOUR": "red"}, workdir=str(tmp_path / "study"))
    assert imports.load(wanted) == ""
    assert (str(tmp_path / "study"), "red") == sys.modules[name].PLACE
    monkeypatch.delenv("COLOUR")


def test_paths_that_the_workload_adds_are_searched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    brought = imports.ImportRecord()
    sys.path.insert(0, "third_party")
    assert brought.preload(REQUEST, []).import_paths == ("mine", "third_party")


@pytest.mark.parametrize(("answer", "begun"), [(3, False), (0, True), (100, True)])
def test_driver_that_is_loaded_tells_whether_cuda_has_begun(
    monkeypatch: pytest.MonkeyPatch, answer: int, begun: bool
) -> None:
    driver = SimpleNamespace(cuDeviceGetCount=lambda _: answer)
    monkeypatch.setattr("torch.cuda._initialized", False)
    monkeypatch.setattr(imports, "_driver", lambda: driver)
    assert imports.has_begun_cuda() is begun


def test_process_without_the_driver_has_not_begun_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda._initialized", False)
    monkeypatch.setattr(imports, "_DRIVER", "libnothing-of-this-name.so.1")
    assert not imports.has_begun_cuda()


def test_who_initialises_cuda_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda._initialized", False)
    harmless = module(tmp_path, "X = 1", monkeypatch)
    culprit = module(tmp_path, "import torch; torch.cuda._initialized = True", monkeypatch)
    late = module(tmp_path, "X = 3", monkeypatch)
    unfit = imports.load(Preload((harmless, culprit, late)))
    assert unfit == f"{culprit} initialises CUDA when it is imported"
