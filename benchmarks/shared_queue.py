"""Does a shared queue lose, repeat or misorder studies? Many tiny ones of five owners, under faults.

    python -m benchmarks.shared_queue [--json] [--studies 500]

Four daemons serve one queue on PostgreSQL. Their trials are replayed. One of the last three is ended
with SIGKILL every ten seconds, and started again; the first lives to the end, for its memory,
descriptors and threads to be compared. The server is restarted after a third of the studies and after
two thirds. One owner may run one study at a time. What ran when is read from the history.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text

from autotune.config import StudySpec, secrets_withheld
from autotune.errors import StorageError
from autotune.service.daemon import Daemon
from launchers.replay import Answer, Launch, ReplayLauncher
from storage import Database, EventKind, Quota, Repository, StoredEvent, StoredStudy, StudyState
from tests.support.postgres import bring_back, own_server

QUEUE = "host:benchmark"
OWNERS = ("ann", "bob", "cyd", "dan", "eve")
LIMITED = "eve"
"""Owner with a quota of one study at a time."""
DAEMONS = 4
KILL_SECONDS = 10.0
IDLE_SECONDS = 5.0
POLL_SECONDS = 0.25
TRIALS = 2
URGENT = 7
"""One study in so many has a priority."""
TOGETHER_SECONDS = 2.0
"""Claims within this time count as simultaneous: a daemon passes over what another one takes."""
MEASUREMENT = {
    "block_seconds": 1.0,
    "min_steps": 2,
    "warmup": 1.0,
    "max_measure_time": 5.0,
    "baseline_runs": 1,
    "finalists": 1,
    "rounds": 2,
    "ablation_rounds": 0,
}
_IMPORTED = multiprocessing.get_context("forkserver")
_IMPORTED.set_forkserver_preload(["autotune.service.daemon", "launchers.replay"])


def spec_of(name: str) -> dict[str, Any]:
    """Return the settings of a study, as they are stored."""
    return secrets_withheld.kept(
        StudySpec.model_validate(
            {
                "name": name,
                "workload": {"name": "gpt"},
                "resources": {"workers": 2},
                "search_space": {"micro_batch": [1, 2, 4]},
                "baseline": {"micro_batch": 2},
                "objective": {"global_batch_size": "free"},
                "sampler": "random",
                "budget": {"trials": TRIALS, "min_improvement": 0},
                "measurement": MEASUREMENT,
                "export": f"{name}.yaml",
            }
        )
    )


def trial(launch: Launch) -> Answer:
    """Return a rate that is larger with larger micro-batches, and a little noisy."""
    samples = float(launch.knobs["micro_batch"])
    return Answer(rate=launch.draw.gauss(1.0, 0.01) * samples / (samples + 3.0))


def serve(url: str, folder: str) -> None:
    """Run a daemon until the queue has been empty for some seconds."""
    os.setsid()
    os.chdir(folder)
    with Path("daemons.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    repository = Repository(Database(url), "daemon")
    daemon = Daemon(repository, QUEUE, open_launcher=lambda *_: ReplayLauncher(trial))
    daemon.serve(idle_seconds=IDLE_SECONDS)


class Site:
    """A server, a folder and the daemons."""

    def __init__(self, server: Any, folder: Path) -> None:
        self._server, self._folder = server, folder
        server.psql("create database shared")
        self.url = str(server.get_uri(database="shared"))
        self.repository = Repository(Database(self.url), "start")
        self.daemons: list[BaseProcess] = []
        self.kills = self.restarts = 0

    def submit(self, count: int) -> None:
        """Submit the studies of all owners, one owner after another."""
        draw = random.Random(0)
        for owner, number in itertools.product(OWNERS, range(count // len(OWNERS))):
            name = f"{owner}-{number}"
            folder = self._folder / owner
            folder.mkdir(exist_ok=True)
            self.repository.studies.submit(name, QUEUE, spec_of(name), str(folder), owner=owner)
            if not draw.randrange(URGENT):
                self.repository.studies.arrange(name, priority=1)
        self.repository.quotas.set(Quota(LIMITED, studies=1))

    def start(self, place: int | None = None) -> None:
        """Start a daemon, in the place of one that has ended or as another one."""
        process = _IMPORTED.Process(target=serve, args=(self.url, str(self._folder)))
        process.start()
        if place is None:
            self.daemons.append(process)
        else:
            self.daemons[place] = process

    def run(self) -> None:
        """Strike until every study has ended."""
        places = itertools.cycle(range(1, DAEMONS))
        total = self.repository.studies.count()
        next_kill = time.monotonic() + KILL_SECONDS
        while (ended := self.ended()) < total:
            time.sleep(POLL_SECONDS)
            if ended >= total * (self.restarts + 1) / 3 and self.restarts < 2:
                self._restart_server()
            if time.monotonic() >= next_kill:
                self._kill(next(places))
                next_kill += KILL_SECONDS

    def _kill(self, place: int) -> None:
        process = self.daemons[place]
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            self.kills += 1
        self.start(place)

    def _restart_server(self) -> None:
        self.restarts += 1
        self._server.stop()
        bring_back(self._server)

    def ended(self) -> int:
        """Return the number of studies that have ended; 0 while the server is away."""
        done = text("select count(*) from autotune_study where state not in ('QUEUED', 'RUNNING')")
        with contextlib.suppress(StorageError), self.repository.database.engine.connect() as found:
            return int(found.execute(done).scalar_one())
        return 0

    def sizes(self) -> dict[str, float]:
        """Return what the longest-lived daemon, the database and the folder take."""
        daemon = psutil.Process(self.daemons[0].pid)
        size = text("select pg_database_size('shared')")
        with self.repository.database.engine.connect() as connection:
            database = int(connection.execute(size).scalar_one())
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        return {
            "rss_mib": daemon.memory_info().rss / 2**20,
            "descriptors": daemon.num_fds(),
            "threads": daemon.num_threads(),
            "database_mib": database / 2**20,
            "folder_mib": sum(path.stat().st_size for path in files) / 2**20,
            "files": len(files),
        }


# What the records show


@dataclasses.dataclass
class Claimed:
    """A claim of a study that waited."""

    study: StoredStudy
    at: float
    submitted: float


def claims(repository: Repository) -> list[Claimed]:
    """Return the first claim of each study, in order."""
    studies = {study.id: study for study in repository.studies.all()}
    found: dict[int, Claimed] = {}
    since: dict[int, float] = {}
    for event in repository.events.of():
        since.setdefault(event.study_id, event.at)
        if event.what == EventKind.BEGUN and event.study_id not in found:
            begun = since[event.study_id]
            found[event.study_id] = Claimed(studies[event.study_id], event.at, begun)
    return sorted(found.values(), key=lambda claim: claim.at)


def hours_at(runs: list[tuple[float, str, float]], at: float) -> dict[str, float]:
    """Return the device hours of each owner's attempts that had ended."""
    used: dict[str, float] = dict.fromkeys(OWNERS, 0.0)
    for ended, owner, hours in runs:
        if ended <= at:
            used[owner] += hours
    return used


