"""best.yaml: written whole or not at all, read back as it was, without pulling in the tuner."""

import math
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune
from autotune.analysis.verdict import Verdict
from autotune.export import best, writing
from autotune.export.formats import FORMATS
from search_spaces import defaults
from tests.support.waiting import wait_for

THOROUGH = settings(max_examples=100)

VERDICT = {
    "kind": "better",
    "study": "tiny",
    "trial": 7,
    "knobs": {**defaults(), "micro_batch": 32, "precision": "bf16"},
    "throughput": {"value": 1234.56789, "low": 1200.0, "high": 1268.123456},
    "speedup": {"value": 1.3123456789, "low": 1.25, "high": 1.37},
    "rounds": 5,
}


TEXT = "1.31x your configuration: micro_batch=32 reaches 1,234 samples/s."


def content(text: str = TEXT, **changes: Any) -> dict[str, Any]:
    return writing.document(
        verdict=Verdict.from_dict({**VERDICT, **changes}),
        text=text,
        unit="samples/s",
        world_size=2,
        environment={"cpu": "Some CPU", "devices": [], "torch": "2.6.0"},
        created="2031-02-03T04:05:06+00:00",
    )


def written(folder: Path, document: Mapping[str, Any]) -> best.BestConfig:
    writing.write(folder / "best.yaml", document)
    return autotune.load(folder / "best.yaml")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("best")


# What is written is what is read


def test_what_is_written_is_read_back(folder):
    found = written(folder, content())
    assert found.knobs == VERDICT["knobs"]
    assert found.world_size == 2
    assert found.throughput == {
        "value": 1234.57,
        "low": 1200.0,
        "high": 1268.12,
        "unit": "samples/s",
    }
    assert found.speedup == {"value": 1.31235, "low": 1.25, "high": 1.37}
    assert found.provenance == {
        "study": "tiny",
        "trial": 7,
        "verdict": TEXT,
        "rounds": 5,
        "created": "2031-02-03T04:05:06+00:00",
        "environment": {"cpu": "Some CPU", "devices": [], "torch": "2.6.0"},
    }


def test_without_a_baseline_there_is_no_speedup(folder):
    assert written(folder, content(speedup=None)).speedup is None


def test_a_kept_baseline_has_no_speedup(folder):
    kept = content(baseline_knobs=VERDICT["knobs"], speedup={"value": 1.0, "low": 1.0, "high": 1.0})
    assert "speedup" not in kept
    assert written(folder, kept).speedup is None


def test_names_that_differ_from_defaults_are_said_to():
    lines = writing.as_text(content() | {"unusual": ["micro_batch"]}).splitlines()
    place = lines.index("unusual:")
    assert "differ from the defaults" in lines[place - 1]


def test_switches_and_numbers_keep_their_kind(folder):
    knobs = {**defaults(), "gradient_as_bucket_view": True, "bucket_cap_mb": 0.5}
    found = written(folder, content(knobs=knobs))
    assert found["gradient_as_bucket_view"] is True
    assert type(found["micro_batch"]) is int
    assert type(found["bucket_cap_mb"]) is float
    assert found["precision"] == "fp32"


# PyYAML loses U+0085 and the like, which no name of a device or a package has.
VISIBLE = st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"])
TEXTS = st.text(VISIBLE, max_size=30) | st.sampled_from(
    ["no", "on", "true", "null", "~", "1e5", "0x10", "2031-01-01", "1:30", "a: b", "# x", "'", "-"]
)
RATES = st.floats(min_value=1e-6, max_value=1e12)


@THOROUGH
@given(study=TEXTS, text=TEXTS, rate=RATES, environment=st.dictionaries(TEXTS, TEXTS))
def test_any_text_and_any_rate_survive(folder, study, text, rate, environment):
    document = content(text, throughput={"value": rate, "low": rate, "high": rate})
    document["provenance"].update(study=study, environment=environment)
    found = written(folder, document)
    assert found.provenance["study"] == study
    assert found.provenance["verdict"] == text
    assert found.provenance["environment"] == environment
    assert math.isclose(found.throughput["value"], rate, rel_tol=1e-5)


def test_the_file_says_how_to_use_it_and_is_plain_yaml(folder):
    written(folder, content())
    text = (folder / "best.yaml").read_text("utf-8")
    assert text.startswith("#")
    assert "autotune.load" in text.splitlines()[0]
    assert yaml.safe_load(text) == content()


