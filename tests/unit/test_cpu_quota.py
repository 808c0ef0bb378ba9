"""Processors that a container has time on."""

import os
from pathlib import Path

import pytest

from autotune.worker import cgroup
from autotune.worker.cgroup import usable_cpus
from launchers import layout


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a cgroup in which this process is, below one without a quota, of 16 processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    folder = tmp_path / "mount" / "kubepods" / "pod"
    folder.mkdir(parents=True)
    (folder.parent / "cpu.max").write_text("max 100000\n")
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/kubepods/pod\n")
    return folder


def found(pod: Path) -> int:
    top = pod.parents[2]
    return usable_cpus(top / "own", top / "mount")


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("max 100000", 16),
        ("400000 100000", 4),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 16),
    ],
)
def test_processors_within_the_quota_of_the_cgroup_count(pod: Path, quota: str, cpus: int) -> None:
    (pod / "cpu.max").write_text(f"{quota}\n")
    assert found(pod) == cpus


def test_the_least_quota_on_the_way_up_holds(pod: Path) -> None:
    (pod / "cpu.max").write_text("800000 100000\n")
    (pod.parent / "cpu.max").write_text("300000 100000\n")
    assert found(pod) == 3


@pytest.mark.parametrize("named", ["0::/", "0::/docker/of-the-host", "0::/../outside", ""])
def test_a_container_sees_its_own_cgroup_as_the_mount(pod: Path, named: str) -> None:
    top = pod.parents[2]
    (top / "own").write_text(f"{named}\n")
    (top / "mount" / "cpu.max").write_text("200000 100000\n")
    assert found(pod) == 2


def test_a_kernel_without_quotas_has_all_processors(pod: Path) -> None:
    assert usable_cpus(pod / "none", pod / "nowhere") == 16


def test_trials_get_no_more_processors_than_the_quota(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pod / "cpu.max").write_text("400000 100000\n")
    top = pod.parents[2]
    monkeypatch.setattr(cgroup.usable_cpus, "__defaults__", (top / "own", top / "mount"))
    assert layout.this_machine().cpus == 4
