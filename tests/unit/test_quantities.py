"""Times and amounts of memory in a study file."""

import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.errors import SpecError
from tests.support.study_files import BARE, START, THOROUGH, as_json, load_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


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
