"""Opening and closing a launcher, and what it says of itself."""

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import launchers
from autotune.errors import LauncherError
from autotune.worker.node.store import NAME
from autotune.worker.protocol import BlockPlan, BlockReport
from launchers import NO_HOLDER, Resources, DeviceHolder, layout
from launchers.slot import AgentSlot
from tests.contract.launchers.sites import (
    RUN_MARK,
    Site,
    command,
    commands,
    go_on,
    in_allocation,
    kill_all,
    marked,
    sites,
    sites_to_close,
)
from tests.support.steering import TINY_WORKLOAD
from tests.support.trials import ENDLESS, trial
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)


LONE_TUNER = """
import sys

import launchers
import search_spaces
from autotune.worker.protocol import BlockPlan, TrialRequest

folder = sys.argv[1]
resources = launchers.Resources(2, None, 1, None)
local = launchers.section_of(sys.argv[2]).open(resources, folder, busy=lambda rival: True)
print("ray imported:", any(name.partition(".")[0] == "ray" for name in sys.modules), flush=True)
request = TrialRequest(
    trial="1",
    factory="tiny:build",
    args={"trouble": "grandchild", "at": 2},
    knobs=search_spaces.defaults(),
    world_size=2,
    seed=0,
    device="cpu",
    blocks=BlockPlan(0.01, 2, 1_000_000),
    workdir=folder,
    import_paths=(folder,),
    log_dir=folder + "/logs",
)
local.slots[0].run_solo(request, lambda block: block.index == 2 and print("training", flush=True))
"""


WRONG_ADDRESS = """
import sys

import launchers
from autotune.errors import LauncherError

try:
    launchers.section_of("ray", address=sys.argv[2]).open(launchers.Resources(1, 0, 1, 1), sys.argv[1])
except LauncherError as error:
    print(error)
"""


@sites("local", "ray", "slurm")
def test_what_a_slot_says_of_itself(site: Site) -> None:
    assert site.slot.device == "cpu"
    assert site.slot.devices_per_rank == 0
    assert site.slot.environment["devices"] == []
    assert site.slot.environment["cores"] == len(os.sched_getaffinity(0))
    assert site.slot.environment["torch"]
    json.dumps(site.slot.environment)


@pytest.mark.long
@pytest.mark.sample
@pytest.mark.fault(21)
@sites("local")  # Ray itself listens on all interfaces, see docs/operations.md
def test_only_loopback_is_listened_on(site: Site) -> None:
    open_ports: list[str] = []

    def look(block: BlockReport) -> bool:
        if block.index == 2:
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            open_ports.extend(line for process in family for line in listening(process))
        return block.index >= 2

    site.slot.run_solo(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), look)
    assert any(NAME in line for line in open_ports)
    reachable = [line for line in open_ports if not loopback(line.split()[0])]
    assert reachable == []


def listening(process: psutil.Process) -> Iterator[str]:
    with contextlib.suppress(psutil.Error):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                address = connection.laddr
                yield f"{address.ip} {address.port} {process.name()} {command(process)[:99]}"


def loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


@pytest.mark.parametrize(
    "resources",
    [Resources(4096, None, 1, None), Resources(1, None, 4096, None), Resources(1, None, 1, 4096)],
)
def test_the_local_launcher_refuses_more_than_the_machine_has(
    resources: Resources, tmp_path: Path
) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(LauncherError, match="lower resources"):
        launchers.section_of("local").open(resources, str(tmp_path))
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


class Enough(Exception):
    """Request to stop."""


@pytest.mark.long
def test_local_launcher_is_not_waited_for_while_its_agents_start(tmp_path: Path) -> None:
    def busy(rival: DeviceHolder) -> bool:
        if rival == NO_HOLDER:
            raise Enough
        return True

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(Enough):
        launchers.section_of("local").open(Resources(1, 0, 1, 1), str(tmp_path), busy)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


