"""What a study file may say, and what becomes of it. tests/bad_studies has the mistakes."""

import json
import random
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import config
from autotune.config import document
from autotune.errors import SpecError
from search_spaces import CATALOGUE, defaults
from tests.support.steering import tiny_study, write_study
from tests.support.study_files import (
    EXAMPLES,
    JSON_VALUES,
    START,
    TEMPLATE,
    THOROUGH,
    as_json,
    as_yaml,
    exact,
    load_text,
    problems,
    studies,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@THOROUGH
@given(studies())
@pytest.mark.long
def test_a_study_survives_file_and_storage(folder, study):
    loaded = load_text(folder, as_yaml(study))
    stored = json.loads(json.dumps(loaded.model_dump(mode="json", exclude={"storage"})))
    again = config.StudySpec.model_validate(stored)
    assert again == loaded
    assert exact(stored) == exact(again.model_dump(mode="json", exclude={"storage"}))


@THOROUGH
@given(studies())
def test_what_the_file_says_is_what_is_loaded(folder, study):
    loaded = load_text(folder, as_yaml(study))
    workload = study["workload"]
    assert loaded.name == study["name"]
    assert loaded.workload.name == (workload if isinstance(workload, str) else workload["name"])
    if isinstance(workload, dict):
        assert exact(loaded.workload.args) == exact(workload.get("args", {}))
    if isinstance(study["search_space"], dict):
        assert exact(loaded.values()) == exact(study["search_space"])
    assert exact(loaded.full_baseline()) == exact({**defaults(), **study["baseline"]})
    assert loaded.env == study["env"]
    assert loaded.export == study["export"]


@THOROUGH
@given(studies())
@pytest.mark.long
def test_json_is_yaml_too(folder, study):
    assert load_text(folder, as_json(study)) == load_text(folder, as_yaml(study))


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "[1, {a: .nan}]"])
def test_infinite_arguments_are_refused_or_reach_the_workload(folder, value):
    text = f"name: a\nworkload:\n  name: gpt\n  args:\n    x: {value}\n"
    try:
        loaded = load_text(folder, text)
    except SpecError as error:
        (problem,) = error.problems
        assert ":4: workload.args" in problem or ":5: workload.args" in problem
    else:
        stored = loaded.model_dump(mode="json", exclude={"storage"})
        again = config.StudySpec.model_validate(json.loads(json.dumps(stored)))
        assert exact(again.workload.args) == exact(loaded.workload.args)


def test_the_tiny_study_of_the_tests_is_a_study(tmp_path):
    loaded = config.load(write_study(tmp_path))
    assert loaded.workload.factory == "tiny:build"
    assert loaded.values() == {"micro_batch": [1, 2, 4, 8], "log_interval": [1, 10]}
    assert loaded.full_baseline()["micro_batch"] == 2
    assert loaded.full_baseline()["log_interval"] == CATALOGUE["log_interval"].default


def test_name_and_workload_are_enough(folder):
    loaded = load_text(folder, START)
    assert loaded.workload.factory == "autotune.workloads.gpt:build"
    assert loaded.search_space == "quick"
    assert loaded.storage is None


@pytest.mark.parametrize("path", [*EXAMPLES, TEMPLATE], ids=lambda path: path.name)
def test_examples_and_template_are_studies(path):
    assert config.load(path).name


def test_one_value_needs_no_list(folder):
    text = START + "search_space:\n  micro_batch: 8\n  gradient_as_bucket_view: true\n"
    loaded = load_text(folder, text)
    assert loaded.values() == {"micro_batch": [8], "gradient_as_bucket_view": [True]}
    assert loaded.values()["gradient_as_bucket_view"][0] is True


def test_a_study_does_not_change(folder):
    loaded = load_text(folder, START)
    with pytest.raises(ValueError, match="frozen"):
        loaded.seed = 1
    loaded.values()["micro_batch"].append(3)
    assert 3 not in loaded.values()["micro_batch"]


