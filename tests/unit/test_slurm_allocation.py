"""Nodes of a Slurm allocation, as Slurm describes them, and the places that slots take on them."""

import io
import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UnfitNodes
from autotune.worker.node import relay
from launchers import slurm_allocation
from launchers.layout import Layout, NodeCapacity
from launchers.sections import LocalSection, RaySection, Section
from launchers.slurm_allocation import (
    Allocation,
    NodeShare,
    NodeState,
    read_shares,
    read_states,
    refuse_login_node,
)

JOB = """JobId=7 JobName=tune
   NodeList=a[1-2],b1
   JOB_GRES=gpu:a100:10
     Nodes=a[1-2] CPU_IDs=0-3,8 Mem=1000 GRES=gpu:a100:4(IDX:0-3)
     Nodes=b1 CPU_IDs=2 Mem=1000 GRES=gpu:2(IDX:0,3),shard:1(IDX:0)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
"""
NODES = """NodeName=a1 Gres=gpu:a100:4(S:0) NodeAddr=10.0.0.1 NodeHostName=a1 State=MIXED Weight=1
NodeName=a2 Arch=x86_64 NodeAddr=a2.cluster NodeHostName=a2 State=ALLOCATED+DRAIN Weight=1
NodeName=b1 NodeAddr=10.0.0.3 NodeHostName=b1 State=DOWN* ThreadsPerCore=1
"""
ON_CPU = Layout(nodes=1, ranks_per_node=1, gpus_per_worker=0, bundle={"CPU": 1.0}, slots=9)


def expanded(nodes: str) -> list[str]:
    return {"a[1-2]": ["a1", "a2"]}.get(nodes, [nodes])


def test_share_of_each_node_is_read_from_the_job() -> None:
    assert read_shares(JOB, "7", expanded) == [
        NodeShare("a1", NodeCapacity(5, 4)),
        NodeShare("a2", NodeCapacity(5, 4)),
        NodeShare("b1", NodeCapacity(1, 2)),
    ]


def test_shares_of_other_jobs_of_an_array_are_not_those_of_the_job() -> None:
    task = JOB.replace("JobId=7 ", "JobId=8 ArrayJobId=7 ArrayTaskId=1 ").replace("=b1", "=b2")
    whole = JOB.replace("JobId=7 ", "JobId=7 ArrayJobId=7 ArrayTaskId=2 ")
    text = f"{task}\n{JOB.replace('JobId=7', 'JobId=77')}\n{whole}"
    assert [share.name for share in read_shares(text, "7", expanded)] == ["a1", "a2", "b1"]
    assert [share.name for share in read_shares(text, "8", expanded)] == ["a1", "a2", "b2"]


def test_address_and_state_of_each_node_are_read() -> None:
    assert read_states(NODES) == {
        "a1": NodeState("10.0.0.1", "MIXED"),
        "a2": NodeState("a2.cluster", "ALLOCATED+DRAIN"),
        "b1": NodeState("10.0.0.3", "DOWN*"),
    }


@pytest.fixture
def allocation(monkeypatch: pytest.MonkeyPatch) -> Allocation:
    """Of three nodes with two processors each; the second drains, the third is down."""
    job = "".join(f" Nodes={name} CPU_IDs=0-1 Mem=0 GRES=\n" for name in ("a1", "a2", "b1"))
    job = f"JobId=7 JobName=tune\n{job}"
    monkeypatch.setattr(slurm_allocation, "_ask", lambda *words: job if "job" in words else NODES)
    return Allocation("7")


def taken(allocation: Allocation) -> list[tuple[str, int]]:
    return [(node.host, place) for node, place in allocation.take(ON_CPU, {})]


def test_node_that_drains_is_taken_last_and_one_that_is_down_never(allocation: Allocation) -> None:
    assert taken(allocation) == [("a1", 0)]
    assert taken(allocation) == [("a1", 1)]
    assert taken(allocation) == []
    allocation.left_out.add("a1")
    assert taken(allocation) == [("a2", 0)]


@pytest.mark.parametrize(
    ("state", "is_away"),
    [
        ("ALLOCATED+REBOOT_REQUESTED", False),
        ("ALLOCATED+DRAIN+REBOOT_REQUESTED", False),
        ("ALLOCATED+POWER_DOWN", False),
        ("ALLOCATED+REBOOT_ISSUED", True),
        ("IDLE+POWERING_DOWN", True),
        ("IDLE+POWERED_DOWN", True),
        ("DOWN+NOT_RESPONDING", True),
        ("DOWN*", True),
    ],
)
def test_node_that_goes_after_its_jobs_is_taken_last_and_one_that_goes_now_never(
    monkeypatch: pytest.MonkeyPatch, allocation: Allocation, state: str, is_away: bool
) -> None:
    nodes = NODES.replace("DOWN*", state)
    monkeypatch.setattr(slurm_allocation, "_ask", lambda *_: nodes)
    assert taken(allocation) == [("a1", 0)]
    allocation.left_out |= {"a1", "a2"}
    assert taken(allocation) == ([] if is_away else [("b1", 0)])


