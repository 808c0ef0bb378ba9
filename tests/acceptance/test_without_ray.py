"""A study on this machine needs neither Ray nor pandas nor optuna-dashboard."""

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tests.support import steering
from tests.support.steering import StudyFolder, quick_measurement, study_folder, tiny_study

WITHOUT = Path(__file__).parents[1] / "workloads" / "without"
Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def study(tmp_path: Path) -> Iterator[StudyFolder]:
    with study_folder(tmp_path) as found:
        yield found


@pytest.fixture
def bare(study: StudyFolder) -> Command:
    """The command where those packages are missing."""
    return lambda *arguments: steering.autotune(
        *arguments, cwd=study.folder, env={"PYTHONPATH": str(WITHOUT)}
    )


def write(study: StudyFolder, **changes: object) -> None:
    settings = tiny_study(
        resources={"workers": 1}, measurement=quick_measurement(), budget={"trials": 2}, **changes
    )
    (study.folder / "study.yaml").write_text(yaml.safe_dump(settings))


@pytest.mark.errand
def test_a_study_runs_to_its_verdict_without_them(study: StudyFolder, bare: Command) -> None:
    write(study)
    assert "dashboard" in bare("--help").stdout
    for arguments in (["start", "study.yaml"], ["status", "tiny"], ["report", "tiny"]):
        found = bare(*arguments)
        assert found.returncode == 0, found.stdout + found.stderr
    for arguments, package in (
        (["export", "tiny", "--trials", "-"], "pandas"),
        (["dashboard", "tiny", "--no-browser"], "optuna-dashboard"),
    ):
        found = bare(*arguments)
        assert found.returncode == 2, found.stdout + found.stderr
        assert found.stderr == (
            f"error: this needs {package}, which is not installed: pip install {package}\n"
        )


@pytest.mark.errand
def test_doctor_says_what_cannot_be_done_without_them(study: StudyFolder, bare: Command) -> None:
    write(study)
    found = bare("doctor")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "without ray: no launcher: ray" in found.stdout
    assert "without pandas: no autotune export --trials" in found.stdout
    write(study, launcher="ray")
    found = bare("doctor", "study.yaml")
    assert found.returncode == 1
    assert "fail  ray launcher: launcher: ray needs Ray" in found.stdout
    assert "pip install ray" in found.stdout
