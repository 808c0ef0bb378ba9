"""What a study file may say, and what becomes of it. tests/bad_studies has the mistakes."""

import json
import math
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autotune import spec
from autotune.errors import SpecError
from autotune.spec import document
from search_spaces import CATALOGUE, defaults, preset_names
from search_spaces.knob import Choice
from tests.steering import tiny_study, write_study

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*.yaml"))
TEMPLATE = ROOT / "autotune" / "study_template.yaml"
THOROUGH = settings(deadline=None, max_examples=200, derandomize=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


def load_text(folder: Path, text: str) -> spec.StudySpec:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return spec.load(path)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_text(folder, text)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


START = "name: a\nworkload: gpt\n"

# Studies without a mistake

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"])).map(
    lambda text: f"v{text}"  # `1e5` is a number to our reader, but not to the library that writes
)
SECONDS = st.floats(min_value=1e-3, max_value=1e9) | st.integers(1, 10**9)
FRACTIONS = st.floats(min_value=1e-6, max_value=1, exclude_max=True)


def knob_values(name: str) -> st.SearchStrategy[Any]:
    domain = CATALOGUE[name].domain
    if isinstance(domain, Choice):
        return st.sampled_from(domain.values)
    whole = st.integers(math.ceil(domain.low), int(domain.high))
    return whole if domain.integer else whole | st.floats(domain.low, domain.high)


def space_of(names: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: st.lists(knob_values(name), min_size=1, max_size=4, unique=True) for name in names}
    )


SPACES = st.sampled_from(preset_names()) | st.sets(
    st.sampled_from(sorted(CATALOGUE)), min_size=1
).flatmap(space_of)
BASELINES = st.fixed_dictionaries({}, optional={name: knob_values(name) for name in CATALOGUE})
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
WORKLOADS = st.sampled_from(["gpt", "transformer", "tiny:build", "my.package.train:_make"])
LAUNCHERS = st.fixed_dictionaries({}, optional={"launcher": st.just("local")}) | (
    st.fixed_dictionaries({"launcher": st.just("ray")}, optional={"ray_address": st.just("auto")})
)
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        "workers": st.integers(1, 65536) | st.just("auto"),
        "gpus_per_worker": st.none() | st.integers(0, 1) | st.floats(0, 1),
        "cpus_per_worker": st.integers(1, 4096),
        "memory_per_worker": st.none() | st.integers(2**20, 2**50) | st.just("4GiB"),
        "slots": st.none() | st.integers(1, 10_000),
    },
)
BUDGETS = st.fixed_dictionaries(
    {"trials": st.integers(1, 10**6)},
    optional={
        "wall_time": SECONDS | st.just("30m"),
        "device_hours": st.floats(min_value=1e-3, max_value=1e9),
    },
)
MEASUREMENTS = st.fixed_dictionaries(
    {},
    optional={
        "block_seconds": SECONDS,
        "min_steps": st.integers(1, 10_000),
        "warmup": SECONDS | st.just("20s"),
        "longest": SECONDS,
        "search_precision": FRACTIONS,
        "confirm_precision": FRACTIONS,
        "finalists": st.integers(1, 20),
        "rounds": st.integers(2, 50),
        "startup_deadline": SECONDS,
        "step_deadline": SECONDS,
    },
)


@st.composite
def studies(draw: st.DrawFn) -> dict[str, Any]:
    """A study file's content without a mistake."""
    study = tiny_study(
        name=draw(NAMES),
        workload=draw(
            WORKLOADS
            | st.fixed_dictionaries(
                {"name": WORKLOADS},
                optional={"args": st.dictionaries(NAMES, JSON_VALUES, max_size=3)},
            )
        ),
        resources=draw(RESOURCES),
        search_space=draw(SPACES),
        baseline=draw(BASELINES),
        budget=draw(BUDGETS),
        measurement=draw(MEASUREMENTS),
        sampler=draw(st.sampled_from(["model", "tpe", "gp", "random", "grid"])),
        env=draw(st.dictionaries(NAMES, WORDS, max_size=3)),
        seed=draw(st.integers(0, 2**31 - 1)),
        export=draw(WORDS),
        **draw(LAUNCHERS),
    )
    if draw(st.booleans()):
        workers = draw(st.integers(1, 64))
        today = {"micro_batch": 8, "accumulation_steps": 1, **study["baseline"]}
        study["resources"]["workers"] = workers
        study["objective"] = {
            "metric": draw(st.sampled_from(["samples_per_second", "tokens_per_second"])),
            "global_batch": today["micro_batch"] * today["accumulation_steps"] * workers,
        }
    return json.loads(json.dumps(study))  # no list twice: YAML would write it as an alias


def as_json(study: Any) -> str:
    return json.dumps(study, indent=1, ensure_ascii=False)


