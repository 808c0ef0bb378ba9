"""Memory that a container or a job may have."""

import os
from pathlib import Path
from typing import Any

import pytest

from autotune.worker import cgroup
from autotune.worker.cgroup import usable_memory
from autotune.worker.node import environment

GIB, PAGE = 1 << 30, 4096
NO_LIMIT_OF_V1 = 9223372036854771712


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for cgroups, on a machine of 64 GiB less what its kernel reserves."""
    sizes = {"SC_PAGE_SIZE": PAGE, "SC_PHYS_PAGES": (64 * GIB - 300 * 2**20) // PAGE}
    usual = os.sysconf

    def sysconf(name: Any) -> int:
        return sizes[name] if name in sizes else usual(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    (tmp_path / "own").write_text("4:cpu,memory:/slurm/job_7\n0::/slurm/job_7\n")
    for tree in ("mount", "mount/memory"):
        (tmp_path / tree / "slurm" / "job_7").mkdir(parents=True)
    return tmp_path


def found(top: Path) -> int:
    return usable_memory(top / "own", top / "mount")


@pytest.mark.parametrize(
    ("file", "none"),
    [
        ("mount/slurm/job_7/memory.max", "max"),
        ("mount/slurm/memory.max", "max"),
        ("mount/memory/slurm/job_7/memory.limit_in_bytes", str(NO_LIMIT_OF_V1)),
        ("mount/memory/memory.limit_in_bytes", str(NO_LIMIT_OF_V1)),
    ],
)
def test_memory_is_that_of_the_machine_or_the_limit_of_a_cgroup(
    top: Path, file: str, none: str
) -> None:
    assert found(top) == 64 * GIB
    limits = {none: 64, str(128 * GIB): 64, str(16 * GIB): 16}
    for text, expected in limits.items():
        (top / file).write_text(f"{text}\n")
        assert found(top) == expected * GIB


def test_the_least_limit_on_the_way_up_holds(top: Path) -> None:
    job = top / "mount" / "slurm" / "job_7"
    (job / "memory.max").write_text(f"{32 * GIB}\n")
    (job.parent / "memory.max").write_text(f"{8 * GIB}\n")
    assert found(top) == 8 * GIB


def test_environment_tells_the_limit(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "mount" / "slurm" / "job_7" / "memory.max").write_text(f"{16 * GIB}\n")
    own, mount = top / "own", top / "mount"
    monkeypatch.setattr(cgroup.usable_memory, "__defaults__", (own, mount))
    assert environment.describe()["memory_bytes"] == 16 * GIB
