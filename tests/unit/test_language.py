"""The language of the code: docstrings that stand alone, things that are no persons, unique names."""

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("autotune", "launchers", "search_spaces", "storage")
REWRITTEN = (
    "autotune/analysis",
    "autotune/cli",
    "autotune/config",
    "autotune/export",
    "autotune/measurement",
    "autotune/runs",
    "autotune/search",
    "autotune/service",
    "autotune/standalone",
    "autotune/views",
    "autotune/worker",
    "autotune/workloads",
    "autotune/study",
    "launchers",
    "search_spaces",
    "storage",
    "benchmarks",
)
"""Packages that follow the rules; pyproject.toml excepts the others from those of pydocstyle."""
FRAGMENT = re.compile(r"(Of|As|By|In|The same|Whether|What|Who|Whose)\b")
PERSON = re.compile(r"\b(who|whom|whoever|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)


def modules(*packages: str) -> Iterator[tuple[str, str]]:
    """Yield (name, source) of every module of some packages."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every docstring, those of attributes and constants included."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            text = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield statement.lineno, text.value.strip()


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every comment."""
    lines = iter(source.splitlines(keepends=True))
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def described(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the parameters in the section Args of a function's docstring."""
    section = re.search(
        r"^Args:\n((?: .*\n?|\n)*)", ast.get_docstring(function) or "", re.MULTILINE
    )
    return set(re.findall(r"^    \*{0,2}(\w+):", section[1], re.MULTILINE)) if section else set()


def parameters(of: ast.arguments) -> Iterator[ast.arg]:
    """Yield all parameters of a function."""
    yield from (*of.posonlyargs, *of.args, *of.kwonlyargs)
    yield from (each for each in (of.vararg, of.kwarg) if each)


@pytest.mark.parametrize("package", REWRITTEN)
def test_docstring_in_rewritten_package_begins_with_no_fragment(package: str) -> None:
    found = [
        f"{name}:{line}: {text.splitlines()[0]}"
        for name, source in modules(package)
        for line, text in docstrings(source)
        if FRAGMENT.match(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", REWRITTEN)
def test_text_in_rewritten_package_calls_no_process_a_person(package: str) -> None:
    found = [
        f"{name}:{line}: {text}"
        for name, source in modules(package)
        for line, text in (*docstrings(source), *comments(source))
        if PERSON.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PRODUCT)
def test_parameter_that_a_docstring_describes_exists(package: str) -> None:
    found = [
        f"{name}:{function.lineno}: {function.name} has no {parameter}"
        for name, source in modules(package)
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for parameter in described(function) - {each.arg for each in parameters(function.args)}
    ]
    assert not found, "\n".join(found)


def test_class_name_in_product_occurs_once() -> None:
    places = defaultdict(list)
    for name, source in modules(*PRODUCT):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