# Writing


def test_writing_again_replaces_the_old(folder):
    written(folder, content())
    found = written(folder, content(trial=8))
    assert found.provenance["trial"] == 8
    assert names(folder) == ["best.yaml"]


def test_the_file_is_as_readable_as_any_other(tmp_path):
    kept = os.umask(0o027)
    try:
        writing.write(tmp_path / "best.yaml", content())
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(kept)
    assert stat.S_IMODE((tmp_path / "best.yaml").stat().st_mode) == 0o640


def test_folder_with_the_note_of_an_export_is_private(tmp_path):
    writing.note(tmp_path / "tuned.sh", "export A=1\n")
    assert stat.S_IMODE((tmp_path / ".autotune").stat().st_mode) == 0o700


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    writing.write(tmp_path / "best.yaml", content())
    before = (tmp_path / "best.yaml").read_bytes()
    with pytest.raises(yaml.YAMLError):
        writing.write(tmp_path / "best.yaml", {**content(), "knobs": {"micro_batch": object()}})
    assert (tmp_path / "best.yaml").read_bytes() == before
    assert names(tmp_path) == ["best.yaml"]


def test_a_folder_in_the_way_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "best.yaml").mkdir()
    with pytest.raises(OSError):
        writing.write(tmp_path / "best.yaml", content())
    assert names(tmp_path) == ["best.yaml"]


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(OSError):
        writing.write(tmp_path / "missing" / "best.yaml", content())
    assert names(tmp_path) == []


def test_a_link_stays_and_what_it_leads_to_is_written_with_its_mode(tmp_path):
    (tmp_path / "shared").mkdir()
    shared, link = tmp_path / "shared" / "of-all.yaml", tmp_path / "best.yaml"
    writing.write(shared, content())
    link.symlink_to(shared)
    for mode in (0o600, 0o440):
        shared.chmod(mode)
        writing.write(link, content(str(mode)))
        assert link.is_symlink()
        assert autotune.load(shared).provenance["verdict"] == str(mode)
        assert stat.S_IMODE(shared.stat().st_mode) == mode
    assert names(tmp_path / "shared") == ["of-all.yaml"]


def test_a_settings_file_with_a_provenance_is_not_taken_for_ours(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 3e-4\nprovenance: data set of May\n")
    assert "no best.yaml of autotune's" in writing.not_ours(path)
    writing.write(path, content())
    assert writing.not_ours(path) == ""


def test_a_reader_never_sees_a_part_of_a_file(tmp_path):
    path = tmp_path / "best.yaml"
    long = content()
    long["provenance"]["environment"] = {f"package{i}": "1.0" for i in range(300)}
    writing.write(path, long)
    seen: list[int] = []
    failed: list[Exception] = []
    ended = threading.Event()

    def read() -> None:
        try:
            while not ended.is_set():
                seen.append(len(autotune.load(path).provenance["environment"]))
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: seen or failed, "the file is read")
    for number in range(20):
        writing.write(path, long if number % 2 else content())
    ended.set()
    reader.join()
    assert failed == []
    assert set(seen) <= {3, 300}


# Reading

WHOLE = {
    "format": 3,
    "knobs": {"micro_batch": 8},
    "world_size": 2,
    "throughput": {"value": 1.0},
    "speedup": None,
    "provenance": {},
    "unusual": [],
}


def refusal(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError) as caught:
        autotune.load(path)
    assert type(caught.value) is ValueError
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_least_that_a_file_has(tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(WHOLE))
    assert dict(autotune.load(path)) == {"micro_batch": 8}
    assert dict(autotune.load(str(path))) == {"micro_batch": 8}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "- knobs",
        "{}",
        "knobs: 3",
        "knobs: [micro_batch]",
        "name: tiny\nworkload: gpt\n",
        "format: 3\n",
        "format: 3\nknobs:\n",
        "a: b: c",
        "{",
        "knobs: !!python/object/apply:os.system ['touch bad']",
        "knobs: !secret {}",
        "? [a]\n: 1",
        "created: 2031-02-30",
        "[" * 3000,
        b"\xff\xfe\x00",
        b"\x00" * 100,
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_what_is_no_best_yaml_is_refused_by_name(tmp_path, text):
    assert "not a best.yaml" in refusal(tmp_path / "best.yaml", text)