class OnOtherProcessors(AgentSlot):
    """Slot on real agents, each of which tells a processor of its own kind."""

    def __init__(self, name: str, *nodes: Any, **settings: Any) -> None:
        super().__init__(name, *nodes, **settings)
        self.environment = {**self.environment, "cpu": "big" if name == "local-1" else "small"}


@pytest.mark.long
def test_slots_of_another_kind_are_closed_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "usable_cpus", lambda: 2)
    monkeypatch.setattr("launchers.local.AgentSlot", OnOtherProcessors)
    local = launchers.section_of("local")
    with local.open(Resources(1, 0, 1, 2, device="big"), str(tmp_path)) as launcher:
        assert [slot.name for slot in launcher.slots] == ["local-1"]
        assert launcher.site.environment["cpu"] == "big"
        (told,) = launcher.notices()
    assert told.startswith("Left out: local-0 has small, and this study runs on big")


@pytest.mark.long
def test_folder_of_temporary_files_may_have_a_long_path(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    long = tmp_path / ("x" * 90)
    long.mkdir()
    local = launchers.section_of("local")
    with local.open(Resources(1, 0, 1, 1), str(tmp_path), env={"TMPDIR": str(long)}) as launcher:
        report = launcher.slots[0].run_solo(trial(tmp_path, world_size=1), go_on)
    assert report.outcome is None, report.cause


@sites_to_close("cluster")
def test_the_ray_launcher_closes_everything_and_refuses_too_much(site: Site) -> None:
    import ray
    from ray.util.placement_group import placement_group_table

    site.close()
    wait_for(lambda: not site.agents(), "the agents are gone")
    assert site.strays() == []
    with pytest.raises(LauncherError, match="lower resources"):
        launchers.section_of("ray", address=site.address).open(
            Resources(4096, None, 1, None), "/tmp"
        )
    assert not ray.is_initialized()
    ray.init(address=site.address, log_to_driver=False)
    try:
        states = {group["state"] for group in placement_group_table().values()}
        assert states == {"REMOVED"}
        wait_for(lambda: ray.available_resources().get("CPU") == 2, "both CPUs are free")
    finally:
        ray.shutdown()


def test_a_ray_cluster_that_is_not_there_is_reported_soon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", WRONG_ADDRESS, str(tmp_path), address],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert f"no Ray cluster at {address}" in done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.fault(5)
def test_a_killed_tuner_takes_everything_with_it_and_never_needed_ray(tmp_path: Path) -> None:
    kill_a_tuner(tmp_path, "local")


@pytest.mark.slow
@pytest.mark.fault(34)
def test_a_killed_tuner_leaves_no_step_of_slurm(tmp_path: Path) -> None:
    with in_allocation(tmp_path / "slurm"):
        kill_a_tuner(tmp_path, "slurm")
        steps = ["squeue", "--noheader", "--steps"]
        wait_for(lambda: not subprocess.check_output(steps).strip(), "no step is left")


def kill_a_tuner(tmp_path: Path, launcher: str) -> None:
    """Kill a process with an open launcher in the middle of a trial; nothing of that is left."""
    (tmp_path / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    mark = uuid.uuid4().hex
    tuner = subprocess.Popen(
        [sys.executable, "-P", "-c", LONE_TUNER, str(tmp_path), launcher],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, RUN_MARK: mark},
    )
    assert tuner.stdout is not None
    try:
        assert tuner.stdout.readline() == "ray imported: False\n"
        assert tuner.stdout.readline() == "training\n"
        wait_for(lambda: "escaping-grandchild" in commands(mark), "the grandchild is there")
        tuner.kill()
        tuner.wait()
        wait_for(lambda: not marked(mark), "nothing of it is left")
    finally:
        tuner.kill()
        tuner.communicate()
        kill_all(mark)


@sites_to_close("local", slow=["ray", "slurm", "pair"])
def test_closing_leaves_no_process(site: Site) -> None:
    site.check_next_trial()
    assert marked(site.mark)
    site.close()
    wait_for(lambda: not marked(site.mark), "nothing of it is left")
    site.close()
