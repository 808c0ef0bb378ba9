"""Secrets in a storage URL and among a study's variables: what anybody could find of them afterwards."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, make_url, select

from storage.urls import parse
from tests.support.steering import StudyFolder, processes_in, study_folder
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.timeout(900), pytest.mark.fault(31), pytest.mark.slow]

STORAGE_SECRET = "planted-hunter2-storage"
TOKEN = "planted-hunter2-token"
PROXY = "http://me:planted-hunter2-proxy@proxy:3128"
SECRETS = (STORAGE_SECRET, TOKEN, "planted-hunter2-proxy")
BESIDE = """
import hashlib
import os
from pathlib import Path

import tiny


def build(**arguments):
    found = hashlib.sha256((os.environ["HF_TOKEN"] + os.environ["http_proxy"]).encode()).hexdigest()
    assert "AUTOTUNE_STORAGE" not in os.environ
    Path("arrived").write_text(found)
    return tiny.build(**arguments)
"""


@pytest.fixture
def study(tmp_path: Path, postgres_url: str) -> Iterator[StudyFolder]:
    """A study folder whose storage has a secret in its URL."""
    url = make_url(postgres_url).set(password=STORAGE_SECRET)
    with study_folder(tmp_path, url.render_as_string(hide_password=False)) as found:
        (found.folder / "beside.py").write_text(BESIDE)
        yield found


def assert_clean(text: str, where: str) -> None:
    for secret in SECRETS:
        assert secret not in text, where


def written(folder: Path) -> dict[str, str]:
    """All files but the user's own study file."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "study.yaml"]
    return {str(path): path.read_bytes().decode(errors="replace") for path in files}


def stored(url: str) -> str:
    """Every row of every table, as text."""
    engine = create_engine(parse(url))
    tables = MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        rows = [str(connection.execute(select(t)).all()) for t in tables.sorted_tables]
    engine.dispose()
    assert any("tiny" in row for row in rows)
    return "\n".join(rows)


@pytest.mark.sample
def test_nobody_finds_a_secret_that_a_study_was_given(study: StudyFolder) -> None:
    study.write(
        workload={"name": "beside:build", "args": {"sleep": 0.05}},
        resources={"workers": 1},
        search_space={"log_interval": [1, 10]},
        budget={"trials": 2},
        env={"HF_TOKEN": TOKEN, "http_proxy": PROXY, "COLOUR": "red"},
    )
    by_environment = {"AUTOTUNE_STORAGE": study.url}
    shown = [study.run("start", "study.yaml", "--detach", env=by_environment)]
    study.wait_running()
    arrived = study.folder / "arrived"
    wait_for(lambda: arrived.exists() or study.study().state.ended, "a rank has its variables")
    for pid, command in processes_in(study.folder).items():
        assert_clean(command, f"arguments of {pid}")
        variables = _environ(pid)
        assert STORAGE_SECRET not in variables, f"environment of {pid}: {command}"
    study.wait_state("DONE")
    for command in (
        *(["list", "--json"], ["status", "tiny", "--json"], ["logs", "tiny"], ["report", "tiny"]),
        *(["logs", "tiny", "--trial", "0"], ["watch", "tiny"], ["export", "tiny", "-o", "b.yaml"]),
        *(["export", "tiny", "--format", kind] for kind in ("json", "env")),
        ["export", "tiny", "--trials", "all.csv"],
        ["record", "study.yaml", "-o", "t.csv", "--refine", "0"],
        ["simulate", "--table", "t.csv"],
    ):
        shown.append(study.ask(*command, env=by_environment))
        assert shown[-1].returncode == 0, shown[-1].stderr
    expected = hashlib.sha256((TOKEN + PROXY).encode()).hexdigest()
    assert arrived.read_text() == expected, "they are for the ranks"
    for found in shown:
        assert_clean(found.stdout + found.stderr, str(found.args))
    files = written(study.folder)
    assert any(name.endswith("t.json") for name in files)
    for name, content in files.items():
        assert_clean(content, name)
    assert_clean(stored(study.url), "SQL")


def _environ(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""  # gone meanwhile
