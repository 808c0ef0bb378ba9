"""How many workers each rank compiles with."""

import os
from collections.abc import Iterator

import pytest
from torch._inductor import config

from autotune.worker.effects import process
from search_spaces import defaults

COMPILED = {**defaults(), "compile": "max-autotune"}


@pytest.fixture(autouse=True)
def sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    with config.patch(compile_threads=16):
        yield


@pytest.mark.parametrize(("ranks", "workers"), [(1, 16), (2, 8), (8, 2), (32, 1)])
def test_ranks_of_a_node_share_its_processors(ranks: int, workers: int) -> None:
    process.compile_workers(COMPILED, ranks)
    assert config.compile_threads == workers


def test_a_study_that_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "16")
    process.compile_workers(COMPILED, 8)
    assert config.compile_threads == 16
