"""A cluster of Ray nodes for all tests of a module, and studies whose trials are replayed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.ray_nodes import RayNodes, ray_nodes
from tests.faults.replaying import ReplayedFolder
from tests.support.nodes import refusal
from tests.support.steering import in_use


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    if why := refusal():
        pytest.skip(why)
    with ray_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


@pytest.fixture
def replayed(tmp_path: Path) -> Iterator[ReplayedFolder]:
    """A user's folder whose daemons replay their trials."""
    with in_use(ReplayedFolder(tmp_path / "project")) as found:
        yield found
