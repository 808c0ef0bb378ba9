"""What submitting a study does before anything runs: real SQLite, real folders."""

from pathlib import Path

import pytest

from autotune.errors import BadInput
from autotune.service import submission
from autotune.spec import StudySpec, load
from storage import Database, Repository
from tests.steering import write_study


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(Database(f"sqlite:///{tmp_path}/autotune.db"))


def spec(folder: Path, trials: int = 4, export: str = "best.yaml") -> StudySpec:
    return load(write_study(folder, budget={"trials": trials}, export=export))


def test_a_study_whose_folder_was_moved_goes_on_in_the_new_one(
    repository: Repository, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    submission.submit(repository, spec(tmp_path), old)
    old.rename(new)
    with pytest.raises(BadInput, match=r"/old, is gone; where it is now: autotune start"):
        submission.Keeper(repository, repository.studies.named("tiny"), "sqlite://")()
    assert not old.exists()
    assert submission.submit(repository, spec(tmp_path, trials=5), new).workdir == str(new)


def test_one_whose_folder_is_still_there_stays_in_it(
    repository: Repository, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    submission.submit(repository, spec(tmp_path), old)
    assert submission.submit(repository, spec(tmp_path, trials=5), new).workdir == str(old)


def test_an_export_that_cannot_be_written_is_refused_before_anything_runs(
    repository: Repository, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"export: .*/no/best\.yaml cannot be written"):
        submission.submit(repository, spec(tmp_path, export="no/best.yaml"), tmp_path)
    assert repository.studies.all() == []


@pytest.mark.parametrize("name", ["train.py", "study.yaml", "."])
def test_an_export_that_would_replace_what_is_not_ours_is_refused(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    (tmp_path / "train.py").write_text("import torch")
    with pytest.raises(BadInput, match=rf"export: .*{name} is there and is no best\.yaml"):
        submission.submit(repository, spec(tmp_path, export=name), tmp_path)
    assert repository.studies.all() == []
