"""Seconds from a fault of a cluster to the next trial: three nodes of namespaces on this machine.

    python benchmarks/cluster_faults.py [--json] [--slurm] [--ranks N] [NAME ...]
    python benchmarks/cluster_faults.py [--json] --overhead | --shares WEIGHT | --look GROUPS

As root, with namespaces. The cluster is one of Ray, with --slurm one of Slurm. With --overhead
instead: what a trial takes besides its timed blocks, over one, two and three nodes of Ray, and the
same where the name server does not answer. With --shares instead: what two owners with two studies
each get of Ray, where the first one has that weight and the second one 1. With --look instead: how
long it takes to read so many placement groups.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from storage import StoredAttempt
from tests.faults import slurm_nodes as slurm
from tests.faults.cluster_study import Recovery
from tests.faults.ray_nodes import RayNodes, ray_nodes
from tests.faults.ray_shares import CPUS, SharedCluster
from tests.faults.ray_strikes import STRIKES, RayStudy, survive
from tests.faults.slurm_nodes import SlurmStudy, slurm_nodes
from tests.support.nodes import refusal
from tests.support.silent_names import SERVER

_WINDOW_SECONDS = 60.0
_COUNTED = 12
"""Trials of a study whose overhead is measured."""
_LOOK = """
import time
from ray.util.placement_group import placement_group, placement_group_table
names = [f"autotune/ann/study/1/01/{{n}}" for n in range({count})]
made = [placement_group([{{"CPU": 1}}], name=name) for name in names]
assert all(group.wait(60) for group in made)
took = []
for _ in range(5):
    began = time.perf_counter()
    placement_group_table()
    took.append(time.perf_counter() - began)
print(min(took))
"""


@contextlib.contextmanager
def asking_in_vain(cluster: RayNodes, folder: Path) -> Iterator[None]:
    """No node of the cluster is told a name."""
    servers = folder / "resolv.conf"
    servers.write_text("nameserver 127.0.0.1\n")
    with contextlib.ExitStack() as until_end:
        for node in cluster.nodes:
            asked = str(folder / f"{node.name}.asked")
            silent = node.spawn(sys.executable, "-c", SERVER, asked, cwd=Path("/"))
            until_end.callback(silent.kill)
            until_end.enter_context(node.showing(Path("/etc/resolv.conf"), servers))
        yield


def overhead(nodes: int, *, names: bool) -> dict[str, object]:
    """Return the median seconds of trials in warm workers, and of the runs of the confirmation.

    They are those of a study with a rank on each of so many nodes. The runs of the confirmation are
    launched and interleaved: the changes from one to another are in these, and the steps that are
    not timed after them.

    Args:
        names: whether the name server answers.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_nodes(Path(folder)) as cluster,
        contextlib.nullcontext() if names else asking_in_vain(cluster, Path(folder)),
    ):
        study = RayStudy(cluster, Path(folder) / "project", ranks=nodes, trials=_COUNTED)
        study.start()
        study.wait_done()
        slots = len(cluster.nodes) // nodes
        searched = study.recorded("search")[slots:]  # the first on each slot starts its agents
        taking_over = [one for one in searched if one.result.resident_of is not None]
        blocks = study.repository.attempts.blocks

        def besides(several: Sequence[StoredAttempt]) -> list[float]:
            timed = [sum(block.seconds for block in blocks(one.id)) for one in several]
            return [one.result.wall_seconds - own for one, own in zip(several, timed, strict=True)]

        return {
            "nodes": nodes,
            "names": "answered" if names else "not answered",
            "taken_over": _median(besides(taking_over)),
            "in_turn": _median(besides(study.recorded("confirm"))),
        }


def _median(seconds: list[float]) -> dict[str, float | None]:
    found = round(statistics.median(seconds), 2) if seconds else None
    return {"trials": len(seconds), "overhead": found}


def struck_on_ray(name: str, ranks: int) -> Recovery:
    """Return what a fault of Ray costs; each has a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, ray_nodes(Path(folder)) as nodes:
        return survive(RayStudy(nodes, Path(folder) / "project", ranks=ranks), STRIKES[name])


def struck_on_slurm(name: str, ranks: int) -> Recovery:
    """Return what a fault of Slurm costs; each has a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, slurm_nodes(Path(folder) / "nodes") as nodes:
        partition = slurm.PREEMPTIONS.get(name, slurm.UNDISTURBED)
        study = SlurmStudy(nodes, Path(folder) / "project", ranks=ranks, partition=partition)
        return slurm.survive(study, slurm.STRIKES.get(name, slurm.preempted))


def shares(weight: float) -> dict[str, object]:
    """Return the device time that two owners get, the first one with this weight."""
    heavy = round(sum(CPUS.values()) * weight / (weight + 1) / 2)
    light = sum(CPUS.values()) // 2 - heavy
    slots = {f"tiny-{number}": n for number, n in enumerate((heavy, heavy, light, light))}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nodes").mkdir()
        with ray_nodes(Path(folder) / "nodes", CPUS) as nodes:
            weights = {"ann": weight, "bob": 1.0}
            shared = SharedCluster(nodes, Path(folder) / "project", weights)
            shared.start()
            found = shared.measure(slots, _WINDOW_SECONDS)
            shared.stop()
    return {**dataclasses.asdict(found), "ratio": found.ratio}


def look(groups: int) -> dict[str, object]:
    """Return the seconds that a study takes to read so many placement groups of others."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_nodes(Path(folder), {"head": groups}) as nodes,
    ):
        return {"groups": groups, "seconds": float(nodes.ask(_LOOK.format(count=groups)))}


def rows(given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield what was asked for, as it is measured."""
    if given.overhead:
        for names, count in itertools.product((True, False), (1, 2, 3)):
            yield overhead(count, names=names)
    elif given.look:
        yield look(given.look)
    elif given.shares:
        yield shares(given.shares)
    else:
        strikes = {**slurm.STRIKES, **slurm.PREEMPTIONS} if given.slurm else STRIKES
        struck = struck_on_slurm if given.slurm else struck_on_ray
        for name in given.names or strikes:
            cost = dataclasses.asdict(struck(name, given.ranks))
            yield {"fault": name, "ranks": given.ranks, **cost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults; all by default")
    parser.add_argument("--slurm", action="store_true", help="of Slurm, and not of Ray")
    parser.add_argument("--ranks", type=int, default=2, help="of a trial, a node each")
    parser.add_argument("--overhead", action="store_true", help="of trials, and no faults")
    parser.add_argument("--shares", type=float, help="of owners, and no faults: a weight")
    parser.add_argument("--look", type=int, help="at so many placement groups, and no faults")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if why := refusal():
        sys.exit(why)
    found = []
    for row in rows(given):
        found.append(row)
        print(row, flush=True, file=sys.stderr if given.json else sys.stdout)
    if given.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
