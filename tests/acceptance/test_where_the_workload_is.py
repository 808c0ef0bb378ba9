"""The module of the workload is found where the command was typed, or beside the study file."""

from pathlib import Path

import pytest

from tests.support.steering import TINY_WORKLOAD, ask, write_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study file in a folder below the one where commands are typed."""
    (tmp_path / "studies").mkdir()
    return write_study(tmp_path / "studies", resources={"workers": 1})


@pytest.mark.parametrize("where", [".", pytest.param("studies", marks=pytest.mark.errand)])
def test_it_is_found(study: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / where / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    found = ask("doctor", "studies/study.yaml", cwd=tmp_path)
    assert "ok    baseline: built and trained" in found.stdout


@pytest.mark.errand
def test_it_is_found_where_the_study_says(tmp_path: Path) -> None:
    for name in ("studies", "code", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    study = write_study(tmp_path / "studies", resources={"workers": 1})
    study.write_text(study.read_text() + "folder: ../code\n")
    found = ask("doctor", "../studies/study.yaml", cwd=tmp_path / "elsewhere")
    assert "ok    baseline: built and trained" in found.stdout


@pytest.mark.errand
def test_the_message_names_both_places(study: Path, tmp_path: Path) -> None:
    found = ask("doctor", "studies/study.yaml", cwd=tmp_path)
    assert (
        f"there is no module 'tiny' of the workload: looked in {tmp_path} (where the command was "
        f"typed), {tmp_path}/studies (beside the study file, or its `folder`), on PYTHONPATH"
    ) in found.stdout
