"""Environments and the noise that was found in them."""

import json

import pytest
from sqlalchemy.exc import IntegrityError

from storage import AttemptResult, Lease, Repository, StoredNoise, StoredStudy
from tests.contract.storage.making import at_once, rows, submit, taken


class TestEnvironments:
    def test_one_is_stored_once(self, repository: Repository, lease: Lease) -> None:
        body = {"cpu": "x", "devices": [{"name": "H100", "memory": 2**36}], "nccl": None}
        first = repository.environments.record(lease, body)
        reordered = json.loads(json.dumps(dict(reversed(body.items()))))
        assert repository.environments.record(lease, reordered) == first
        assert repository.environments.record(lease, {**body, "cpu": "y"}) != first
        assert len(rows(repository)["autotune_environment"]) == 2

    def test_it_is_stored_once_by_many_at_once_and_across_clusters(
        self, repository: Repository
    ) -> None:
        leases = [taken(repository, f"host:{number}") for number in range(8)]
        numbers = at_once(lambda n: repository.environments.record(leases[n], {"cpu": "x"}))
        assert len(set(numbers)) == 1
        assert len(rows(repository)["autotune_environment"]) == 1

    def test_an_attempt_cannot_refer_to_one_that_is_not_there(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        before = rows(repository)
        with pytest.raises(IntegrityError):
            repository.attempts.finish(lease, attempt.id, AttemptResult("COMPLETE"), [], 12345)
        assert rows(repository) == before


class TestNoise:
    def test_noise_is_found_by_later_studies_in_the_same_environment(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        here = repository.environments.record(lease, {"cpu": "x"})
        there = repository.environments.record(lease, {"cpu": "y"})
        later = submit(repository, "second")

        def record(environment: int, sigma: float, world_size: int = 2) -> None:
            noise = StoredNoise(sigma, 3, None)
            repository.noise.record(
                lease, study.id, environment, noise, workload="gpt", world_size=world_size
            )

        def before(study_id: int, environment: int) -> StoredNoise | None:
            return repository.noise.of_others(study_id, environment, workload="gpt", world_size=2)

        assert before(later.id, here) is None
        record(here, 0.01)
        record(here, 0.02)
        record(here, 0.03, world_size=4)
        assert before(later.id, here) == StoredNoise(0.02, 3, None)
        assert before(study.id, here) is None  # its own is no news to it
        assert before(later.id, there) is None
        assert repository.noise.of(study.id) == StoredNoise(0.03, 3, None)
