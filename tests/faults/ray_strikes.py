"""What is done to a Ray cluster while a study runs on it, and how long until its next trial is done."""

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from storage import MessageKind
from tests.faults.ray_nodes import ADDRESS, RayNodes
from tests.support.records import Records
from tests.support.steering import TINY_WORKLOAD, quick_measurement, write_study
from tests.support.waiting import wait_for

PATIENCE_SECONDS = 400.0
_NOTICE_SECONDS = 20
_AUTOTUNE = [sys.executable, "-P", "-m", "autotune"]
_OURS = ("autotune.worker", "launchers.ray_driver", "autotune daemon", "autotune start")


@dataclass
class Recovery:
    """What a strike has cost, in seconds.

    Attributes:
        back: from the strike until it was over, and Ray ran on all nodes again.
        next_trial: from the strike to the end of the next trial that was begun after it.
        longest: without any trial that ended well, from the strike on.
        lost: attempts that were lost or given up.
    """

    back: float
    next_trial: float
    longest: float
    lost: int


class RayStudy(Records):
    """A study whose daemon works on the node `near`."""

    def __init__(self, nodes: RayNodes, folder: Path, *, ranks: int, trials: int = 12) -> None:
        super().__init__(f"sqlite:///{folder}/autotune.db", "tiny")
        self.nodes = nodes
        self.folder = folder
        self.wanted = trials
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
        write_study(
            folder,
            name=self.name,
            storage=self.url,
            launcher={"kind": "ray", "address": ADDRESS},
            resources={"workers": ranks, "gpus_per_worker": 0},
            search_space={"micro_batch": [1, 2, 4, 8], "log_interval": list(range(1, 30))},
            budget={"trials": trials},
            measurement=quick_measurement(
                warmup=0.5, longest=1.5, search_precision=1e-3, block_seconds=0.1, step_deadline=60
            ),
        )

    def command(self, *arguments: str) -> str:
        """What a command prints, given on that node."""
        found = self.nodes.near.run(*_AUTOTUNE, *arguments, cwd=self.folder)
        return found.stdout + found.stderr

    def start(self) -> None:
        """Submit it, and leave its daemon to itself."""
        told = self.command("start", "study.yaml", "--detach")
        wait_for(lambda: self.study().state == "RUNNING", f"it runs; start said: {told}")

    def wait_for_trials(self, count: int) -> None:
        """So many have been recorded, and one more runs."""

        def enough() -> bool:
            searched = self.recorded("search")
            return len(searched) >= count and any(a.running for a in self.attempts("search"))

        wait_for(enough, f"{count} trials; said so far: {self.said}", PATIENCE_SECONDS)

    def completed_after(self, moment: float) -> float | None:
        """When the first trial ended well that was begun after that moment."""
        ends = [
            a.ended
            for a in self.recorded("search")
            if a.started > moment and a.ended and a.result.throughput
        ]
        return min(ends, default=None)

    def longest_pause(self, since: float) -> float:
        """Seconds without the end of a measured run of whatever purpose, from that moment on."""
        ends = [a.ended for a in self.recorded() if a.ended and a.ended > since]
        return max(later - earlier for earlier, later in itertools.pairwise([since, *sorted(ends)]))

    @property
    def said(self) -> str:
        """All messages."""
        messages = self.repository.messages.of(self.study().id)
        return "\n".join(message.text for message in messages)

    @property
    def waits(self) -> str:
        """What it says last that it waits for; empty if it says something else."""
        messages = self.repository.messages.of(self.study().id)
        waiting = messages and messages[-1].kind == MessageKind.WAITING
        return messages[-1].text if waiting else ""

    def seen_status(self) -> dict[str, Any]:
        """What `status --json` says on that node."""
        found = self.nodes.near.run(*_AUTOTUNE, "status", self.name, "--json", cwd=self.folder)
        return dict(json.loads(found.stdout))

    def wait_done(self) -> None:
        """It ends by itself, with all of its trials."""
        wait_for(lambda: self.study().state.ended, "the study ends", PATIENCE_SECONDS)
        assert self.study().state == "DONE", f"{self.study().error}\n{self.said}"
        self.assert_complete(trials=self.wanted)

    def processes(self) -> list[str]:
        """What is left of it on all nodes."""
        found = []
        for node in self.nodes.nodes:
            for process in node.processes():
                with contextlib.suppress(psutil.Error):
                    line = " ".join(process.cmdline())
                    if any(part in line for part in _OURS):
                        found.append(f"{node.name}: {line[:200]}")
        return found

    def check_nothing_is_left(self) -> None:
        """No process, no placement group, all processors free."""
        wait_for(lambda: not self.processes(), "no process of it is left", 120)
        self.nodes.wait_all_free()
        assert "CREATED" not in self.nodes.groups()