def as_yaml(study: Any) -> str:
    """Strings in quotes: PyYAML leaves them off where YAML 1.1 would not see a number but 1.2 does."""
    return yaml.dump(study, Dumper=_Quoting, allow_unicode=True)


class _Quoting(yaml.SafeDumper):
    pass


_Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def exact(value: Any) -> str:
    """Comparable without mercy: True == 1 == 1.0 in Python, but not to a trainer."""
    return json.dumps(value, sort_keys=True)


@THOROUGH
@given(studies())
def test_a_study_survives_file_and_storage(folder, study):
    loaded = load_text(folder, as_yaml(study))
    stored = json.loads(json.dumps(loaded.model_dump(mode="json", exclude={"storage"})))
    again = spec.StudySpec.model_validate(stored)
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
        again = spec.StudySpec.model_validate(json.loads(json.dumps(stored)))
        assert exact(again.workload.args) == exact(loaded.workload.args)


def test_the_tiny_study_of_the_tests_is_a_study(tmp_path):
    loaded = spec.load(write_study(tmp_path))
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
    assert spec.load(path).name


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


def test_many_distinct_values_are_checked_in_time(folder):
    values = [*range(1, document.MAX_NODES - 100)]
    # 200 million comparisons if every value were compared with all before it
    assert load_text(folder, f"{START}search_space: {{micro_batch: {values}}}").values()


# Units


def memory(folder: Path, text: str) -> int | None:
    return load_text(
        folder, f"{START}resources: {{memory_per_worker: {text}}}\n"
    ).resources.memory_per_worker


def wall_time(folder: Path, text: str) -> float | None:
    return load_text(folder, f"{START}budget: {{wall_time: {text}}}\n").budget.wall_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("90", 90),
        ("0.5", 0.5),
        ("30m", 1800),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1d", 86400),
        ("90 s", 90),
        ("' 90s '", 90),
        (".5s", 0.5),
        ("5.s", 5),
    ],
)
def test_seconds(folder, text, seconds):
    assert wall_time(folder, text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * 2**30),
        ("4 GiB", 4 * 2**30),
        ("1024KiB", 2**20),
        ("512MiB", 2**29),
        ("2.5GiB", 5 * 2**29),
        ("4GB", 4 * 10**9),
        ("1048576", 2**20),
        ("1048.576KB", 2**20),
        ("1048577KB", 1048577000),
    ],
)
def test_bytes(folder, text, size):
    assert memory(folder, text) == size


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTE_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@THOROUGH
@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_a_number_of_units_of_time(folder, number, unit, gap):
    expected = number * UNITS[unit]
    assume(expected <= 10**9)
    assert wall_time(folder, f"{number}{gap}{unit}") == expected


@THOROUGH
@given(st.integers(1, 10**6), st.sampled_from(sorted(BYTE_UNITS)), st.sampled_from(["", " "]))
def test_a_number_of_units_of_memory(folder, number, unit, gap):
    expected = number * BYTE_UNITS[unit]
    assume(expected >= 2**20)
    assert memory(folder, f"{number}{gap}{unit}") == expected


@THOROUGH
@given(
    st.text(st.sampled_from("0123456789..eE+- smhdKMGiB\n"), max_size=12)
    | st.from_regex(r"[0-9.]{1,5}\s?([smhd]|[KMG]i?B)", fullmatch=True)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20)
)
def test_any_quantity_is_a_number_or_one_problem_that_names_the_units(folder, text):
    for field, units in (("budget.wall_time", "90s"), ("resources.memory_per_worker", "GiB")):
        section, name = field.split(".")
        try:
            loaded = load_text(folder, as_json({**BARE, section: {name: text}}))
        except SpecError as error:
            (problem,) = error.problems
            if "not valid YAML" not in problem:
                told = problem.partition(f": {field}: ")[2]
                assert any(word in told for word in (units, "greater", "less")), problem
        else:
            value = getattr(getattr(loaded, section), name)
            assert 0 < value <= 2**60
            assert math.isfinite(value)


BARE = {"name": "a", "workload": "gpt"}

# Anything at all


def valid_text() -> str:
    return yaml.safe_dump(tiny_study(objective={"global_batch": 4}, env={"A": "x"}, seed=1))


