"""Values of variables that look secret are not stored, and are there again when the study starts."""

from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec, load, secrets_withheld
from autotune.errors import BadInput
from autotune.service.submission import submit
from launchers.replay import ReplayLauncher
from storage import Database
from tests.control.replayed import Machine, Replayed

SHORT = {
    "budget": {"trials": 2, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}
ENV = {"HF_TOKEN": "planted", "COLOUR": "red"}


class Seeing(Machine):
    """Remembers the settings that launchers were opened with."""

    env: dict[str, str]

    def open(self, *given: Any) -> ReplayLauncher:
        self.env = given[0].env
        return super().open()


def submit_file(played: Replayed, **changes: Any) -> Path:
    played.submit(**SHORT, **changes)
    path = played.folder / "study.yaml"
    submit(played.repository, load(path), played.folder, path)
    return path


def test_they_come_from_the_study_file(played: Replayed) -> None:
    submit_file(played, env=ENV)
    assert played.study().spec["env"] == {"HF_TOKEN": secrets_withheld.WITHHELD, "COLOUR": "red"}
    played.machine = Seeing()
    played.serve()
    played.assert_complete()
    assert played.machine.env == ENV


@pytest.mark.parametrize("there_is_a_file", [True, False])
def test_or_from_the_environment_and_else_the_study_says_where_they_ought_to_be(
    played: Replayed, there_is_a_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    path = submit_file(played, env=ENV)
    if there_is_a_file:
        path.write_text(path.read_text().replace("HF_TOKEN", "OTHER"))
    else:
        path.unlink()
    played.serve()
    study = played.study()
    assert study.state == "FAILED"
    assert study.error is not None
    assert study.error.startswith("env: HF_TOKEN: looks secret")
    assert str(path) in study.error
    played.repository.studies.enqueue(played.name)
    monkeypatch.setenv("HF_TOKEN", "from the environment")
    played.machine = Seeing()
    played.serve()
    played.assert_complete()
    assert played.machine.env == {"HF_TOKEN": "from the environment", "COLOUR": "red"}


def test_a_file_of_another_study_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("name: other\nenv: {A_KEY: mine}\n")
    stored = {"name": "a", "workload": {"name": "gpt"}, "budget": {"trials": 1}}
    stored |= {"env": {"A_KEY": secrets_withheld.WITHHELD}}
    with pytest.raises(BadInput, match="A_KEY"):
        secrets_withheld.restored(stored, path, {})


def test_a_study_goes_on_with_another_secret_and_not_with_another_variable(
    played: Replayed,
) -> None:
    path = submit_file(played, env=ENV)
    path.write_text(path.read_text().replace("planted", "renewed"))
    submit(played.repository, load(path), played.folder, path)
    path.write_text(path.read_text().replace("red", "blue"))
    with pytest.raises(BadInput, match=r"env\.COLOUR"):
        submit(played.repository, load(path), played.folder, path)


def test_one_whose_secret_an_older_version_has_stored_goes_on(
    played: Replayed, database: Database
) -> None:
    path = submit_file(played, env=ENV)
    stored = played.study().spec
    played.repository.studies.enqueue(played.name, {**stored, "env": ENV})
    assert submit(played.repository, load(path), played.folder, path).spec["env"] == {
        "HF_TOKEN": secrets_withheld.WITHHELD,
        "COLOUR": "red",
    }


def test_a_knob_is_no_secret() -> None:
    spec = StudySpec.model_validate(
        {
            "name": "a",
            "workload": {"script": "train.py"},
            "search_space": {},
            "knobs": {"heads": {"values": [1, 2], "flag": "$HEADS_KEY"}},
            "objective": {"global_batch_size": "free"},
            "budget": {"trials": 1},
            "env": {"HEADS_KEY": "1", "OTHER_KEY": "2"},
        }
    )
    assert secrets_withheld.kept(spec)["env"] == {
        "HEADS_KEY": "1",
        "OTHER_KEY": secrets_withheld.WITHHELD,
    }


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("WANDB_API_KEY", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", "x", True),
        ("PGPASSWORD", "x", True),
        ("mysql_pwd", "x", True),
        ("DB_PASS", "x", True),
        ("SMTP_PASS", "x", True),
        ("AZURE_STORAGE_CONNECTION_STRING", "x", True),
        ("DB_PASS", "271828", True),
        ("BYPASS_CACHE", "1", False),
        ("PASS_THROUGH", "1", False),
        ("FORWARD_PASS_DTYPE", "bf16", False),
        ("N_PASS", "2", False),
        ("SKIP_FIRST_PASS", "True", False),
        ("HTTP_AUTHORIZATION", "x", True),
        ("DATABASE_URL", "postgresql://me:word@host/x", True),
        ("DATABASE_URL", "postgresql://me@host:5432/x", False),
        ("PWD", "/home/me", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MAX_TOKENS", "512", False),
        ("NCCL_DEBUG", "INFO", False),
        ("PATH", "/bin", False),
    ],
)
def test_what_looks_secret(name: str, value: str, secret: bool) -> None:
    assert secrets_withheld.looks_secret(name, value) is secret
