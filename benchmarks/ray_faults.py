"""Seconds from a fault of a Ray cluster to the next trial: three nodes of namespaces on this machine.

`python benchmarks/ray_faults.py [--json] [--ranks N] [--overhead] [NAME ...]`; as root, with namespaces.
With --overhead instead: what a trial takes besides its timed blocks, over one, two and three nodes.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.faults.ray_nodes import ray_nodes, refusal
from tests.faults.ray_strikes import STRIKES, RayStudy, survive


def overhead(nodes: int) -> dict[str, object]:
    """Of the trials of a study with a rank on each of so many nodes: the median, in seconds."""
    with tempfile.TemporaryDirectory() as folder, ray_nodes(Path(folder)) as cluster:
        study = RayStudy(cluster, Path(folder) / "project", ranks=nodes)
        study.start()
        study.wait_done()
        blocks = study.repository.attempts.blocks
        besides = [
            one.result.wall_seconds - sum(block.seconds for block in blocks(one.id))
            for one in study.recorded("search")[nodes:]  # the first on each slot starts its agents
        ]
    return {
        "nodes": nodes,
        "trials": len(besides),
        "overhead": round(statistics.median(besides), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(STRIKES), help="faults; all by default")
    parser.add_argument("--ranks", type=int, default=2, help="of a trial, a node each")
    parser.add_argument("--overhead", action="store_true", help="of trials, and no faults")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if why := refusal():
        sys.exit(why)
    rows = [overhead(count) for count in (1, 2, 3)] if given.overhead else []
    if rows and not given.json:
        print(*rows, sep="\n")
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
