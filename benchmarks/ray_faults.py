"""Seconds from a fault of a Ray cluster to the next trial: three nodes of namespaces on this machine.

`python benchmarks/ray_faults.py [--json] [--ranks N] [--overhead] [NAME ...]`; as root, with namespaces.
With --overhead instead: what a trial takes besides its timed blocks, over one, two and three nodes, and
the same where the name server does not answer.
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
from tests.faults.ray_nodes import RayNodes, ray_nodes
from tests.faults.ray_strikes import STRIKES, RayStudy, survive
from tests.support.nodes import refusal
from tests.support.silent_names import SERVER


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
        study = RayStudy(cluster, Path(folder) / "project", ranks=nodes)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(STRIKES), help="faults; all by default")
    parser.add_argument("--ranks", type=int, default=2, help="of a trial, a node each")
    parser.add_argument("--overhead", action="store_true", help="of trials, and no faults")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if why := refusal():
        sys.exit(why)
    rows = []
    for names, count in itertools.product((True, False), (1, 2, 3)) if given.overhead else ():
        rows.append(overhead(count, names=names))
        if not given.json:
            print(rows[-1], flush=True)
    for name in [] if given.overhead else given.names:
        # A cluster each: what one fault leaves is no part of the next one.
        with tempfile.TemporaryDirectory() as folder, ray_nodes(Path(folder)) as nodes:
            study = RayStudy(nodes, Path(folder) / "project", ranks=given.ranks)
            recovery = survive(study, STRIKES[name])
        rows.append({"fault": name, "ranks": given.ranks, **dataclasses.asdict(recovery)})
        if not given.json:
            print(rows[-1], flush=True)
    if given.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
