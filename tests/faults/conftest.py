"""A cluster of Ray nodes for all tests of a module."""

from collections.abc import Iterator

import pytest

from tests.faults.ray_nodes import RayNodes, ray_nodes, refusal


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    if why := refusal():
        pytest.skip(why)
    with ray_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found