Strike = Callable[[RayNodes], Iterator[None]]


def raylet_beside_killed(nodes: RayNodes) -> None:
    """kill -9 of the raylet beside the daemon."""
    nodes.near.kill("/raylet/raylet")


def raylet_elsewhere_killed(nodes: RayNodes) -> None:
    """kill -9 of the raylet of another node."""
    nodes.far.kill("/raylet/raylet")


def head_restarted(nodes: RayNodes) -> None:
    """The head is killed, and started again after 10 s."""
    with nodes.head.down():
        time.sleep(10)


def head_away(nodes: RayNodes) -> None:
    """The same after 90 s."""
    with nodes.head.down():
        time.sleep(90)


def all_restarted(nodes: RayNodes) -> None:
    """All of Ray is killed on all nodes, and started again."""
    with nodes.far.down(), nodes.near.down(), nodes.head.down():
        time.sleep(3)


def node_frozen(nodes: RayNodes) -> None:
    """All processes of another node are stopped for 35 s."""
    with nodes.far.frozen():
        time.sleep(35)


def link_cut(nodes: RayNodes) -> None:
    """Nothing reaches another node for 24 s."""
    with nodes.cut(nodes.far):
        time.sleep(24)


def node_drained(nodes: RayNodes) -> None:
    """Another node is drained: 20 s after notice it is stopped, and Ray is started there again."""
    living = "(n for n in ray.nodes() if n['Alive'])"
    own = f"n['NodeManagerAddress'] == {nodes.far.address!r}"
    tell = f"print(*[n['NodeID'] for n in {living} if {own}])"
    nodes.near.must(
        str(Path(sys.executable).with_name("ray")),
        "drain-node",
        f"--address={ADDRESS}",
        f"--node-id={nodes.ask(tell)}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=maintenance",
        f"--deadline-remaining-seconds={_NOTICE_SECONDS}",
    )
    time.sleep(_NOTICE_SECONDS)
    nodes.far.kill()


def packets_lost(nodes: RayNodes) -> None:
    """One packet of a hundred to and from another node is lost, for a minute."""
    with nodes.losing(nodes.far, 0.01):
        time.sleep(60)


STRIKES: dict[str, Callable[[RayNodes], None]] = {
    "raylet beside the daemon killed": raylet_beside_killed,
    "raylet of another node killed": raylet_elsewhere_killed,
    "head killed, back after 10 s": head_restarted,
    "head killed, back after 90 s": head_away,
    "all of Ray killed and restarted": all_restarted,
    "another node frozen for 35 s": node_frozen,
    "link of another node cut for 24 s": link_cut,
    "another node drained": node_drained,
    "1 % of packets lost for 60 s": packets_lost,
}


_ENDED: dict[Callable[[RayNodes], None], tuple[str, ...]] = {
    raylet_beside_killed: ("near",),
    raylet_elsewhere_killed: ("far",),
    head_restarted: ("head", "near", "far"),
    head_away: ("head", "near", "far"),
    all_restarted: ("head", "near", "far"),
    node_frozen: (),
    link_cut: (),
    node_drained: ("far",),
    packets_lost: (),
}
"""Nodes on which Ray ends: without a storage of its own a new head is another cluster."""


def survive(study: RayStudy, strike: Callable[[RayNodes], None]) -> Recovery:
    """Strike in the middle of a study, and see it end well."""
    study.start()
    study.wait_for_trials(2)
    began = time.time()
    restarted = {node: node.starts for node in study.nodes.nodes if node.name in _ENDED[strike]}
    strike(study.nodes)
    wait_for(lambda: all(n.starts > past for n, past in restarted.items()), "Ray is up", 300)
    back = time.time() - began
    ended = wait_for(
        lambda: study.completed_after(began), "a trial after the strike", PATIENCE_SECONDS
    )
    study.wait_done()
    study.check_nothing_is_left()
    again = [a for a in study.attempts() if a.result.state in ("LOST", "ABANDONED")]
    return Recovery(
        round(back, 1), round(ended - began, 1), round(study.longest_pause(began), 1), len(again)
    )