def test_node_that_was_lost_is_avoided_and_its_place_is_free_again(allocation: Allocation) -> None:
    assert taken(allocation) == [("a1", 0)]
    allocation.give_back("a1", 0)
    allocation.avoided.add("a1")
    assert taken(allocation) == [("a1", 0)], "as the others are no better"


@pytest.mark.parametrize(
    ("indices", "visible", "chosen"),
    [
        ([0, 1], "4,5,6", "4,5"),
        ([1], "", "1"),
        ([], "4,5", ""),
        ([2], "GPU-a,GPU-b,GPU-c", "GPU-c"),
    ],
)
def test_devices_of_an_agent_are_among_those_of_its_step(
    indices: list[int], visible: str, chosen: str
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    assert relay.selected(indices, environment) == {"CUDA_VISIBLE_DEVICES": chosen}


@pytest.mark.parametrize(("left", "status"), [("", 0), ("process 7 (x, state D)", 4)])
def test_relay_gives_the_agent_the_variables_of_the_job_and_none_of_the_step(
    monkeypatch: pytest.MonkeyPatch, left: str, status: int
) -> None:
    started: dict[str, Any] = {}
    closed = threading.Event()

    class Agent:
        def __init__(self, host: str, log: str | None, env: dict[str, str], devices: Any) -> None:
            names = ("SLURM_NTASKS", "SRUN_DEBUG")
            started.update(host=host, env=env, step=[n for n in names if n in relay.os.environ])

        def read(self) -> bytes:
            closed.wait()
            return b""

        def close(self) -> str:
            closed.set()
            return left

    order = relay.AgentOrder("10.0.0.1", {"SLURM_JOB_ID": "7"}, [])
    monkeypatch.setattr(relay, "AgentProcess", Agent)
    monkeypatch.setattr(relay.os, "_exit", sys.exit)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(order.to_text().encode())))
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SRUN_DEBUG", "3")
    with pytest.raises(SystemExit) as ended:
        relay.main()
    assert ended.value.code == status
    assert started == {"host": "10.0.0.1", "env": {"SLURM_JOB_ID": "7"}, "step": []}
    assert json.loads(order.to_text())["devices"] == []


def test_address_of_loopback_gives_way_to_the_one_towards_another_node() -> None:
    assert slurm_allocation.reachable(["127.0.1.1"]) == ["127.0.1.1"], "a slot of one node"
    assert slurm_allocation.reachable(["10.0.0.1", "10.0.0.2"]) == ["10.0.0.1", "10.0.0.2"]
    nowhere = ["127.0.1.1", "no such host"]
    assert slurm_allocation.reachable(nowhere) == nowhere, "its agent says what is wrong"
    own, peer = slurm_allocation.reachable(["127.0.1.1", _own_address_outside_loopback()])
    assert own == peer, "both are on this machine"


def _own_address_outside_loopback() -> str:
    """Return an address of this machine; skip the test where the network has loopback alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this network has loopback alone")
        return str(probe.getsockname()[0])


def test_names_are_resolved_to_ipv4() -> None:
    assert slurm_allocation._resolved("localhost") == "127.0.0.1"
    assert slurm_allocation._resolved("no such host") == "no such host"


IN_SALLOC = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-2],b1"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for scontrol, which tells the nodes a1, a2 and b1. By squeue the job runs."""
    queue = tmp_path / "squeue"
    queue.write_text("#!/bin/sh\necho 7\n")
    queue.chmod(0o755)
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{NODES}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return program


def on_host(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)


@pytest.mark.parametrize("section", [LocalSection(kind="local"), RaySection(kind="ray")])
def test_shell_of_salloc_on_a_login_node_trains_nothing_there(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, section: Section
) -> None:
    on_host(monkeypatch, "login1.cluster")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    for name, value in IN_SALLOC.items():
        monkeypatch.setenv(name, value)
    told = "this machine, login1, is no node of Slurm job 7, whose nodes are"
    with pytest.raises(UnfitNodes, match=told) as refused:
        section._launcher(None)
    assert "`srun -N1 -n1 --pty autotune start" in str(refused.value)
    assert "launcher: slurm" in str(refused.value)


@pytest.mark.parametrize("host", ["a2", "a2.cluster.example"])
def test_node_of_a_job_is_known_by_its_short_name(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    on_host(monkeypatch, host)
    refuse_login_node(IN_SALLOC)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7"},
        {**IN_SALLOC, "SLURMD_NODENAME": "a1"},
    ],
    ids=["no job", "nodes unknown", "started by Slurm"],
)
def test_machine_that_is_not_known_to_be_none_of_the_job_is_taken(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    on_host(monkeypatch, "login1")
    refuse_login_node(environment)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("squeue", ""),
        ("squeue", "echo 'Invalid job id specified' >&2; exit 1"),
        ("scontrol", "echo 'Node a1 not found'"),
        ("scontrol", "echo away >&2; exit 1"),
    ],
)
def test_machine_is_taken_where_the_job_has_ended_or_slurm_does_not_tell_its_nodes(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, command: str, answer: str
) -> None:
    scontrol.with_name(command).write_text(f"#!/bin/sh\n{answer}\n")
    on_host(monkeypatch, "login1")
    refuse_login_node(IN_SALLOC)
