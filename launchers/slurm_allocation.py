"""Nodes of a Slurm allocation: what each has for the job, where it is, and how it is at present."""

import math
import os
import re
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import ClusterAway, LauncherError, UnfitNodes
from launchers.base import Resources
from launchers.layout import Layout, NodeCapacity, on_devices, plan
from launchers.placement import AvoidedNodes, ClusterNode, choose

JOB = "SLURM_JOB_ID"
OUTSIDE = (
    "launcher: slurm runs inside an allocation of Slurm, and this process is in none: `autotune submit "
    "STUDY.yaml -- OPTIONS` submits the study with these options of sbatch, `salloc` gives an "
    "allocation to start it in"
)
_NODES = "SLURM_JOB_NODELIST"
_OF_NODE = "SLURMD_NODENAME"
"""Variable of all that Slurm has started on a node: batch scripts and steps."""
_SECONDS = 60.0
"""Timeout of a query: a busy slurmctld takes its time, and one that is restarted is waited for."""
_FRESH_SECONDS = 5.0
"""Age up to which the states of the nodes are taken as they are: slots open side by side."""
_JOBS = re.compile(r"^(?=JobId=)", re.MULTILINE)
"""Begin of each job."""
_SHARES = re.compile(r"^\s*Nodes=(\S+) CPU_IDs=(\S+) Mem=\S+ GRES=(\S*)", re.MULTILINE)
_DEVICES = re.compile(r"\bgpu(?::[^:(,]+)?:(\d+)")
_NODE = re.compile(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+) .*?\bState=(\S+)", re.MULTILINE)
_HOST = re.compile(r"\bNodeHostName=([^.\s]+)")
"""Short name of a node's host, which the node itself may not be called by."""
_AWAY = re.compile(r"\bDOWN|FAIL|NOT_RESPONDING|REBOOT(?!_REQUESTED)|POWER(?!_DOWN\b)|\*")
"""States of a node that starts no step. `*`: it does not answer."""
_LEAVING = re.compile(r"DRAIN|MAINT|REBOOT_REQUESTED|POWER_DOWN\b")
"""States of a node that goes once its jobs have ended."""


@dataclass(frozen=True)
class NodeShare:
    """Part of a node that a job has."""

    name: str
    capacity: NodeCapacity


@dataclass(frozen=True)
class NodeState:
    """Address of a node, and its state in Slurm's words, such as `ALLOCATED+DRAIN`."""

    address: str
    state: str


class Allocation:
    """Nodes of a job, and the places on them that slots hold."""

    def __init__(self, job: str) -> None:
        """Ask Slurm for the nodes of a job."""
        self.job = job
        self.avoided = AvoidedNodes()
        self.left_out: set[str] = set()
        """Nodes that no slot takes, unless it has been there."""
        told = _ask("scontrol", "show", "job", "--details", job)
        self._shares = read_shares(told, job, _hostnames)
        self._held: dict[str, set[int]] = defaultdict(set)
        """Numbers of the bundles that slots hold, by node."""
        self._states: dict[str, NodeState] = {}
        self._asked = -math.inf
        """Monotonic time at which the states of the nodes were asked for last."""
        self._lock = threading.Lock()
        if not self._shares:
            raise LauncherError(f"Slurm names no nodes of job {job}: it has ended, or is suspended")

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self._shares)

    def plan(self, resources: Resources) -> Layout:
        """Return the layout of slots on the nodes that are not left out.

        Raises:
            NotHere: the nodes are too small.
        """
        capacities = [s.capacity for s in self._shares if s.name not in self.left_out]
        return plan(on_devices(resources, capacities), capacities)

    def take(self, layout: Layout, own: Mapping[str, int]) -> list[tuple[ClusterNode, int]]:
        """Take places for a slot.

        Nodes that were lost lately or that are to leave are taken where there are no others.

        Args:
            own: nodes that the slot may keep, with the number of its bundle there.

        Returns:
            Each node with the number of the slot's bundle there; empty if there is no room.
        """
        with self._lock:
            return self._take(layout, own)

    def _take(self, layout: Layout, own: Mapping[str, int]) -> list[tuple[ClusterNode, int]]:
        states = self._current_states()
        leaving = {name for name, its in states.items() if _LEAVING.search(its.state)}
        nodes = [
            self._node(share, states[share.name].address, layout.bundle)
            for share in self._shares
            if share.name in states
            and (share.name not in self.left_out or share.name in own)
            and not _AWAY.search(states[share.name].state)
        ]
        taken = {name: len(held) for name, held in self._held.items()}
        chosen = choose(layout, nodes, self.avoided.now() | leaving, taken)
        addresses = reachable([_resolved(node.address) for node in chosen])
        return [
            (replace(node, address=address), self._hold(node.id, own.get(node.id, 0)))
            for node, address in zip(chosen, addresses, strict=True)
        ]

    def give_back(self, node: str, place: int) -> None:
        """Give a place on a node back."""
        with self._lock:
            self._held[node].discard(place)

    def _current_states(self) -> dict[str, NodeState]:
        if time.monotonic() - self._asked > _FRESH_SECONDS:
            names = ",".join(share.name for share in self._shares)
            self._states = read_states(_ask("scontrol", "show", "node", "--oneliner", names))
            self._asked = time.monotonic()
        return self._states

    def _node(self, share: NodeShare, address: str, bundle: Mapping[str, float]) -> ClusterNode:
        has = {"CPU": float(share.capacity.cpus), "GPU": float(share.capacity.gpus)}
        held = len(self._held[share.name])
        free = {kind: amount - held * bundle.get(kind, 0.0) for kind, amount in has.items()}
        return ClusterNode(share.name, address, share.name, has, free)

    def _hold(self, node: str, wanted: int) -> int:
        held = self._held[node]
        numbers = (wanted, *range(len(held) + 1))
        place: int = next(number for number in numbers if number not in held)
        held.add(place)
        return place


