"""The JSON Schema of study.yaml, by which editors complete it."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from autotune import config
from autotune.config import document
from search_spaces import CATALOGUE
from tests.support.study_files import (
    BARE,
    EXAMPLES,
    TEMPLATE,
    THOROUGH,
    studies,
)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config.json_schema()


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_is_one(schema):
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema


def test_the_schema_has_every_field_with_words_for_it(schema):
    assert set(schema["properties"]) == set(config.StudySpec.model_fields)
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
        {"launcher": "mpi"},
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
