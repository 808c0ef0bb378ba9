"""The contract of every launcher, held against real agents, real ranks and real trouble."""

import uuid
from collections.abc import Iterator

import pytest

from tests.contract.launchers.sites import Site, opened


@pytest.fixture(scope="session")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """One that all tests share; whatever a test does to it, the next finds a slot as good as new."""
    kind = request.param.removesuffix(" to close")
    with opened(kind, tmp_path_factory.mktemp(kind), uuid.uuid4().hex) as found:
        yield found
