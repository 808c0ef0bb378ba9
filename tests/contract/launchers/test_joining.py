"""A Ray cluster that admits no driver, or is too small: a study that waits for it can leave at once."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.worker.processes import without_storage
from launchers import NO_HOLDER, Resources, DeviceHolder, driver, section_of
from launchers.ray_nodes import TooSmall
from tests.contract.launchers.sites import command, two_ray_nodes
from tests.support.waiting import stopwatch, wait_for

pytestmark = pytest.mark.fault(25)


class Enough(Exception):
    """Request to stop."""


@pytest.fixture
def mute() -> Iterator[str]:
    """Address of a head that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_who_joins_a_cluster_that_does_not_answer_can_stop_at_once(
    mute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_LEAVE_SECONDS", 1000.0)
    told: list[Callable[[], float]] = []

    def busy(rival: DeviceHolder) -> bool:
        assert rival == NO_HOLDER, "that is not long yet"
        told.append(stopwatch())
        if len(told) == 2:
            raise Enough
        return False

    with pytest.raises(Enough):
        section_of("ray", address=mute).open(Resources(1, 0, 1, None), str(tmp_path), busy)
    assert told[-1]() < 180.0, "it is killed, and not waited for"
    below = psutil.Process().children(recursive=True)
    assert [process for process in below if "ray_driver" in command(process)] == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a cluster of two nodes, in use by nothing."""
    with two_ray_nodes() as address:
        yield address


_STATES = """
import ray, sys
from ray.util.placement_group import placement_group_table
ray.init(address=sys.argv[1], log_to_driver=False)
print(*(group["state"] for group in placement_group_table().values()))
"""


def groups(address: str) -> set[str]:
    """The states of all placement groups, as another driver sees them."""
    asked = [sys.executable, "-c", _STATES, address]
    told = subprocess.run(
        asked, env=without_storage(os.environ), capture_output=True, text=True, check=True
    )
    return set(told.stdout.split())


@pytest.mark.long
@pytest.mark.sample
def test_autoscaler_hears_of_a_study_as_long_as_it_waits(cluster: str, tmp_path: Path) -> None:
    def busy(rival: DeviceHolder) -> bool:
        if "is too small at present" in rival.text and "PENDING" in groups(cluster):
            raise Enough
        return False

    with pytest.raises(Enough):
        section_of("ray", address=cluster).open(Resources(4, 0, 1, None), str(tmp_path), busy)
    wait_for(lambda: groups(cluster) <= {"REMOVED"}, "nothing is asked for any more", 60)


@pytest.mark.long
def test_command_that_does_not_wait_is_told_that_the_cluster_is_too_small(
    cluster: str, tmp_path: Path
) -> None:
    with pytest.raises(TooSmall):
        section_of("ray", address=cluster).open(Resources(4, 0, 1, None), str(tmp_path))
