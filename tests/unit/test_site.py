"""Place of the trials of a study: what a rank has there."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.runs.study_setup import StudySetup
from launchers.replay import ReplayLauncher
from launchers.replay.answers import Answer, Launch
from launchers.replay.launcher import ENVIRONMENT
from launchers.site import Site
from search_spaces import defaults, infeasible

GIB = 2**30
NODE: dict[str, Any] = {**ENVIRONMENT, "cores": 8, "memory_bytes": 32 * GIB}
DEVICES = [
    {"name": "H100", "memory_bytes": 80 * GIB, "capability": [9, 0]},
    {"name": "A100", "memory_bytes": 40 * GIB, "capability": [8, 0]},
]
ON_CPU = Site("cpu", ranks=8, nodes=2, devices_per_rank=0.0, environment=NODE)
ON_CUDA = Site("cuda", 2, 1, 1.0, {**NODE, "devices": DEVICES})


def not_launched(_: Launch) -> Answer:
    pytest.fail("nothing is launched")


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
    with ReplayLauncher(not_launched, workers=4) as launcher:
        site = launcher.site
        launcher.slots[0].environment = {**ENVIRONMENT, "host": "elsewhere"}
        assert launcher.site is site
        assert (site.ranks, site.device, site.environment["host"]) == (4, "cpu", "replay")


@pytest.mark.parametrize(
    ("devices", "precision", "strict"),
    [
        (DEVICES, "fp32", True),
        (DEVICES, "tf32", False),
        (DEVICES, "bf16", False),
        ([], "fp32", False),
    ],
)
def test_tf32_of_the_workload_itself_is_refused_where_the_baseline_says_fp32(
    devices: list[dict[str, Any]], precision: str, strict: bool, tmp_path: Path
) -> None:
    baseline = {"precision": precision, "parallelism": "none"}
    spec = StudySpec.model_validate(
        {
            "name": "a",
            "workload": {"name": "gpt"},
            "baseline": baseline,
            "resources": {"workers": 1},
        }
    )
    environment = {**ENVIRONMENT, "devices": devices[1:]}
    with ReplayLauncher(not_launched, workers=1, environment=environment) as launcher:
        asked = StudySetup(spec, launcher).request(
            launcher.slots[0], defaults(), name="t", workdir=Path(), log_dir=tmp_path
        )
    assert asked.strict_fp32 is strict


@pytest.mark.parametrize("own", ["LL128", "auto"])
def test_protocol_of_nccl_that_the_user_runs_today_is_tried(own: str) -> None:
    spec = StudySpec.model_validate(
        {
            "name": "a",
            "workload": {"name": "gpt"},
            "baseline": {"nccl_proto": own},
            "resources": {"workers": 2},
        }
    )
    environment = {**ENVIRONMENT, "devices": DEVICES[:2]}
    with ReplayLauncher(not_launched, workers=2, environment=environment) as launcher:
        setup = StudySetup(spec, launcher)
        setup.check_baseline()
        refused = infeasible({**setup.baseline, "nccl_proto": "LL128"}, setup.facts)
    assert bool(refused) is (own == "auto")


@pytest.mark.parametrize(
    ("workload", "of_reports"),
    [({"name": "gpt"}, False), ({"command": ["./bench", "{micro_batch}"]}, True)],
)
def test_blocks_of_a_command_alone_are_limited_as_reports(
    workload: dict[str, Any], of_reports: bool
) -> None:
    told = {"name": "a", "baseline": {"micro_batch": 8}, "search_space": {"micro_batch": [8]}}
    spec = StudySpec.model_validate({**told, "workload": workload})
    with ReplayLauncher(not_launched) as launcher:
        setup = StudySetup(spec, launcher)
        limits = setup.search_limits(), setup.confirm_limits(sigma_run=0.0)
    assert {one.of_reports for one in limits} == {of_reports}


SCRIPT = {
    "script": "train.py",
    "args": ["-b", "8", "-a", "1", "-l", "1"],
    "flags": {"micro_batch": "-b", "accumulation_steps": "-a", "log_interval": "-l"},
}
OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"


@pytest.mark.parametrize(
    ("changes", "devices", "refused"),
    [
        ({}, DEVICES, True),
        ({}, [], False),
        ({"baseline": {"precision": "tf32"}}, DEVICES, False),
        ({"env": {OVERRIDE: "0"}}, DEVICES, False),
        ({"workload": SCRIPT, "objective": {"global_batch_size": "free"}}, DEVICES, False),
    ],
)
def test_tf32_of_the_environment_is_told_before_a_factory_is_launched(
    changes: dict[str, Any],
    devices: list[dict[str, Any]],
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OVERRIDE, "1")
    told = {"name": "a", "workload": {"name": "gpt"}, "resources": {"workers": 2}}
    spec = StudySpec.model_validate({**told, **changes})
    environment = {**ENVIRONMENT, "devices": devices}
    with ReplayLauncher(not_launched, workers=2, environment=environment) as launcher:
        setup = StudySetup(spec, launcher)
        if not refused:
            setup.check_baseline()
            return
        with pytest.raises(BadInput, match=re.escape("`baseline: {precision: tf32}`")):
            setup.check_baseline()
