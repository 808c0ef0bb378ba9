"""Opening databases, with our code and without it."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy import inspect as inspected

from autotune.errors import AutotuneError
from storage import Database

ROOT = Path(__file__).parents[3]


def private_mounts() -> bool:
    """Whether a process may mount file systems that only it and its children see."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not private_mounts(), reason="may not mount a file system")


def in_private_mounts(
    script: str, *arguments: str, cwd: Path, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a Python script as root of a mount namespace of its own."""
    command = ["unshare", "--mount", "--map-root-user", sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextlib.contextmanager
def opened(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.engine.dispose()


@contextlib.contextmanager
def raw(url: str) -> Iterator[Engine]:
    """The database without any of our code."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        yield engine
    finally:
        engine.dispose()


def execute(url: str, statement: str) -> None:
    with raw(url) as engine, engine.begin() as connection:
        connection.execute(text(statement))


def tables(url: str) -> set[str]:
    with raw(url) as engine:
        return set(inspected(engine).get_table_names())


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def refusal(url: str, kind: type[AutotuneError] = AutotuneError) -> str:
    with pytest.raises(kind) as caught:
        Database(url)
    return str(caught.value)
