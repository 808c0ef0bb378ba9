"""What holds the baseline back, told with the facts of the machine that the study ran on."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.views.composition import bottlenecks
from autotune.worker.rank.trace import PARTS
from search_spaces import Facts, defaults
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Database,
    Lease,
    LeaseHolder,
    Purpose,
    Repository,
    StoredBlock,
    StoredStudy,
)

NODE_OF_EIGHT = {"devices": [{"name": "H100", "capability": [9, 0]}] * 8}
TWO_NODES = Facts("cuda", 16, (9, 0), backend="nccl", nodes=2)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    database = Database(f"sqlite:///{tmp_path}/autotune.db")
    yield Repository(database)
    database.engine.dispose()


@pytest.fixture
def lease(repository: Repository) -> Lease:
    taken = repository.leases.acquire("host:here", LeaseHolder("here", 1, 60.0))
    assert taken is not None
    return taken


@pytest.fixture
def study(repository: Repository, lease: Lease) -> StoredStudy:
    """Its baseline is profiled: sixteen ranks wait for each other, as its first node saw it."""
    study = repository.studies.submit("first", "host:here", {}, "/w")
    shares = {"communication": 0.6, "compute": 0.4}
    block = StoredBlock(
        index=0,
        steps=8,
        samples=128,
        tokens=0,
        seconds=1.0,
        rank_seconds=[1.0] * 16,
        wait_seconds=0.0,
        loss=1.0,
        peak_bytes=1,
        kept=True,
        observed={
            "parts": {name: [shares.get(name, 0.0)] * 16 for name in PARTS},
            "peaks": [1] * 16,
            "batch_moves": {},
        },
    )
    profile = repository.attempts.begin(lease, study.id, 0, defaults(), Purpose.PROFILE)
    node = repository.environments.record(lease, NODE_OF_EIGHT)
    repository.attempts.finish(
        lease, profile.id, AttemptResult(AttemptState.COMPLETE), [block], node
    )
    return study


def found(repository: Repository) -> tuple[float | None, tuple[str, ...]]:
    """Return share and knobs of the exposed communication."""
    study = repository.studies.named("first")
    attempts = Attempts(repository.attempts.of(study.id), defaults())
    findings = bottlenecks(repository, study, attempts, defaults())
    [finding] = [one for one in findings if one.name == "communication"]
    return finding.share, finding.knobs


def test_two_nodes_of_eight_devices_are_told_what_answers_nccl(
    repository: Repository, lease: Lease, study: StoredStudy
) -> None:
    facts = dataclasses.asdict(TWO_NODES)
    repository.claims.record_facts(lease, study.id, facts)
    share, knobs = found(repository)
    assert share == pytest.approx(0.6)
    assert "nccl_algo" in knobs


def test_ranks_that_share_a_device_are_not(
    repository: Repository, lease: Lease, study: StoredStudy
) -> None:
    shared = dataclasses.replace(TWO_NODES, backend="gloo")
    repository.claims.record_facts(lease, study.id, dataclasses.asdict(shared))
    assert "nccl_algo" not in found(repository)[1]


def test_a_study_of_an_older_version_is_taken_for_one_of_its_first_node(
    repository: Repository, study: StoredStudy
) -> None:
    assert study.facts is None
    share, knobs = found(repository)
    assert share == pytest.approx(0.6)
    assert "nccl_algo" not in knobs