@pytest.mark.parametrize("version", [0, 2, 99, None, "3", [3], True])
def test_another_format_is_refused_with_advice(tmp_path, version):
    told = refusal(tmp_path / "best.yaml", yaml.safe_dump({**WHOLE, "format": version}))
    assert "format" in told
    assert "export it again" in told


@pytest.mark.parametrize("missing", ["world_size", "throughput", "provenance"])
def test_a_file_with_a_part_missing_is_refused(tmp_path, missing):
    document = {name: value for name, value in WHOLE.items() if name != missing}
    assert missing in refusal(tmp_path / "best.yaml", yaml.safe_dump(document))


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("defaults:", "`defaults` must be a mapping, got None"),
        ("defaults: [a]", "`defaults` must be a mapping"),
        ("unusual:", "`unusual` must be a list, got None"),
        ("own: 3", "`own` must be a list, got 3"),
        ("knobs: {1: 2, a: 3}", "names of knobs, got 1"),
        ("knobs: {on: 2}", "names of knobs, got True"),
        ("provenance:", "`provenance` must be a mapping"),
        ("world_size: '2'", "`world_size` must be a whole number, got '2'"),
        ("world_size: true", "`world_size` must be a whole number"),
        ("script: train.py", "`script` must be a mapping, got 'train.py'"),
        ("provisional: 'false'", "`provisional` must be true or false, got 'false'"),
        ("throughput: 3.0", "`throughput` must be a mapping"),
    ],
)
def test_part_of_another_type_is_named(tmp_path, part, told):
    document = {**WHOLE, "format": 3, **yaml.safe_load(part)}
    assert told in refusal(tmp_path / "best.yaml", yaml.safe_dump(document))


def test_a_file_that_cannot_be_read_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"best\.yaml"):
        autotune.load(tmp_path / "best.yaml")
    with pytest.raises(IsADirectoryError):
        autotune.load(tmp_path)


OF_A_SCRIPT = {
    "target": "train.py",
    "is_module": False,
    "flags": {"micro_batch": "--bs"},
    "turned": {"micro_batch": 32},
    "changes": [],
}


def of_a_script(**changes: Any) -> dict[str, Any]:
    knobs = {"micro_batch": 32, "bucket_cap_mb": 0.5, "precision": "bf16", "channels_last": True}
    parts = {"own": sorted(knobs), "script": {**OF_A_SCRIPT, **changes}}
    return writing.of_this_version(content(knobs=knobs) | parts)


def test_knobs_of_a_script_are_read_as_they_were_written(folder):
    config = written(folder, of_a_script())
    assert config["micro_batch"] == 32
    again = written(folder, writing.document_of(config))
    (folder / "best.json").write_text(FORMATS["json"](again).text)
    for found in (again, best.read(folder / "best.json")):
        assert (found.knobs, found.script) == (config.knobs, config.script)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  micro_batch: 32\n  bucket", "  micro_batch: 16\n  bucket"),
        ("knobs:\n", "knobs:\n  num_workers: 2\n"),
        ("  channels_last: true\n", ""),
        ("  bucket_cap_mb: 0.5\n", "  bucket_cap_mb: 2026-01-01\n"),
        ("  bucket_cap_mb: 0.5\n", "  bucket_cap_mb: {1: a, b: c}\n"),
        ("  bucket_cap_mb: 0.5\n", "  bucket_cap_mb: &a [*a]\n"),
    ],
)
def test_knobs_of_a_script_that_were_edited_are_refused(tmp_path, before, after):
    path = tmp_path / "best.yaml"
    writing.write(path, of_a_script())
    text = path.read_text()
    assert text.count(before) == 1
    assert "`knobs` has been edited" in refusal(path, text.replace(before, after))
    assert writing.is_of(path, "tiny")
    assert not writing.is_of(path, "other")
    path.write_text("".join(line for line in path.open() if best.DIGEST not in line))
    assert best.read(path).script == OF_A_SCRIPT


@pytest.mark.parametrize("arguments", [["--lr", "1"], None, {"--lr": 1}])
def test_arguments_of_a_script_that_are_no_texts_are_refused(tmp_path, arguments):
    text = yaml.safe_dump(of_a_script(arguments=arguments))
    told = refusal(tmp_path / "best.yaml", text)
    assert "`script.arguments` must be a mapping of texts" in told


