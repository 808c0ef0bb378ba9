"""What a look at a launch command leaves aside, says while it runs, and knows of the storage."""

import sqlite3
import threading
from pathlib import Path

import pytest

from autotune.standalone.script_runs import last_line, reported
from autotune.worker.inject.settled import may_hold_settings
from storage import Database, Repository, study_names


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("conf/train.yaml", 100, True),
        ("ds_config.json", 100, True),
        ("tokenizer.json", 100, False),
        ("bert/vocab.json", 100, False),
        ("data/train.json", 200_000, False),
        ("lib/site-packages/peft/config.json", 100, False),
        (".cache/hub/config.json", 100, False),
    ],
)
def test_files_of_data_and_libraries_hold_no_settings(
    tmp_path: Path, name: str, size: int, expected: bool
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(" " * size)
    assert may_hold_settings(path) is expected


def test_long_run_says_what_it_printed_last() -> None:
    said: list[str] = []
    twice = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            twice.set()

    with reported(say, lambda: "loading\ncompiling 1\rcompiling 2\n\n", every=0.01):
        assert twice.wait(60)
    assert all(line.endswith("s; it has printed: compiling 2") for line in said)


@pytest.mark.parametrize("rank", ["", "[rank0]:"])
def test_last_line_is_no_warning_of_the_log_of_torch(rank: str) -> None:
    warning = f"{rank}[W1126 13:01:02.345678901 socket.cpp:207] [c10d] The hostname of the client"
    assert last_line(f"step 1\n{warning}\n") == "step 1"
    assert last_line(warning) == ""
    assert last_line("[Warm] up.cpp:1]") == "[Warm] up.cpp:1]"


def test_last_line_is_no_warning_of_the_python_log_of_torch() -> None:
    warning = (
        "W1126 18:18:07.481000 12714 torch/utils/_pytree.py:630] <enum 'A'> is an Enum subclass"
    )
    assert last_line(f"step 1\n{warning}\n") == "step 1"


def test_last_line_is_shortened() -> None:
    assert last_line("") == ""
    assert len(last_line("x" * 5000)) == 100


def test_names_are_read_without_changing_the_storage(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    url = f"sqlite:///{path}"
    assert study_names(url) == frozenset()
    assert not path.exists()
    database = Database(url)
    Repository(database).studies.submit("train", "host:here", {}, str(tmp_path))
    database.engine.dispose()
    before = path.read_bytes()
    assert study_names(url) == {"train"}
    assert path.read_bytes() == before
    sqlite3.connect(tmp_path / "other.db").execute("create table t (x)").connection.close()
    assert study_names(f"sqlite:///{tmp_path}/other.db") == frozenset()
