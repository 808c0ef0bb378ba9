"""What is done to a Ray cluster while a study runs on it, and how long until its next trial is done."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.cluster_study import PATIENCE_SECONDS, ClusterStudy, Recovery
from tests.faults.ray_nodes import ADDRESS, RayNodes
from tests.support.waiting import wait_for

_NOTICE_SECONDS = 20
_TRIALS_OF_A_SLOT = 35
"""Trials that outlast every strike. A study that ends sooner hides a late one, and one that has no
trials left for its other slots stands still though nothing keeps it."""

_DRAIN = """
import time
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION
node, = (
    one["NodeID"]
    for one in ray.nodes()
    if one["Alive"] and one["NodeManagerAddress"] == "{node}"
)
end = int((time.time() + {seconds}) * 1000)
told = ray._raylet.GcsClient(address="{cluster}").drain_node(
    node, DRAIN_NODE_REASON_PREEMPTION, "maintenance", end
)
print(told[0])
"""
"""Program that drains a node. The command `ray drain-node` takes up to a minute to begin."""


class RayStudy(ClusterStudy):
    """A study whose daemon works on the node `near`."""

    ours = ("autotune.worker", "launchers.ray_driver", "autotune daemon", "autotune start")

    def __init__(
        self, nodes: RayNodes, folder: Path, *, ranks: int, trials: int | None = None
    ) -> None:
        """Write its file.

        Args:
            ranks: of a trial, a node each.
            trials: None: as many as outlast a strike.
        """
        launcher = {"kind": "ray", "address": ADDRESS}
        trials = trials or _TRIALS_OF_A_SLOT * (len(nodes.nodes) // ranks)
        super().__init__(nodes.nodes, nodes.near, folder, launcher, ranks=ranks, trials=trials)
        self.nodes = nodes

    def start(self) -> None:
        """Submit it, and leave its daemon to itself."""
        told = self.command("start", "study.yaml", "--detach")
        wait_for(lambda: self.study().state == "RUNNING", f"it runs; start said: {told}")

    def check_nothing_is_left(self) -> None:
        """No process, no placement group, all processors free."""
        wait_for(lambda: not self.processes(), "no process of it is left", 120)
        self.nodes.wait_all_free()
        assert "CREATED" not in self.nodes.groups()


Strike = Callable[[RayNodes], None]


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
    program = _DRAIN.format(node=nodes.far.address, cluster=ADDRESS, seconds=_NOTICE_SECONDS)
    assert nodes.ask(program) == "True", "the node is drained"
    time.sleep(_NOTICE_SECONDS)
    nodes.far.kill()


def packets_lost(nodes: RayNodes) -> None:
    """One packet of a hundred to and from another node is lost, for a minute."""
    with nodes.losing(nodes.far, 0.01):
        time.sleep(60)


STRIKES: dict[str, Strike] = {
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


_ENDED: dict[Strike, tuple[str, ...]] = {
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


def survive(study: RayStudy, strike: Strike) -> Recovery:
    """Strike in the middle of a study, see it end well, and return what the strike cost."""
    study.start()
    study.wait_for_trials(2)
    began = time.time()
    restarted = {node: node.starts for node in study.nodes.nodes if node.name in _ENDED[strike]}
    strike(study.nodes)
    took, state = time.time() - began, study.study().state
    assert not state.ended, f"{state} before the strike was over, {took:.0f} s: {study.said}"
    wait_for(lambda: all(n.starts > past for n, past in restarted.items()), "Ray is up", 300)
    back = time.time() - began
    ended = wait_for(
        lambda: study.completed_after(began), "a trial after the strike", PATIENCE_SECONDS
    )
    study.wait_done()
    study.check_nothing_is_left()
    return study.recovery(began, back, ended)
