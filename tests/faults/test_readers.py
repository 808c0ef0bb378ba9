"""Many processes poll the SQLite file of a study that is being written, as dashboards do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import RandomSampler

from autotune.config import load
from autotune.service.queues import this_queue
from autotune.service.submission import submit
from autotune.study.dashboard_sync import tell_result
from storage import AttemptResult, Database, Lease, LeaseHolder, Repository, TrialLedger
from tests.contract.storage.making import block
from tests.support.fault_table import Tally
from tests.support.steering import write_study

pytestmark = [pytest.mark.timeout(1800), pytest.mark.fault(10)]

ROOT = Path(__file__).parents[2]
READERS = 8
"""Of each process."""
KNOBS: dict[str, BaseDistribution] = {"micro_batch": CategoricalDistribution([1, 2, 4])}
TRIAL_EVERY = 10
"""Results: what Optuna keeps of a trial takes far longer to write."""
POLLER = """
import io, json, sys, threading
from wsgiref.util import setup_testing_defaults

import optuna_dashboard
from autotune.views.overview import status_of
from storage import Database, Repository

over, looks, pages, errors = threading.Event(), [], [], []

def poll(look, seen):
    last = False
    while not last:
        last = over.is_set()
        try:
            look()
            seen.append(1)
        except Exception as error:
            errors.append(repr(error))

def reader():
    repository = Repository(Database(sys.argv[1]))
    poll(lambda: status_of(repository, "tiny"), looks)

def dashboard():
    page = optuna_dashboard.wsgi(Database(sys.argv[1]).optuna())

    def fetch(path):
        environ, told = {"PATH_INFO": path, "wsgi.errors": io.StringIO()}, []
        setup_testing_defaults(environ)
        b"".join(page(environ, lambda status, headers, *_: told.append(status)))
        assert told == ["200 OK"], (path, told, environ["wsgi.errors"].getvalue())

    poll(lambda: [fetch("/api/studies"), fetch("/api/studies/1")], pages)

readers = [threading.Thread(target=reader) for _ in range(int(sys.argv[2]))]
readers.append(threading.Thread(target=dashboard))
for reader in readers:
    reader.start()
print("polling", flush=True)
sys.stdin.readline()
over.set()
for reader in readers:
    reader.join()
print(json.dumps({"looks": len(looks), "pages": len(pages), "errors": errors}))
"""


@pytest.mark.long
@pytest.mark.sample
@pytest.mark.parametrize(
    ("results", "processes"), [(10, 1), pytest.param(1500, 4, marks=pytest.mark.slow)]
)
def test_no_lock_error_surfaces(tmp_path: Path, tally: Tally, results: int, processes: int) -> None:
    url = f"sqlite:///{tmp_path}/autotune.db"
    repository = Repository(Database(url))
    study = submit(repository, load(write_study(tmp_path)), tmp_path)
    claim = repository.claims.take(this_queue(), LeaseHolder("here", 1, 600))
    assert claim is not None
    lease = claim.lease
    ledger = TrialLedger(repository.database, study.name, RandomSampler(0), lease)
    command = [sys.executable, "-c", POLLER, url, str(READERS)]
    pollers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(processes)
    ]
    try:
        assert [poller.stdout.readline() for poller in pollers if poller.stdout] == [
            "polling\n"
        ] * processes
        write(repository, ledger, lease, study.id, results)
        told = [json.loads(poller.communicate("\n")[0]) for poller in pollers]
    finally:
        for poller in pollers:
            poller.kill()
    tally.tried = (
        sum(each["looks"] + each["pages"] + len(each["errors"]) for each in told) + results
    )
    tally.survived = tally.tried - sum(len(each["errors"]) for each in told)
    attempts = repository.attempts.of(study.id)
    tally.lost = results - sum(not attempt.running for attempt in attempts)
    assert [error for each in told for error in each["errors"]] == []
    assert all(each["looks"] and each["pages"] for each in told)
    assert tally.lost == 0


def write(
    repository: Repository, ledger: TrialLedger, lease: Lease, study: int, results: int
) -> None:
    done = AttemptResult("COMPLETE", throughput=2.0)
    for trial in range(results):
        attempt = repository.attempts.begin(lease, study, trial, {})
        repository.attempts.finish(lease, attempt.id, done, [block(0)])
        if trial % TRIAL_EVERY == 0:
            tell_result(ledger, ledger.ask(KNOBS).number, done, "")
