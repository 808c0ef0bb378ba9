"""Which modules count as installed libraries, and what makes a process unfit to be forked from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.trial import imports

LOOK = """
import json, sys

sys.path.insert(0, {folder!r})
before = set(sys.modules)
import wave, mine, {libraries}
from autotune.trial import imports

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
    "text",
    [
        "import os; os.environ.get('RANK')",
        "import os; 'RANK' in os.environ",
        "import os; os.getenv('RANK')",
    ],
)
def test_a_question_for_what_belongs_to_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    name = module(tmp_path, text, monkeypatch)
    assert imports.load([name], ["RANK"], []) == "RANK is read when the libraries are imported"


def test_other_questions_are_no_harm_and_the_watch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    usual = type(os.environ)
    name = module(
        tmp_path, "import os; os.environ.get('HOME'); os.environ['MY'] = '1'", monkeypatch
    )
    assert imports.load([name], ["RANK"], []) == ""
    assert type(os.environ) is usual
    assert os.environ.pop("MY") == "1"


def test_one_that_cannot_be_imported_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = module(tmp_path, "raise SystemExit", monkeypatch)
    good = module(tmp_path, "X = 1", monkeypatch)
    assert imports.load(["there.is.none", leaving, good], [], []) == ""
    assert good in sys.modules
    assert leaving not in sys.modules


def test_one_that_is_also_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "study"
    mine.mkdir()
    name = module(tmp_path, "X = 1", monkeypatch)
    (mine / f"{name}.py").write_text("X = 2")
    unfit = imports.load([name], [], [str(mine)])
    assert unfit == f"{name} is also in the folder of the study"
