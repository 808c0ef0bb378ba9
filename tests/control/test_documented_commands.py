"""Commands of the documentation: each is understood, and run here or by the test that is named."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from autotune.cli import app
from autotune.views.catalogue import knob_page
from search_spaces import CATALOGUE
from tests.control.replayed import Replayed
from tests.support.steering import ask

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")

RUN_ELSEWHERE = {
    "init": "acceptance/test_init_of_a_command.py",
    "start": "acceptance/test_commands.py",
    "resume": "acceptance/test_commands.py",
    "stop": "acceptance/test_commands.py",
    "run": "acceptance/test_watched_job.py",
    "doctor": "acceptance/test_commands.py",
    "diagnose": "acceptance/test_diagnose.py",
    "record": "acceptance/test_record.py",
    "simulate": "control/test_simulate.py",
    "dashboard": "acceptance/test_dashboard.py",
    "daemon": "support/steering.py",
    "submit": "faults/slurm_nodes.py",
}
"""Commands that want ranks, a cluster or a server, with the test that runs each."""
TURNS_ON = {"--idle-only": "when_idle"}
"""Options that are tested by what they turn on: a function that a test calls."""
OF_OTHERS = ("--trials", "argv")
"""Last words of commands that lack a file, or are for scripts alone (unit/test_formats.py)."""
WAITING = ("hold", "release", "move")
"""Commands that are for a study that waits."""
LAST = ("restore", "delete")
"""Commands that follow what the others have made."""
PLACEHOLDERS = {
    **dict.fromkeys(("STUDY", "[STUDY]", "A", "B", "my-study", "seed-transformer"), "played"),
    "study.yaml": "played",
    "N": "0",
    "FILE": "kept.csv",
    "[FILE]": "page.html",
    "URL": "sqlite:///restored.db",
}


def documented() -> Iterator[tuple[str, list[str]]]:
    """Yield page and words of each command; a page per knob is made when the site is built."""
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
    for name, text in (texts | {knob: knob_page(knob, {}) for knob in CATALOGUE}).items():
        lines = "".join(_FENCED.findall(text)).replace("\\\n", " ").splitlines()
        found = [line.strip().removeprefix("$ ") for line in lines]
        found += [" ".join(code.split()) for code in _CODE.findall(_FENCED.sub("", text))]
        for line in dict.fromkeys(found):
            if line.startswith("autotune "):
                words = shlex.split(line, comments=True)[1:]
                yield name, words[: words.index(">")] if ">" in words else words


COMMANDS = list(documented())


def named(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command of these words, and what is left of them."""
    found: Any = get_command(app)
    while words and (commands := getattr(found, "commands", None)):
        assert words[0] in commands, words
        found, words = commands[words[0]], words[1:]
    return found, words


def test_documented_commands_and_options_are_those_of_the_program() -> None:
    assert {page for page, _ in COMMANDS} >= {
        "README.md",
        "docs/index.md",
        "docs/report.md",
        "docs/operations.md",
    }
    for page, words in COMMANDS:
        command, rest = named(words)
        known = {option for one in command.params for option in one.opts}
        for word in rest[: rest.index("--")] if "--" in rest else rest:
            assert not word.startswith("--") or word in known, (page, words)


@pytest.mark.long
def test_command_that_is_not_run_here_is_run_by_the_test_that_is_named() -> None:
    paths = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    given = {path: [*words_given(path.read_text())] for path in paths}
    for page, words in COMMANDS:
        if words[0] not in RUN_ELSEWHERE:
            continue
        named_test = given[ROOT / "tests" / RUN_ELSEWHERE[words[0]]]
        assert any(words[0] in several for several in named_test), words
        before = words[: words.index("--")] if "--" in words else words
        wanted = {word for word in before if word.startswith("--")} - {*TURNS_ON}
        for option in wanted:
            together = {words[0], option}
            assert any(together <= one for found in given.values() for one in found), (page, words)


def test_option_that_is_run_by_no_test_turns_on_what_a_test_calls() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "control").glob("test_idle*.py"))
    assert all(f"{function}(" in tests for function in TURNS_ON.values())


def words_given(module: str) -> Iterator[set[str]]:
    """Yield the words of each call, list and tuple of a module, with those of constants in it."""
    tree = ast.parse(module)
    constants = {
        target.id: _words(one.value, {})
        for one in tree.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.List | ast.Tuple):
            yield _words(node, constants)


def _words(node: ast.AST, constants: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            found |= {*one.value.split()}
        if isinstance(one, ast.Name):
            found |= constants.get(one.id, set())
    return found


@pytest.mark.long
def test_documented_command_about_studies_works(played: Replayed) -> None:
    waiting = Replayed(played.folder, played.repository.database, "waiting")
    played.run(budget={"trials": 3}, export="best.yaml")
    waiting.submit(budget={"trials": 3})
    here = [(page, words) for page, words in COMMANDS if words[0] not in RUN_ELSEWHERE]
    here.sort(key=lambda one: any(word in LAST for word in one[1]))
    ran: set[str] = set()
    for page, words in here:
        filled = _filled(played, words)
        if filled is None or " ".join(filled) in ran:
            continue
        found = ask(*filled, cwd=played.folder)
        assert found.returncode == 0, (page, filled, found.stderr)
        ran.add(" ".join(filled))
    firsts = {words.split()[0] for words in ran}
    assert {words[0] for _, words in here} <= firsts


def _filled(played: Replayed, words: list[str]) -> list[str] | None:
    """Return a command with its placeholders filled in; None where the text only names it."""
    command, rest = named(words)
    needed = [one for one in command.params if one.param_type_name == "argument" and one.required]
    if (needed and not rest) or hasattr(command, "commands") or words[-1] in OF_OTHERS:
        return None
    filled = [PLACEHOLDERS.get(word, word) for word in words]
    if needed and rest[0].startswith("--"):
        filled.insert(len(words) - len(rest), played.name)
    if words[0] == "storage":
        filled = ["kept.db" if word == PLACEHOLDERS["FILE"] else word for word in filled]
    if words[0] in WAITING:
        filled = ["waiting" if word == played.name else word for word in filled]
    takes_storage = any("--storage" in one.opts for one in command.params)
    return filled + (
        ["--storage", played.url] if takes_storage and "--storage" not in words else []
    )


@pytest.mark.long
def test_site_is_built_from_all_pages_and_loads_nothing(tmp_path: Path) -> None:
    pytest.importorskip("material")
    site = tmp_path / "site"
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(site),
    ]
    subprocess.run(words, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    pages = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    assert {f"knobs/{name}.html" for name in CATALOGUE} <= pages.keys()
    for name, text in pages.items():
        assert not re.findall(r"""\ssrc=["']https?:|<link[^>]+href=["']https?:""", text), name
