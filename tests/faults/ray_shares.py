"""Two owners with two studies each on one Ray cluster of three nodes: what each of them gets of it."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config import load, secrets_withheld
from autotune.service.queues import queue_for
from tests.faults.cluster_study import PATIENCE_SECONDS
from tests.faults.ray_nodes import ADDRESS, RayNodes
from tests.faults.ray_strikes import RayStudy
from tests.support.waiting import wait_for

CPUS = {"head": 2, "near": 3, "far": 3}
"""Processors of each node: eight slots, which both 1:1 and 3:1 divide among four studies."""
OWNERS = ("ann", "ann", "bob", "bob")
_SLOTS = sum(CPUS.values())
_WELL = ("COMPLETE", "PRUNED", "RUNNING")
_SAMPLER = """
import json, time, ray
from ray.util.placement_group import placement_group_table
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
while True:
    names = [g["name"] for g in placement_group_table().values() if g["state"] == "CREATED"]
    print(json.dumps([time.time(), [n.split("/")[1:3] for n in names if "/" in n]]), flush=True)
    time.sleep(1)
"""


@dataclass(frozen=True)
class Shares:
    """Figures of one measurement of shares by two owners.

    Attributes:
        weights: of the owners.
        settled: seconds from the last study's submission until each study had its slots.
        held: device seconds that each owner's slots were held, in the window.
        ran: device seconds of each owner's attempts that ended in the window.
        studies: device seconds held by study.
        lost: attempts, of all studies, that were lost or blamed.
        repeated: trials that are recorded more than once.
    """

    weights: Mapping[str, float]
    settled: float
    window: float
    held: Mapping[str, float]
    ran: Mapping[str, float]
    studies: Mapping[str, float]
    lost: int
    repeated: int

    @property
    def ratio(self) -> float:
        """Device time of ann over that of bob."""
        return self.held["ann"] / self.held["bob"]


class SharedCluster:
    """Four studies, a daemon that runs all of them at a time, and samples of what each holds."""

    def __init__(self, nodes: RayNodes, folder: Path, weights: Mapping[str, float]) -> None:
        self.nodes = nodes
        self._folder = folder
        self._weights = weights
        self.studies: list[RayStudy] = []
        self._owners: dict[str, str] = {}
        self._samples = folder / "samples"

    def start(self) -> None:
        """Begin the first study alone, which takes the whole cluster, then the others."""
        self._folder.mkdir(parents=True, exist_ok=True)
        program = self._folder / "sampler.py"
        program.write_text(_SAMPLER)
        self._sh(f"exec {sys.executable} -P {program} > {self._samples} 2> {program}.log")
        self._submit(1)
        for owner, weight in self._weights.items():
            self.studies[0].repository.quotas.change(owner, {"weight": weight})
        url, cluster = self.studies[0].url, f"ray:{ADDRESS}"
        self._sh(
            f"exec {sys.executable} -P -m autotune daemon --cluster {cluster} --studies 4 "
            f"--storage {url} > {self._folder}/daemon.log 2>&1"
        )
        wait_for(lambda: self.slots()["tiny-0"] == _SLOTS, "it has all", PATIENCE_SECONDS)
        self._submit(len(OWNERS))

    def _sh(self, line: str) -> None:
        self.nodes.near.spawn("sh", "-c", line, cwd=self._folder)

    def _submit(self, count: int) -> None:
        for number in range(len(self.studies), count):
            name, owner = f"tiny-{number}", OWNERS[number]
            study = RayStudy(self.nodes, self._folder / name, ranks=1, trials=2000)
            study.name, study.url = name, f"sqlite:///{self._folder}/autotune.db"
            study.write(
                resources={"workers": 1, "gpus_per_worker": 0, "max_concurrent_trials": _SLOTS},
                search_space={"micro_batch": [1, 2, 4, 8], "log_interval": list(range(1, 300))},
            )
            spec = load(study.folder / "study.yaml")
            study.repository.studies.submit(
                name,
                queue_for(spec),
                secrets_withheld.kept(spec),
                str(study.folder),
                str(study.folder / "study.yaml"),
                owner=owner,
            )
            self.studies.append(study)
            self._owners[name] = owner

    def samples(self, since: float = 0.0) -> list[tuple[float, Sequence[tuple[str, str]]]]:
        """Return when each sample was taken, with owner and study of each slot that was held."""
        lines = self._samples.read_text().splitlines() if self._samples.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("]]")]
        return [(at, [(o, s) for o, s in names]) for at, names in found if at >= since]

    def slots(self) -> Counter[str]:
        """Return the slots that each study holds at present."""
        taken = self.samples()
        return Counter(study for _, study in taken[-1][1]) if taken else Counter()

    def measure(self, expected: Mapping[str, int], window: float) -> Shares:
        """Wait until each study has its slots, and measure from then on.

        Args:
            expected: slots of each study.
            window: seconds.
        """
        began = time.time()
        wait_for(lambda: self.slots() == Counter(expected), f"{expected}", PATIENCE_SECONDS)
        settled = time.time() - began
        since = time.time()
        time.sleep(window)
        held, of_study, ran = Counter[str](), Counter[str](), Counter[str]()
        taken = self.samples(since)
        each = window / len(taken)
        for _, names in taken:
            for owner, study in names:
                held[owner] += each
                of_study[study] += each
        lost = repeated = 0
        for study in self.studies:
            for one in study.recorded():
                if one.ended and one.started >= since:
                    ran[self._owners[study.name]] += one.result.wall_seconds
            lost += sum(a.result.state not in _WELL for a in study.attempts())
            repeated += study.losses(0)[1]
        return Shares(
            self._weights, settled, window, dict(held), dict(ran), dict(of_study), lost, repeated
        )

    def stop(self) -> None:
        """Stop all studies; nothing of them is left."""
        for study in self.studies:
            study.repository.studies.request_stop(study.name)
        for study in self.studies:
            wait_for(lambda s=study: s.study().state.ended, "it is stopped", PATIENCE_SECONDS)
        for part in ("autotune daemon", "sampler.py"):
            for process in self.nodes.near.processes(part):
                process.terminate()
        self.studies[0].check_nothing_is_left()
