"""Sections of launchers: how a study file and a record name them, and what each answers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.config import StudySpec, load
from autotune.errors import BadInput, NotHere, SpecError
from launchers import Resources, section_of
from launchers.sections import LocalSection, RaySection, Section, SlurmSection

STUDY: dict[str, Any] = {"name": "a", "workload": {"name": "gpt"}}


def spec(**changes: Any) -> StudySpec:
    return StudySpec.model_validate({**STUDY, **changes})


def mistakes(folder: Path, **changes: Any) -> list[str]:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    with pytest.raises(SpecError) as refused:
        load(path)
    return [problem.partition(": ")[2] for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("said", "section"),
    [
        ({}, LocalSection(kind="local")),
        ({"launcher": "local"}, LocalSection(kind="local")),
        ({"launcher": "ray"}, RaySection(kind="ray")),
        ({"launcher": {"kind": "ray", "address": "auto"}}, RaySection(kind="ray", address="auto")),
        ({"launcher": "slurm"}, SlurmSection(kind="slurm")),
    ],
)
def test_launcher_is_named_alone_or_with_its_fields(said: dict[str, Any], section: object) -> None:
    assert spec(**said).launcher == section


@pytest.mark.parametrize("all_fields", [True, False])
def test_stored_launcher_is_read_again_unchanged(all_fields: bool) -> None:
    first = spec(launcher={"kind": "ray", "address": "h:1"})
    stored = first.model_dump(mode="json", exclude_defaults=not all_fields)
    assert StudySpec.model_validate(stored).launcher == first.launcher


@pytest.mark.parametrize("given", ["mpi", 3, {"kind": "mpi"}, {"address": "h:1"}])
def test_unknown_launcher_is_refused_with_those_that_are_known(tmp_path: Path, given: Any) -> None:
    (told,) = mistakes(tmp_path, launcher=given, resources={"nodes": 2, "workers": 2})
    assert told.startswith("launcher: must be local or ray or slurm")


def test_field_of_another_launcher_is_refused(tmp_path: Path) -> None:
    (told,) = mistakes(tmp_path, launcher={"kind": "local", "address": "h:1"})
    assert told == "launcher.address: no such field; allowed: kind"


def test_several_nodes_need_a_launcher_that_spans_them(tmp_path: Path) -> None:
    nodes = {"nodes": 2, "workers": 2}
    (told,) = mistakes(tmp_path, resources=nodes)
    assert told.startswith("resources.nodes: is 2")
    assert spec(launcher="ray", resources=nodes).launcher.spans_nodes
    assert spec(launcher="slurm", resources=nodes).launcher.spans_nodes


@pytest.mark.parametrize(
    ("section", "place", "is_shared", "host"),
    [
        (section_of("local"), None, False, "127.0.0.1"),
        (section_of("ray"), None, False, "127.0.0.1"),
        (section_of("ray", address="auto"), None, True, ""),
        (section_of("ray", address="127.0.0.2:6379"), "ray:127.0.0.2:6379", True, "127.0.0.2"),
        (section_of("ray", address="ray://127.0.0.2:1"), "ray:ray://127.0.0.2:1", True, ""),
    ],
)
def test_each_launcher_answers_for_itself(
    section: Section, place: str | None, is_shared: bool, host: str
) -> None:
    assert (section.place, section.is_shared, section.meeting_host) == (place, is_shared, host)


def test_slurm_launcher_has_a_queue_of_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "alps")
    section = section_of("slurm")
    assert (section.place, section.is_shared, section.meeting_host) == ("slurm:alps", True, "")


def test_slurm_launcher_outside_an_allocation_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    section = section_of("slurm")
    with pytest.raises(BadInput, match=r"autotune submit .*`salloc`"):
        _ = section.place
    with pytest.raises(NotHere, match=r"autotune submit .*`salloc`"):
        section.open(Resources(1, 0, 1, 1), str(tmp_path))


def test_local_launcher_has_nothing_to_secure() -> None:
    assert section_of("local").security({}) is None
