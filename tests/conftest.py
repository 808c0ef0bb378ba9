"""Fixtures that several tests share: real databases, the real command, a workload of milliseconds."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.fault_table import FAULTS, FaultTable, tally
from tests.support.isolation import leave_the_network
from tests.support.postgres import own_server
from tests.support.steering import TINY_WORKLOAD, StudyFolder, study_folder

__all__ = ["tally"]  # a fixture

os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
# As where the environment is activated: `python` of a command is the python of these tests.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As when the tests are started in the background of a script: all that they start inherits it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples everywhere, every time: a run fails for what was changed, and not by a draw.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.load_profile("same")

_FOLDER = Path(__file__).parent
_OF_LAUNCHERS = ("local", "ray", "slurm")
"""Groups of tests that share an opened launcher."""
_MEASURING = ("acceptance", "contract", "faults")
"""Folders with tests that open launchers, which wait for one another on one machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault-table",
        nargs="?",
        const="",
        metavar="FILE",
        help="print the table of faults at the end, and write it to the file as JSON",
    )
    parser.addoption(
        "--first-of-each",
        action="store_true",
        help="keep one set of parameters of each test, the first one",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FaultTable(), "fault table")
    if hasattr(config, "workerinput"):  # of xdist: there are others beside this one
        config.stash[_ALONE] = leave_the_network()
        os.environ.setdefault("OMP_NUM_THREADS", "1")


_ALONE = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Tests that share a fixture of their module stay together; others run where there is room.

    Those that share a launcher or a cluster come first, as they take longest together, then faults:
    nobody waits for the last of them alone. Tests of launchers are sorted by the kind of their site, so
    that each kind is opened once.
    """
    items.sort(key=_rank)
    for item in items:
        unknown = [mark for mark in item.iter_markers("fault") if mark.args[0] not in FAULTS]
        assert not unknown, item.nodeid
        if not config.stash.get(_ALONE, True) and _folder(item) in _MEASURING:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "xdist_group"]
            item.add_marker(pytest.mark.xdist_group("machine"))
        elif not item.get_closest_marker("xdist_group") and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(_FOLDER))))
    yield
    # What the marks on the command line have left.
    if config.getoption("first_of_each"):
        _keep_first_of_each(config, items)


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of all collections of garbage."""
    gc.collect()
    gc.freeze()


def _keep_first_of_each(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all parametrizations of a test but the first."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    kept = {id(item) for item in first.values()}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def _rank(item: pytest.Item) -> tuple[bool, bool, tuple[str, str]]:
    fault = _folder(item) == "faults"
    of_launcher = any(m.args[0] in _OF_LAUNCHERS for m in item.iter_markers("xdist_group"))
    shares = of_launcher or (fault and _shares_a_fixture(item))
    return not shares, not fault, _site(item)


def _site(item: pytest.Item) -> tuple[str, str]:
    """Where a test of launchers takes place; other tests stay where they are, before and after."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return (item.path.parent.as_posix(), str(params.get("site", "")))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_FOLDER).parts[0]


def _shares_a_fixture(item: pytest.Item) -> bool:
    found = item._fixtureinfo.name2fixturedefs.values()
    return any(used[-1].scope in ("module", "class") for used in found)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A real PostgreSQL server from a wheel."""
    with own_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a new, empty PostgreSQL database.

    It is dropped after its test: to remove all at once would be minutes of the last test's time.
    """
    name = f"test_{abs(hash(request.node.nodeid))}_{os.getpid()}"
    postgres_server.psql(f"create database {name}")
    yield postgres_server.get_uri(database=name)
    postgres_server.psql(f"drop database if exists {name} with (force)")


@pytest.fixture(params=["sqlite", "postgresql"])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/autotune.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with a workload of their own, `tiny:build`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[StudyFolder]:
    """A user's folder with the tiny workload, to run studies in."""
    with study_folder(tmp_path) as found:
        yield found
