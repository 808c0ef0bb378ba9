"""What the documents promise is there."""

import ast
import re
import subprocess
import tomllib
import typing
from pathlib import Path
from typing import Annotated

import pytest
from packaging.requirements import Requirement

from autotune.analysis.policy import ANALYSIS
from autotune.analysis.verdict import Numerics
from autotune.config import StudySpec, load
from autotune.config.sections import MeasurementSpec
from autotune.measurement.estimate import Ratio
from autotune.measurement.policy import MEASUREMENT
from autotune.runs.policy import RUNS
from autotune.views.catalogue import knobs_page, recorded_effects
from autotune.views.figure_text import claim, loss_text
from search_spaces import CATALOGUE
from storage import Purpose
from tests.support.fault_table import FAULTS

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
STUDY_PAGE = ROOT / "docs" / "study.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_valid_study(path):
    assert load(path).name


def test_the_template_is_the_quickstart():
    template = ROOT / "autotune" / "study_template.yaml"
    assert template.read_text() == (ROOT / "examples" / "quickstart.yaml").read_text()


def test_the_example_job_trains_the_model_of_the_quickstart():
    job = ast.parse((ROOT / "examples" / "train.py").read_text())
    [size] = [
        ast.literal_eval(node.value)
        for node in job.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SIZE"
    ]
    assert size == load(ROOT / "examples" / "quickstart.yaml").workload.args


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


WRAPPED = [page for page in PAGES if page.parent in (ROOT, ROOT / "docs")]
WRAPPED = [page for page in WRAPPED if page.name not in ("CHANGELOG.md", "knobs.md")]


@pytest.mark.parametrize("page", WRAPPED, ids=lambda path: path.name)
def test_prose_is_wrapped_at_100_columns(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]
    assert not [line for line in lines if len(line) > 100]


def test_nothing_has_a_package_of_another_project_installed():
    """Neither name is ours on an index: anybody may register what we do not publish."""
    texts = [*PAGES, ROOT / "Makefile", *EXAMPLES]
    for package in ("autotune", "launchers", "search_spaces", "storage"):
        texts += [path for path in (ROOT / package).rglob("*") if path.suffix in {".py", ".txt"}]
    for path in texts:
        told = re.findall(r"pip install [^`\n]*", path.read_text())
        assert not [one for one in told if re.search(r"[ '\"](torch-)?autotune\b", one)], path


def test_no_message_names_a_page_that_the_wheel_does_not_have():
    templates = [*(ROOT / "autotune").glob("*.txt"), *(ROOT / "autotune").glob("*.yaml")]
    assert not [path for path in templates if "docs/" in path.read_text()]
    for package in ("autotune", "launchers", "search_spaces", "storage"):
        for path in (ROOT / package).rglob("*.py"):
            module = ast.parse(path.read_text())
            owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
            nodes = [*ast.walk(module)]
            docstrings = {ast.get_docstring(n, clean=False) for n in nodes if isinstance(n, owners)}
            texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
            told = [text for text in texts if isinstance(text, str) and text not in docstrings]
            assert not [text for text in told if re.search(r"docs/[\w-]+\.md", text)], path


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
    page = STUDY_PAGE.read_text()
    missing = [name for name in fields(StudySpec) if f"`{name}`" not in page]
    assert not missing


@pytest.mark.parametrize(
    ("name", "on_device"),
    [
        ("block_seconds", RUNS.block_on_device),
        ("block_seconds", RUNS.energy_block),
        ("min_steps", RUNS.steps_on_device),
        ("warmup", MEASUREMENT.steady_blocks),
    ],
)
def test_default_that_differs_on_devices_is_told_as_both(name, on_device):
    [row] = re.findall(rf"^\| `measurement.{name}` \| (.*)$", STUDY_PAGE.read_text(), re.MULTILINE)
    field = MeasurementSpec.model_fields[name]
    default, _ = row.split(" | ")
    for text in (default, str(field.description)):
        assert "on CUDA" in text
        assert {str(field.default), str(on_device)} <= set(re.findall(r"\d[\d.]*\d|\d", text))


def test_the_table_of_knobs_is_fresh():
    effects = recorded_effects(ROOT / "docs" / "results")
    assert (ROOT / "docs" / "knobs.md").read_text() == knobs_page(effects)


def shape(text):
    """Return a text without its figures, line breaks and quotes of code."""
    return " ".join(re.sub(r"\d[\d.,]*\d|\d", "N", text.replace("`", "")).split())


def test_answer_that_the_readme_shows_has_the_words_of_today():
    shown = shape((ROOT / "README.md").read_text())
    assert shape(f"{claim(Ratio(1.23, 1.14, 1.34))}, 10 rounds in turn") in shown
    agreed = Numerics(0.00001, 1.0, steps=32, share_of_progress=0.0001)
    assert shape(f"same The {loss_text(agreed)}") in shown


def test_every_purpose_of_an_attempt_is_documented():
    page = (ROOT / "docs" / "measurement-appendix.md").read_text()
    table = page.partition("| `purpose` | an attempt of |")[2].partition("\n\n")[0]
    told = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])
    ]
    assert sorted(told) == sorted(Purpose)


def test_prices_of_compilation_are_those_of_the_policy():
    page = (ROOT / "docs" / "search.md").read_text()
    rows = re.findall(r"^\| nothing, on a (\w+)[^|]*\| (.*) \|$", page, re.MULTILINE)
    told = {
        device: [float(one) for one in re.findall(r"(?<![\w-])\d+", text)] for device, text in rows
    }
    on_cuda = [
        ANALYSIS.compile_default,
        ANALYSIS.compile_graphs,
        ANALYSIS.compile_max,
        ANALYSIS.compile_float8,
    ]
    assert told == {"CUDA": on_cuda, "CPU": [ANALYSIS.compile_on_cpu]}


def test_value_that_is_tried_first_is_none_that_no_study_has():
    page = (ROOT / "docs" / "knobs.md").read_text().partition("## How each acts")[2]
    for name in ("micro_batch", "accumulation_steps", "log_interval"):
        [row] = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
        assert "| the largest of the study's values: " in row


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


def test_every_target_of_make_is_documented():
    [targets] = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    documented = re.findall(
        r"^make ([\w-]+) ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert {*targets.split()} == {*documented}


def test_make_clean_leaves_studies(tmp_path):
    for name in ("autotune.db", ".autotune/quickstart/daemon.log", "best.yaml", "build/site"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    makefile = str(ROOT / "Makefile")
    subprocess.run(["make", "--silent", "--file", makefile, "clean"], cwd=tmp_path, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {"autotune.db", ".autotune", "best.yaml"}


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
