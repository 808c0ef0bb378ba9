"""Many processes poll the SQLite file of a study that is being written, as dashboards do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.service.daemon import this_cluster
from autotune.service.submission import submit
from autotune.spec import load
from storage import AttemptResult, Database, Repository
from tests.contract.storage.making import block
from tests.fault_table import Tally
from tests.steering import write_study

pytestmark = [pytest.mark.timeout(1800), pytest.mark.fault(10)]

ROOT = Path(__file__).parents[2]
READERS = 32
PROCESSES = 4
POLLER = """
import json, sys, threading
from autotune.views.overview import status_of
from storage import Database, Repository

over, looks, errors = threading.Event(), [], []

def poll():
    repository = Repository(Database(sys.argv[1]))
    while not over.is_set():
        try:
            status_of(repository, "tiny")
            looks.append(1)
        except Exception as error:
            errors.append(repr(error))

readers = [threading.Thread(target=poll) for _ in range(int(sys.argv[2]))]
for reader in readers:
    reader.start()
print("polling", flush=True)
sys.stdin.readline()
over.set()
for reader in readers:
    reader.join()
print(json.dumps({"looks": len(looks), "errors": errors}))
"""


@pytest.mark.parametrize("results", [20, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_lock_error_surfaces(tmp_path: Path, tally: Tally, results: int) -> None:
    url = f"sqlite:///{tmp_path}/autotune.db"
    repository = Repository(Database(url))
    study = submit(repository, load(write_study(tmp_path)), tmp_path)
    command = [sys.executable, "-c", POLLER, url, str(READERS // PROCESSES)]
    pollers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(PROCESSES)
    ]
    try:
        assert [poller.stdout.readline() for poller in pollers if poller.stdout] == [
            "polling\n"
        ] * PROCESSES
        write(repository, study.id, results)
        told = [json.loads(poller.communicate("\n")[0]) for poller in pollers]
    finally:
        for poller in pollers:
            poller.kill()
    tally.tried = sum(each["looks"] + len(each["errors"]) for each in told) + results
    tally.survived = tally.tried - sum(len(each["errors"]) for each in told)
    attempts = repository.attempts.of(study.id)
    tally.lost = results - sum(not attempt.running for attempt in attempts)
    assert [error for each in told for error in each["errors"]] == []
    assert all(each["looks"] for each in told)
    assert tally.lost == 0


def write(repository: Repository, study: int, results: int) -> None:
    lease = repository.leases.acquire(this_cluster(), "here", 1, 600)
    assert lease is not None
    repository.studies.claim(lease)
    for trial in range(results):
        attempt = repository.attempts.begin(lease, study, trial, {})
        done = AttemptResult("COMPLETE", throughput=2.0)
        repository.attempts.finish(lease, attempt.id, done, [block(0)])
