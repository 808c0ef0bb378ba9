"""A Ray cluster that lets nobody in: whoever waits for it can leave at once."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launchers import NO_RIVAL, Resources, Rival, section_of
from tests.waiting import stopwatch

pytestmark = pytest.mark.fault(25)


class Enough(Exception):
    """Somebody has asked to stop."""


@pytest.fixture
def mute() -> Iterator[str]:
    """Address of a head that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_who_joins_a_cluster_that_does_not_answer_can_stop_at_once(
    mute: str, tmp_path: Path
) -> None:
    told: list[Callable[[], float]] = []

    def busy(rival: Rival) -> bool:
        assert rival == NO_RIVAL, "that is not long yet"
        told.append(stopwatch())
        if len(told) == 2:
            raise Enough
        return False

    with pytest.raises(Enough):
        section_of("ray", address=mute).open(Resources(1, 0, 1, None), str(tmp_path), busy)
    assert told[-1]() < 5.0, "it is killed, and not waited for"
    left = [
        p for p in psutil.Process().children(recursive=True) if "ray_driver" in str(p.cmdline())
    ]
    assert left == []
