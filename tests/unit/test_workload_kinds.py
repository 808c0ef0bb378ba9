"""Kinds of workload: which one a section is, how it is stored, and what each answers."""

import json
from typing import Any

import pytest

from autotune.config import StudySpec, remote_stores
from autotune.config.commands import CommandWorkload
from autotune.config.mistakes import Inconsistent
from autotune.config.scripts import ScriptWorkload
from autotune.config.workload_kinds import FactoryWorkload

STORED_BEFORE: dict[str, Any] = {
    **dict.fromkeys(("name", "script", "module", "command", "throughput", "launch", "samples")),
    "args": {},
    "flags": {},
    "global_flags": [],
    "python_options": [],
    "in_proportion": {},
    "keeps_global_batch": False,
    "may_write": False,
}
"""Section as earlier versions stored it: with the fields of all kinds."""
SAID: dict[str, dict[str, Any]] = {
    "factory": {"name": "gpt"},
    "script": {"script": "train.py", "args": ["--lr", "1"]},
    "module": {"module": "pkg.train"},
    "command": {"command": ["./bench", "{micro_batch}"]},
}
KINDS = {
    "factory": FactoryWorkload,
    "script": ScriptWorkload,
    "module": ScriptWorkload,
    "command": CommandWorkload,
}


def study(workload: dict[str, Any]) -> StudySpec:
    given = {"name": "a", "workload": workload, "baseline": {"micro_batch": 8}}
    space = {"micro_batch": [8]} if workload.get("command") else {"bucket_cap_mb": [5, 25]}
    return StudySpec.model_validate({**given, "search_space": space})


@pytest.mark.parametrize("kind", SAID)
def test_section_of_each_kind_is_parsed_to_its_type(kind: str) -> None:
    assert type(study(SAID[kind]).workload) is KINDS[kind]


@pytest.mark.parametrize("kind", SAID)
def test_stored_section_is_read_again_unchanged(kind: str) -> None:
    first = study(SAID[kind])
    stored = json.loads(json.dumps(first.model_dump(mode="json")))
    assert StudySpec.model_validate(stored) == first


@pytest.mark.parametrize("kind", SAID)
def test_section_stored_with_the_fields_of_all_kinds_is_read(kind: str) -> None:
    spec = study({**STORED_BEFORE, **SAID[kind]})
    assert spec.workload == study(SAID[kind]).workload


def test_field_of_another_kind_in_a_record_is_refused() -> None:
    with pytest.raises(Inconsistent) as refused:
        study({"name": "gpt", "samples": 2})
    assert list(refused.value.problems) == [("workload", "samples")]


@pytest.mark.parametrize(
    ("kind", "reusable", "observable", "discards_writes", "launcher"),
    [
        ("factory", True, True, False, None),
        ("script", False, True, True, "torchrun"),
        ("module", False, True, True, "torchrun"),
        ("command", False, False, True, None),
    ],
)
def test_each_kind_answers_for_itself(
    kind: str, reusable: bool, observable: bool, discards_writes: bool, launcher: str | None
) -> None:
    workload = study(SAID[kind]).workload
    assert workload.reusable is reusable
    assert workload.observable is observable
    assert workload.discards_writes is discards_writes
    assert workload.launched_by(2) == launcher


def test_script_that_may_write_keeps_what_it_writes() -> None:
    assert not study({**SAID["script"], "may_write": True}).workload.discards_writes


def test_knobs_outside_the_search_space_are_beyond_reach_of_a_script_alone() -> None:
    searched = ["bucket_cap_mb"]
    assert study(SAID["factory"]).workload.beyond_reach(searched) == []
    beyond = study(SAID["script"]).workload.beyond_reach(searched)
    assert "precision" in beyond
    assert "bucket_cap_mb" not in beyond


def test_knob_is_passed_by_flag_or_placeholder_or_from_outside() -> None:
    flags = {"micro_batch": "--batch"}
    script, command = study(SAID["script"]).workload, study(SAID["command"]).workload
    assert script.passed_by("micro_batch", flags) == "--batch"
    assert script.passed_by("bucket_cap_mb", flags) is None
    assert command.passed_by("tp", {}) == "{tp}"


def test_factory_needs_no_entry_in_best_yaml() -> None:
    spec = study(SAID["factory"])
    assert spec.workload.entry(spec.full_baseline(), spec.study_knobs, 2) is None


def test_remote_stores_of_a_job_are_named_without_passwords() -> None:
    args = ["--out=s3://bucket/run?sig=secret", "a,hdfs://me:secret@host/b", "https://host/c"]
    script = study({"script": "train.py", "args": args})
    assert remote_stores.named_by(script) == ["s3://bucket", "hdfs://host"]
    command = study({"command": ["./bench", "gs://a/b", "{micro_batch}"], "may_write": False})
    assert remote_stores.named_by(command.model_copy(update={"env": {"OUT": "az://c/d"}})) == [
        "gs://a",
        "az://c",
    ]
    assert "s3://bucket" in remote_stores.warning(remote_stores.named_by(script))
    assert remote_stores.warning(remote_stores.named_by(study({"script": "train.py"}))) == ""
