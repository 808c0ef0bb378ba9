"""Place of the trials of a study: what a rank has there."""

import dataclasses
from typing import Any

import pytest

from launchers.replay import ReplayLauncher
from launchers.replay.launcher import ENVIRONMENT
from launchers.site import Site

GIB = 2**30
NODE: dict[str, Any] = {**ENVIRONMENT, "cores": 8, "memory_bytes": 32 * GIB}
DEVICES = [
    {"name": "H100", "memory_bytes": 80 * GIB, "capability": [9, 0]},
    {"name": "A100", "memory_bytes": 40 * GIB, "capability": [8, 0]},
]
ON_CPU = Site("cpu", ranks=8, nodes=2, devices_per_rank=0.0, environment=NODE)
ON_CUDA = Site("cuda", 2, 1, 1.0, {**NODE, "devices": DEVICES})


def test_rank_on_processors_has_its_share_of_all_nodes() -> None:
    assert ON_CPU.bytes_of_rank == 8 * GIB
    assert ON_CPU.cores_of_rank == 2
    assert ON_CPU.ranks_per_node == 4


def test_rank_on_devices_has_the_smallest_of_them() -> None:
    assert ON_CUDA.bytes_of_rank == 40 * GIB
    assert dataclasses.replace(ON_CUDA, devices_per_rank=0.25).bytes_of_rank == 10 * GIB


def test_capability_is_that_of_the_oldest_device() -> None:
    assert ON_CUDA.capability == (8, 0)
    assert ON_CPU.capability is None


def test_ranks_that_share_a_device_communicate_over_gloo() -> None:
    assert ON_CUDA.backend == "nccl"
    assert dataclasses.replace(ON_CUDA, devices_per_rank=0.5).backend == "gloo"
    assert ON_CPU.backend == "gloo"


def test_devices_are_named_by_the_processor_where_there_are_none() -> None:
    assert ON_CUDA.devices == ["H100", "A100"]
    assert ON_CPU.devices == [ENVIRONMENT["cpu"]]


def test_site_of_a_launcher_stays_as_it_was_when_its_agents_move() -> None:
    with ReplayLauncher(lambda launch: pytest.fail("nothing is launched"), workers=4) as launcher:
        site = launcher.site
        launcher.slots[0].environment = {**ENVIRONMENT, "host": "elsewhere"}
        assert launcher.site is site
        assert (site.ranks, site.device, site.environment["host"]) == (4, "cpu", "replay")