TOKENS = [
    *["name:", "workload:", "search_space:", "baseline:", "  micro_batch:", "  precision:", " - "],
    *["resources:", "  workers:", "budget:", "  wall_time:", "measurement:", "env:", "[", "]"],
    *[
        "  memory_per_worker:",
        "objective:",
        "  global_batch:",
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
        loaded = spec.load(path)
    except SpecError as error:
        assert error.problems
        assert len(set(error.problems)) == len(error.problems)
        for problem in error.problems:
            assert problem.startswith(str(path)), problem
            assert problem.isprintable(), problem
            assert len(problem) < 500 + len(str(path)), problem
    else:
        stored = json.loads(json.dumps(loaded.model_dump(mode="json", exclude={"storage"})))
        assert spec.StudySpec.model_validate(stored) == loaded


@ANYTHING
@given(st.binary(max_size=400))
def test_any_bytes_are_a_study_or_a_list_of_problems(folder, content):
    path = folder / "bytes.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError):  # a study by chance: not in the lifetime of the universe
        spec.load(path)


# Messages


def test_several_mistakes_are_told_in_the_order_of_the_file(folder):
    told = problems(
        folder,
        "name: a\nseed: -1\nsede: 1\nworkload: gpt\nresources: {slots: 0}\nsampler: x\n",
    )
    assert [problem.split(":")[1] for problem in told] == ["2", "3", "5", "6"]


def test_mistakes_between_fields_are_told_beside_those_within_one(folder):
    told = problems(folder, f"{START}seed: -1\nsearch_space: quikc\nray_address: auto\n")
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
    text = f"{START}resources: {{workers: {workers}}}\nobjective:\n  global_batch: {fixed}\n"
    (problem,) = problems(folder, text)
    assert problem.startswith("study.yaml:5: objective.global_batch: ")
    assert told in problem


def test_a_baseline_with_another_global_batch(folder):
    text = START + "resources: {workers: 4}\nobjective: {global_batch: 64}\nbaseline:\n"
    (problem,) = problems(folder, text + "  micro_batch: 4\n")
    assert problem.startswith("study.yaml:5: baseline: ")
    assert "16" in problem
    assert "64" in problem
    assert load_text(folder, text + "  micro_batch: 8\n  accumulation_steps: 2\n")


def test_a_global_batch_is_not_judged_before_the_ranks_are_known(folder):
    loaded = load_text(folder, START + "resources: {workers: auto}\nobjective: {global_batch: 7}\n")
    assert loaded.objective.global_batch == 7


# JSON Schema


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return spec.json_schema()


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_is_one(schema):
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema


def test_the_schema_has_every_field_with_words_for_it(schema):
    assert set(schema["properties"]) == set(spec.StudySpec.model_fields)
    described = {
        **schema["properties"]["search_space"]["anyOf"][1]["properties"],
        **schema["properties"]["baseline"]["properties"],
    }
    assert set(described) == set(CATALOGUE)
    assert all(knob["description"] for knob in described.values())


@pytest.mark.parametrize("path", [*EXAMPLES, TEMPLATE], ids=lambda path: path.name)
def test_the_schema_takes_the_examples(validator, path):
    validator.validate(document.read(path).data)


@THOROUGH
@given(study=studies())
def test_the_schema_takes_every_study(validator, study):
    validator.validate(study)


SECTIONS = ["resources", "objective", "budget", "measurement", "search_space", "baseline"]


@pytest.mark.parametrize("section", ["", "workload", *SECTIONS])
def test_the_schema_refuses_unknown_fields(validator, section):
    study = {"name": "a", "workload": {"name": "gpt"}, "search_space": {"micro_batch": [1]}}
    validator.validate(study)
    target = study.setdefault(section, {}) if section else study
    target["nonsense"] = 1
    assert not validator.is_valid(study)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a/b"},
        {"name": None},
        {"workload": 3},
        {"search_space": "quikc"},
        {"search_space": None},
        {"resources": None},
        {"resources": {"workers": 0}},
        {"resources": {"workers": "some"}},
        {"resources": {"gpus_per_worker": 2}},
        {"resources": {"memory_per_worker": 4}},
        {"resources": {"memory_per_worker": "lots"}},
        {"budget": {"wall_time": -1}},
        {"budget": {"wall_time": "tomorrow"}},
        {"budget": {"trials": 1.5}},
        {"measurement": {"warmup": 0}},
        {"measurement": {"rounds": 1}},
        {"sampler": "bayes"},
        {"launcher": "slurm"},
        {"env": {"A": 1}},
        {"seed": -1},
    ],
    ids=json.dumps,
)
def test_the_schema_refuses_what_a_study_file_may_not_say(validator, changes):
    assert not validator.is_valid({**BARE, **changes})


def test_the_schema_needs_name_and_workload(validator):
    validator.validate(BARE)
    assert not validator.is_valid({"name": "a"})
    assert not validator.is_valid({"workload": "gpt"})


def test_shuffled_fields_make_the_same_study(folder):
    study = tiny_study(env={"A": "x"}, seed=3)
    names = list(study)
    random.Random(1).shuffle(names)
    shuffled = {name: study[name] for name in names}
    assert load_text(folder, yaml.safe_dump(shuffled, sort_keys=False)) == load_text(
        folder, yaml.safe_dump(study, sort_keys=False)
    )
