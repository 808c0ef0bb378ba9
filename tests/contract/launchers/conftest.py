"""The contract of every launcher, held against real agents, real ranks and real trouble."""

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from tests.contract.launchers.sites import Site, opened

_OPEN = pytest.StashKey[tuple[str, Site, contextlib.ExitStack]]()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One that all tests share; whatever a test does to it, the next finds a slot as good as new."""
    stash = request.config.stash
    if _OPEN not in stash:
        kind = request.param.removesuffix(" to close")
        until_closed = contextlib.ExitStack()
        folder = tmp_path_factory.mktemp(kind)
        found = until_closed.enter_context(opened(kind, folder, uuid.uuid4().hex))
        request.config.add_cleanup(until_closed.close)  # if no test is torn down any more
        stash[_OPEN] = (request.param, found, until_closed)
    _, found, _ = stash[_OPEN]
    return found


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the site once the next test wants another one, or none, or one of its own: as long as it is
    open, studies of other tests wait for it."""
    if _OPEN not in item.config.stash:
        return
    wanted, _, until_closed = item.config.stash[_OPEN]
    if _wanted(nextitem) != wanted or wanted.endswith(" to close"):
        del item.config.stash[_OPEN]
        until_closed.close()


def _wanted(item: pytest.Item | None) -> str | None:
    """The kind of the site that a test takes place at; None of one that wants none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("site")


@pytest.fixture
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the test, whoever waits is gone as soon as that is asked for."""
    yield
    if site := request.node.funcargs.get("site"):
        site.slot.dismiss()
        assert site.strays() == []