@pytest.mark.long
def test_many_distinct_values_are_checked_in_time(folder):
    """Of CPU; if every value were compared with all before it, four times as many would take sixteen
    times as long."""

    def seconds(count: int) -> float:
        values = [*range(1, count)]
        text = f"{START}search_space: {{micro_batch: {values}}}"
        began = time.process_time()
        assert load_text(folder, text).values()
        return time.process_time() - began

    many = document.MAX_NODES - 100
    few = min(seconds(many // 4) for _ in range(3))
    assert min(seconds(many) for _ in range(2)) < 9 * few


# Anything at all


def valid_text() -> str:
    return yaml.safe_dump(tiny_study(objective={"global_batch_size": 4}, env={"A": "x"}, seed=1))


TOKENS = [
    *["name:", "workload:", "search_space:", "baseline:", "  micro_batch:", "  precision:", " - "],
    *["resources:", "  workers:", "budget:", "  wall_time:", "measurement:", "env:", "[", "]"],
    *[
        "  memory_per_worker:",
        "objective:",
        "  global_batch_size:",
        "{",
        "}",
        ",",
        "~",
        "!x",
        "&a",
        "*a",
    ],
    *[
        " 1",
        " 0",
        " -1",
        " 1e-4",
        " 9e999",
        " .nan",
        " .inf",
        " no",
        " true",
        " ''",
        " fp8",
        " gpt",
    ],
    *[" 0x" + "f" * 6000, " " + "9" * 400 + "GiB", " ..s", ' "\\UFFFFFFFF"', ' "\\0"', "\x00"],
    *["\n", "\n", "\n", "\n", "\n  ", "\t", "<<:", "? ", "---\n", "\x85", "%", "'", '"', "\\"],
]


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A good study file in which pieces were replaced."""
    text = valid_text()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 8))
        text = text[:start] + draw(st.sampled_from(TOKENS)) + text[end:]
    return text


@st.composite
def revalued(draw: st.DrawFn) -> str:
    """A good study file in which one value is something else altogether."""
    study = yaml.safe_load(valid_text())
    section = draw(st.sampled_from(sorted(study)))
    value = draw(JSON_VALUES | st.floats() | st.integers() | st.text(max_size=20))
    if isinstance(study[section], dict) and draw(st.booleans()):
        study[section][draw(st.sampled_from(sorted(study[section])) | st.text(max_size=9))] = value
    else:
        study[section] = value
    return yaml.safe_dump(study)


SOUP = st.lists(st.sampled_from(TOKENS), max_size=30).map("".join)
ANYTHING = settings(THOROUGH, max_examples=500)


@ANYTHING
@given(st.one_of(SOUP, damaged(), revalued()).map(lambda t: t.encode("utf-8", "replace")))
def test_any_file_is_a_study_or_a_list_of_readable_problems(folder, content):
    path = folder / "any.yaml"
    path.write_bytes(content)
    try:
        loaded = config.load(path)
    except SpecError as error:
        assert error.problems
        assert len(set(error.problems)) == len(error.problems)
        for problem in error.problems:
            assert problem.startswith(str(path)), problem
            assert problem.isprintable(), problem
            assert len(problem) < 500 + len(str(path)), problem
    else:
        stored = json.loads(json.dumps(loaded.model_dump(mode="json", exclude={"storage"})))
        assert config.StudySpec.model_validate(stored) == loaded


@ANYTHING
@given(st.binary(max_size=400))
def test_any_bytes_are_a_study_or_a_list_of_problems(folder, content):
    path = folder / "bytes.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError):  # a study by chance: not in the lifetime of the universe
        config.load(path)


# Messages


def test_several_mistakes_are_told_in_the_order_of_the_file(folder):
    told = problems(
        folder,
        "name: a\nseed: -1\nsede: 1\nworkload: gpt\nresources: {max_concurrent_trials: 0}\nsampler: x\n",
    )
    assert [problem.split(":")[1] for problem in told] == ["2", "3", "5", "6"]


@pytest.mark.parametrize(("section", "is_required"), [("workload", True), ("budget", False)])
def test_only_a_section_that_is_not_required_is_to_be_taken_out(folder, section, is_required):
    start = "name: a\n" if is_required else START
    [told] = problems(folder, f"{start}{section}:\n")
    assert "must be a mapping, got null" in told
    assert ("take it out" in told) is not is_required


def test_mistakes_between_fields_are_told_beside_those_within_one(folder):
    told = problems(folder, f"{START}seed: -1\nsearch_space: quikc\nbaseline: {{depth: 2}}\n")
    assert len(told) == 3, told


@pytest.mark.parametrize(
    ("fixed", "workers", "told"),
    [
        (1, 2, "use at least 2"),
        (3, 2, "use 2 or 4"),
        (63, 64, "use at least 64"),
        (100, 64, "use 64 or 128"),
    ],
)
def test_a_global_batch_that_does_not_fit_the_ranks(folder, fixed, workers, told):
    text = f"{START}resources: {{workers: {workers}}}\nobjective:\n  global_batch_size: {fixed}\n"
    (problem,) = problems(folder, text)
    assert problem.startswith("study.yaml:5: objective.global_batch_size: ")
    assert told in problem


def test_a_baseline_with_another_global_batch(folder):
    text = START + "resources: {workers: 4}\nobjective: {global_batch_size: 64}\nbaseline:\n"
    (problem,) = problems(folder, text + "  micro_batch: 4\n")
    assert problem.startswith("study.yaml:5: baseline: ")
    assert "16" in problem
    assert "64" in problem
    assert load_text(folder, text + "  micro_batch: 8\n  accumulation_steps: 2\n")


def test_the_global_batch_is_the_baselines_unless_the_study_says_so(folder):
    baseline = "resources: {workers: 4}\nbaseline: {micro_batch: 8, accumulation_steps: 2}\n"
    said = {
        "": 64,
        "objective: {global_batch_size: fixed}\n": 64,
        "objective: {global_batch_size: free}\n": None,
    }
    for text, samples in said.items():
        assert load_text(folder, START + baseline + text).global_batch_size(4) == samples
    assert load_text(folder, START).global_batch_size(3) == 24, (
        "however many ranks there turn out to be"
    )


@pytest.mark.parametrize("given", ["fre", "0", "1.5", "true", "[64]", ""])
def test_no_global_batch(folder, given):
    (problem,) = problems(folder, f"{START}objective: {{global_batch_size: {given}}}\n")
    assert (
        "objective.global_batch_size: must be fixed, free or a whole number from 1, got" in problem
    )


def test_a_global_batch_is_not_judged_before_the_ranks_are_known(folder):
    loaded = load_text(
        folder, START + "resources: {workers: auto}\nobjective: {global_batch_size: 7}\n"
    )
    assert loaded.objective.global_batch_size == 7


def test_shuffled_fields_make_the_same_study(folder):
    study = tiny_study(env={"A": "x"}, seed=3)
    names = list(study)
    random.Random(1).shuffle(names)
    shuffled = {name: study[name] for name in names}
    assert load_text(folder, yaml.safe_dump(shuffled, sort_keys=False)) == load_text(
        folder, yaml.safe_dump(study, sort_keys=False)
    )


def test_paths_of_the_study_in_a_home_are_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "study.yaml"
    path.write_text("name: a\nworkload: gpt\nfolder: ~/code\nexport: ~/best.yaml\n")
    spec = config.load(path)
    assert spec.folder == str(tmp_path.resolve() / "code")
    assert spec.export == str(tmp_path / "best.yaml")
