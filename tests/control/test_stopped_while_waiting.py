"""`stop` is heard at once while a launcher opens, whatever that waits for."""

import threading
from typing import Any

import pytest

from autotune.service import daemon as service
from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from launchers import NO_HOLDER, DeviceHolder
from launchers.replay import ReplayLauncher
from storage import Repository
from tests.control.replayed import Replayed

pytestmark = pytest.mark.fault(25)


@pytest.mark.parametrize(
    "rival", [NO_HOLDER, DeviceHolder(0, "the cluster is busy")], ids=["opens", "busy"]
)
def test_a_stop_is_heard_between_two_renewals_of_the_lease(
    played: Replayed, rival: DeviceHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_RENEW_SECONDS", 3600.0)
    opening, asked = threading.Event(), threading.Event()

    def never(_: object, __: object, busy: Any, tenant: object) -> ReplayLauncher:
        opening.set()
        while True:
            busy(rival)
            asked.wait(0.02)

    played.submit()
    daemon = Daemon(Repository(played.repository.database), this_queue(), never)
    serving = threading.Thread(target=daemon.serve, kwargs={"idle_seconds": 0.0}, daemon=True)
    serving.start()
    assert opening.wait(60)
    played.repository.studies.request_stop(played.name)
    serving.join(60)
    assert not serving.is_alive(), "it goes by what it hears, not by its next beat"
    assert played.study().state == "STOPPED"
    assert ("the cluster is busy" in played.said()) == (rival != NO_HOLDER)