def refuse_login_node(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to train on this machine within a job of Slurm whose nodes are others.

    That is so in a shell of salloc on a login node. Where Slurm does not tell, or the job has ended,
    nothing is refused: a terminal that was opened within the job keeps its variables.

    Raises:
        UnfitNodes: this machine is none of the job's nodes.
    """
    job, nodes = environment.get(JOB), environment.get(_NODES)
    if not job or not nodes or _OF_NODE in environment:
        return
    try:
        runs = _ask("squeue", "--noheader", "--jobs", job, "--states", "R").strip()
        hosts = runs and _HOST.findall(_ask("scontrol", "show", "node", "--oneliner", nodes))
    except ClusterAway:
        return
    own = socket.gethostname().partition(".")[0]
    if hosts and own not in hosts:
        raise UnfitNodes(
            f"this machine, {own}, is no node of Slurm job {job}, whose nodes are {nodes}: `srun -N1 "
            "-n1 --pty autotune start STUDY.yaml --foreground` trains on one of them, and launcher: "
            "slurm on all"
        )


def read_shares(text: str, job: str, hostnames: Callable[[str], Sequence[str]]) -> list[NodeShare]:
    """Return the nodes of a job by the answer of `scontrol show job --details`.

    Under the number of an array, or of a heterogeneous job, Slurm tells all of its jobs.

    Args:
        hostnames: expands Slurm's notation of several nodes.
    """
    own = "".join(one for one in _JOBS.split(text) if one.startswith(f"JobId={job} "))
    return [
        NodeShare(name, NodeCapacity(_count(cpus), sum(map(int, _DEVICES.findall(devices)))))
        for nodes, cpus, devices in _SHARES.findall(own)
        for name in hostnames(nodes)
    ]


def read_states(text: str) -> dict[str, NodeState]:
    """Return the nodes by the answer of `scontrol show node --oneliner`."""
    return {name: NodeState(address, state) for name, address, state in _NODE.findall(text)}


def _count(ids: str) -> int:
    """Return the number of processors in a text such as `0-3,8`."""
    count = 0
    for part in ids.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _hostnames(nodes: str) -> Sequence[str]:
    if "[" not in nodes and "," not in nodes:
        return [nodes]
    return _ask("scontrol", "show", "hostnames", nodes).split()


def _resolved(address: str) -> str:
    """Return an IPv4 address, not of loopback if there is another; the text itself if there is none.

    gloo takes the interface by its IPv4 address. An agent says what is wrong with any other text.
    """
    try:
        found = socket.getaddrinfo(address, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return address
    addresses = [str(one[4][0]) for one in found]
    return next((one for one in addresses if not _is_loopback(one)), addresses[0])


def reachable(addresses: Sequence[str]) -> list[str]:
    """Return addresses by which the nodes of a slot reach each other.

    Debian writes a host's own name with 127.0.1.1 into its /etc/hosts. The address by which that host,
    on which this process runs, reaches another of these nodes takes its place.
    """
    peer = next((one for one in addresses if not _is_loopback(one)), None)
    if peer is None:
        return list(addresses)
    return [_own_address(peer, one) if _is_loopback(one) else one for one in addresses]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _own_address(peer: str, loopback: str) -> str:
    """Return this host's address on the way to another one, or that of loopback if there is no way.

    Nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return loopback
        return str(probe.getsockname()[0])


def _ask(*command: str) -> str:
    """Return what a program of Slurm answers."""
    try:
        found = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterAway(f"Slurm does not answer: {error}") from None
    if found.returncode:
        raise ClusterAway(f"Slurm does not answer: {' '.join(command)}: {found.stderr.strip()}")
    return found.stdout