def test_knobs_of_a_workload_or_a_command_reach_it_by_themselves(tmp_path):
    path = tmp_path / "best.yaml"
    for part in ({}, {"script": {"command": ["./a"], "turned": {}, "flags": {}, "changes": []}}):
        writing.write(path, writing.of_this_version({**content(), **part}))
        path.write_text(path.read_text().replace("micro_batch: 32", "micro_batch: 16"))
        assert best.read(path)["micro_batch"] == 16


# The mapping


def test_it_is_a_mapping_from_knob_to_value(folder):
    found = written(folder, content())
    assert isinstance(found, Mapping)
    assert found["micro_batch"] == 32
    assert found.get("micro_batch") == 32
    assert found.get("nothing") is None
    assert "precision" in found
    assert "nothing" not in found
    assert set(found) == set(VERDICT["knobs"])
    assert len(found) == len(VERDICT["knobs"])
    assert dict(found) == {**found} == VERDICT["knobs"]
    assert dict(found.items()) == VERDICT["knobs"]
    with pytest.raises(KeyError, match="nothing"):
        found["nothing"]


def test_a_script_can_ask_what_it_would_lose(folder):
    config = written(folder, content())
    assert config.lost_without() == {"micro_batch": 32, "precision": "bf16"}
    assert config.lost_without("micro_batch") == {"precision": "bf16"}
    assert config.lost_without("micro_batch", "precision") == {}
    by_ddp = content(
        knobs={**VERDICT["knobs"], "gradient_as_bucket_view": True, "bucket_cap_mb": 5}
    )
    assert written(folder, by_ddp).lost_without("micro_batch", "precision") == {}
    sharded = content(knobs={**VERDICT["knobs"], "parallelism": "fsdp"})
    found = written(folder, sharded).lost_without("micro_batch", "precision")
    assert found == {"parallelism": "fsdp"}
    of_old = {name: part for name, part in content().items() if name != "unusual"}
    again = written(folder, writing.of_this_version(of_old))
    assert again.lost_without("micro_batch") == {"precision": "bf16"}


def test_it_does_not_change(folder):
    found = written(folder, content())
    with pytest.raises(AttributeError):
        found.world_size = 3
    with pytest.raises(TypeError):
        found["micro_batch"] = 3


def test_two_readings_are_equal(folder):
    assert written(folder, content()) == written(folder, content())
    assert written(folder, content()) != written(folder, content(trial=8))


# Loaded in training jobs

HEAVY = ["torch", "pydantic", "optuna", "sqlalchemy", "numpy", "pandas", "ray", "typer", "rich"]
CODE = """
import sys
before = set(sys.modules)
import autotune
assert autotune.__version__
if len(sys.argv) > 1:
    best = autotune.load(sys.argv[1])
    assert best["micro_batch"] == 32
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def imported(*arguments: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_import_and_load_need_the_standard_library_and_yaml_only(tmp_path):
    path = tmp_path / "best.yaml"
    writing.write(path, content())
    bare, loading = imported(), imported(str(path))
    assert not loading & set(HEAVY)
    assert {"search_spaces", "storage", "launchers"}.isdisjoint(loading)
    foreign = loading - set(sys.stdlib_module_names) - {"autotune", "yaml", "_yaml"}
    assert all("cython" in name for name in foreign)  # what PyYAML's own extension brings
    assert "yaml" in loading
    assert "yaml" not in bare


def test_what_is_public_is_there_and_nothing_else():
    assert set(autotune.__all__) == {
        "BestConfig",
        "Update",
        "Workload",
        "__version__",
        "load",
        "report",
    }
    assert autotune.load is best.load
    assert autotune.BestConfig is best.BestConfig
    with pytest.raises(AttributeError, match="nothing"):
        autotune.nothing  # noqa: B018


def test_file_names_the_knobs_of_the_job_and_holds_the_rest(tmp_path):
    path = tmp_path / "best.yaml"
    full = content()
    changed = full["unusual"]
    writing.write(path, {**full, "own": ["micro_batch"]})
    told = yaml.safe_load(path.read_text())
    assert set(told["knobs"]) == {"micro_batch", *changed}
    assert {**told["defaults"], **told["knobs"]} == full["knobs"]
    assert dict(autotune.load(path)) == full["knobs"]
    assert set(autotune.load(path).own) == {"micro_batch", *changed}
