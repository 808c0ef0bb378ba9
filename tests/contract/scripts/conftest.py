"""A bench for each test, over one slot for each file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import launchers
from launchers import Resources, Slot
from tests.contract.scripts.bench import RANKS, Bench


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    logs = str(tmp_path_factory.mktemp("agents"))
    with launchers.section_of("local").open(Resources(RANKS, 0, 1, 1), logs) as launcher:
        yield launcher.slots[0]


@pytest.fixture
def bench(slot: Slot, tmp_path: Path) -> Bench:
    return Bench(slot, tmp_path)