def out_of_order(repository: Repository) -> list[str]:
    """Return claims that came before a study that had to come first, and still waited."""
    runs = [
        (run.ended, study.owner, run.result.wall_seconds)
        for study in repository.studies.all()
        for run in repository.attempts.of(study.id)
        if run.ended is not None
    ]
    all_claims = claims(repository)
    wrong = []
    for index, claim in enumerate(all_claims):
        before, after = hours_at(runs, claim.at - TOGETHER_SECONDS), hours_at(runs, claim.at)
        for other in all_claims[index + 1 :]:
            if other.study.owner == LIMITED or other.at < claim.at + TOGETHER_SECONDS:
                continue
            if other.submitted < claim.at and comes_before(other.study, claim.study, before, after):
                wrong.append(f"{claim.study.name} before {other.study.name}")
                break
    return wrong


def comes_before(
    other: StoredStudy, claimed: StoredStudy, before: dict[str, float], after: dict[str, float]
) -> bool:
    """Return whether a study had to be claimed before the one that was, whatever the claim saw.

    It saw each run that had ended some time before it, and of those that ended since some and others
    not. So the owner of the other study had used at most what `after` says, and the owner of the
    claimed one at least what `before` says.
    """
    if other.priority != claimed.priority:
        return other.priority > claimed.priority
    if other.owner == claimed.owner:
        return other.id < claimed.id
    return (after[other.owner], other.id) < (before[claimed.owner], claimed.id)


def most_at_a_time(events: list[StoredEvent], owner: str) -> int:
    """Return the largest number of studies of an owner that ran at a time."""
    running: set[int] = set()
    most = 0
    for event in events:
        if not event.study.startswith(f"{owner}-"):
            continue
        if event.what in (EventKind.BEGUN, EventKind.TAKEN_OVER):
            running.add(event.study_id)
        elif event.what in (EventKind.DONE, EventKind.FAILED, EventKind.REQUEUED):
            running.discard(event.study_id)
        most = max(most, len(running))
    return most


def judged(repository: Repository) -> dict[str, Any]:
    """Return how many studies and trials were lost, run twice or out of order."""
    events, studies = repository.events.of(), repository.studies.all()
    kinds = Counter(event.what for event in events)
    done = Counter(event.study_id for event in events if event.what == EventKind.DONE)
    lost, twice = 0, 0
    for study in studies:
        recorded = [run for run in repository.attempts.of(study.id) if run.recorded]
        times = Counter((run.trial, run.purpose, run.round) for run in recorded)
        searched = {trial for trial, purpose, _ in times if purpose == "search"}
        lost += study.state != StudyState.DONE or len(searched) < TRIALS
        twice += done[study.id] > 1 or max(times.values(), default=0) > 1
    return {
        "lost": lost,
        "run_twice": twice,
        "out_of_order": len(out_of_order(repository)),
        "most_of_limited_owner": most_at_a_time(events, LIMITED),
        "taken_over": kinds[EventKind.TAKEN_OVER],
        "requeued": kinds[EventKind.REQUEUED],
    }


@contextlib.contextmanager
def running_site(studies: int) -> Iterator[Site]:
    """Open a site with its studies and daemons; end the daemons in the end."""
    with own_server() as server, tempfile.TemporaryDirectory() as folder:
        site = Site(server, Path(folder))
        site.submit(studies)
        for _ in range(DAEMONS):
            site.start()
        try:
            yield site
        finally:
            for daemon in site.daemons:
                daemon.terminate()
                daemon.join()
            site.repository.database.engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.monotonic()
    with running_site(arguments.studies) as site:
        while site.ended() < DAEMONS:  # each has imported and run what it needs
            time.sleep(POLL_SECONDS)
        start = site.sizes()
        site.run()
        end = site.sizes()
        found = {
            "studies": site.repository.studies.count(),
            "seconds": time.monotonic() - began,
            "killed": site.kills,
            "restarts": site.restarts,
            **judged(site.repository),
            "start": start,
            "end": end,
        }
    if arguments.json:
        json.dump(found, sys.stdout, indent=2)
        return
    for name, value in found.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
