"""What the documents promise is there."""

import ast
import re
import tomllib
import typing
from pathlib import Path
from typing import Annotated

import pytest
from packaging.requirements import Requirement

from autotune.config import StudySpec, load
from autotune.views.catalogue import knobs_page, recorded_effects
from search_spaces import CATALOGUE
from tests.support.fault_table import FAULTS

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_valid_study(path):
    assert load(path).name


def test_the_template_is_the_quickstart():
    template = ROOT / "autotune" / "study_template.yaml"
    assert template.read_text() == (ROOT / "examples" / "quickstart.yaml").read_text()


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def fields(model, prefix=""):
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for section in (field.annotation, *kinds(field.annotation)):
            if hasattr(section, "model_fields"):
                yield from fields(section, f"{prefix}{name}.")


def kinds(annotation):
    """Return the models of a section of several kinds."""
    members = typing.get_args(annotation)
    return [typing.get_args(one)[0] for one in members if typing.get_origin(one) is Annotated]


def test_every_field_of_a_study_is_documented():
    page = (ROOT / "docs" / "study.md").read_text()
    missing = [name for name in fields(StudySpec) if f"`{name}`" not in page]
    assert not missing


def test_the_table_of_knobs_is_fresh():
    effects = recorded_effects(ROOT / "docs" / "results")
    assert (ROOT / "docs" / "knobs.md").read_text() == knobs_page(effects)


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_number_of_knobs_is_that_of_the_catalogue(page):
    told = re.findall(r"(\d+) knobs", (ROOT / page).read_text())
    assert told == [str(len(CATALOGUE))]


def test_every_knob_has_a_case_in_the_benchmark():
    benchmark = (ROOT / "benchmarks" / "knobs.py").read_text()
    for name in CATALOGUE:
        assert f'"{name}": Case(' in benchmark


def given_values(path):
    """Return the names that get a value in the calls and mappings of a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            found |= {keyword.arg for keyword in node.keywords}
        if isinstance(node, ast.Dict):
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
    return found


def test_every_knob_gets_a_value_where_effects_are_tested():
    tests = ROOT / "tests"
    modules = [
        *(tests / "unit").glob("test_apply*.py"),
        *(tests / "gpu").glob("test_*.py"),
        tests / "unit" / "test_schedules.py",
        tests / "contract" / "test_parallelism.py",
    ]
    assert not {*CATALOGUE}.difference(*map(given_values, modules))


def test_exact_versions_are_within_the_supported_ranges():
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for text in [*project["dependencies"], *(line for extra in extras for line in extra)]:
        wanted = Requirement(text)
        if wanted.name == project["name"]:
            continue  # an extra that is part of another
        assert wanted.specifier.contains(pinned[wanted.name.lower()]), text


def marks(node):
    """Return the decorators of a class or a function, and the `pytestmark` of a module, as text."""
    if isinstance(node, ast.Module):
        found = [one for one in node.body if ast.unparse(one).startswith("pytestmark")]
    else:
        found = node.decorator_list
    return " ".join(map(ast.unparse, found))


def test_every_line_of_the_table_of_faults_has_a_sample():
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if "mark.sample" not in text:
            continue
        module = ast.parse(text)
        owners = [module, *(one for one in module.body if isinstance(one, ast.ClassDef))]
        for owner in owners:
            for test in (one for one in owner.body if isinstance(one, ast.FunctionDef)):
                if "mark.sample" in marks(test):
                    told = marks(module) + marks(owner) + marks(test)
                    found |= {int(line) for line in re.findall(r"mark\.fault\((\d+)\)", told)}
    assert found == {*FAULTS}
