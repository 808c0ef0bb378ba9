"""Words behind `autotune init` and `autotune run`: which is a file, which begins a command."""

from pathlib import Path

import pytest

from autotune.cli.results import best_in
from autotune.cli.running import _path_and_command, resume, start
from autotune.cli.shared_options import seconds
from autotune.errors import BadInput
from autotune.export.best import read
from tests.support.steering import ask


@pytest.mark.parametrize("word", ["my_study", "other.yaml", "folder/study"])
def test_single_word_is_a_study_file(word: str) -> None:
    assert _path_and_command([word]) == (Path(word), [])


@pytest.mark.parametrize("word", ["train.py", "my-train"])
def test_single_word_that_runs_is_a_command(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my-train"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _path_and_command([word]) == (Path("study.yaml"), [word])


@pytest.mark.parametrize(
    "words",
    [
        ["study.yaml", "--forground"],
        ["--forground", "study.yaml"],
        ["--forground"],
        ["--forground", "--", "python", "train.py"],
    ],
)
@pytest.mark.parametrize("command", ["start", "init"])
def test_option_that_there_is_not_is_named(tmp_path: Path, command: str, words: list[str]) -> None:
    told = ask(command, *words, cwd=tmp_path)
    assert told.returncode == 2
    assert (
        told.stderr == "error: there is no option --forground; --help lists those that there are\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_missing_best_yaml_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as told:
        best_in(tmp_path / "best.yaml", read)
    assert str(told.value).count("best.yaml") == 1
    assert "Errno" not in str(told.value)


def test_file_that_is_no_best_yaml_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def main():\n    x: int = [")
    with pytest.raises(BadInput) as told:
        best_in(tmp_path / "train.py", read)
    assert str(told.value).count("train.py") == 1


def test_start_in_the_foreground_that_is_to_detach_is_refused_before_it_reads_the_study() -> None:
    with pytest.raises(BadInput, match=r"--foreground .* --detach"):
        start(["absent.yaml"], foreground=True, detach=True)


def test_resume_in_the_foreground_that_is_to_detach_is_refused_before_it_reads_the_study() -> None:
    with pytest.raises(BadInput, match=r"--foreground .* --detach"):
        resume("absent.yaml", foreground=True, detach=True)


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90.0), ("90.5", 90.5), (".5", 0.5), ("1.5m", 90.0), (None, None)]
)
def test_time_is_a_number_of_seconds_or_has_a_unit(
    text: str | None, expected: float | None
) -> None:
    assert seconds("--startup-timeout", text) == expected


@pytest.mark.parametrize("text", ["1.2.3", ".", "-1", "0", "soon"])
def test_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--startup-timeout must be seconds"):
        seconds("--startup-timeout", text)
