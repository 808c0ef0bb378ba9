"""Text that a shell, a URL or a command line would read as something else arrives byte for byte."""

import json
from pathlib import Path

import pytest

from tests.support.steering import StudyFolder, study_folder

pytestmark = [pytest.mark.timeout(1800), pytest.mark.fault(19)]

ECHO = """
import json
import os
from pathlib import Path

import tiny


def build(**arguments):
    seen = {"arguments": arguments, "env": os.environ["HOSTILE"], "folder": os.getcwd()}
    if os.environ["RANK"] == "0":
        Path("seen.json").write_text(json.dumps(seen))
    return tiny.build()
"""
HOSTILE = {
    "semicolon": "; touch pwned",
    "substitution": "$(touch pwned) `touch pwned` ${HOME} %PATH%",
    "newlines": "one\ntwo\r\nthree\n",
    "quotes": "'single' \"double\" \\ back\\slash",
    "flag": "--foreground",
    "spaces": "  around  ",
    "unicode": "Grüße, 世界 \u2028 \u200f",
    "controls": "\x01\x1b[31m\x7f",
    "markup": "[bold]not markup[/bold] {braces} %s %(x)s",
    "numbers": [0, -1, 2**70, 1e-300, 0.1, True, None],
    "nested": {"a b": [{"--x": "'"}], "": []},
    "looks like": ["no", "0x10", "null", "2026-01-01", "1:30", "~", "=", "<<"],
}


def assert_arrives(tiny: StudyFolder, study_file: str) -> None:
    (tiny.folder / "echo.py").write_text(ECHO)
    tiny.write(
        workload={"name": "echo:build", "args": HOSTILE},
        env={"HOSTILE": "; touch pwned\n$(touch pwned) '\""},
        resources={"workers": 1},
        budget={"trials": 1},
    )
    (tiny.folder / "study.yaml").rename(tiny.folder / study_file)
    found = tiny.run("start", "--", study_file)
    assert found.returncode == 0, found.stdout + found.stderr
    seen = json.loads((tiny.folder / "seen.json").read_text())
    assert seen["arguments"] == HOSTILE
    assert seen["env"] == "; touch pwned\n$(touch pwned) '\""
    assert seen["folder"] == str(tiny.folder)
    assert (tiny.folder / "best.yaml").exists()
    tiny.assert_complete(trials=1)
    assert list(tiny.folder.parent.rglob("pwned")) == []


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ['it\'s "mine"; touch pwned $(touch pwned)\n--storage', "who? 100% #1 & a=b @home:8"],
    ids=["of a shell", "of a URL"],
)
def test_arguments_environment_and_folders_arrive(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with study_folder(tmp_path / name, "sqlite:///autotune.db") as tiny:
        monkeypatch.chdir(tiny.folder)
        assert_arrives(tiny, "--detach 'x'\n.yaml")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
