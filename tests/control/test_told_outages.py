"""What a daemon says of a storage that goes away and comes back."""

from typing import Any

import pytest

from autotune.errors import StorageUnreachable
from autotune.service import daemon as service
from storage.attempts import AttemptRecords
from tests.control.replayed import Replayed

SHORT: dict[str, Any] = {
    "budget": {"trials": 2, "least_gain": 0},
    "measurement": {"finalists": 1, "rounds": 2},
}


def test_that_it_works_again_is_said_at_once(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish, refusals = AttemptRecords.finish, ["the server is away"]

    def refusing(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise StorageUnreachable(refusals.pop())
        return finish(*arguments, **options)

    monkeypatch.setattr(service, "_OUTAGE_POLL_SECONDS", 0.01)
    monkeypatch.setattr(AttemptRecords, "finish", refusing)
    with caplog.at_level("INFO", service.__name__):
        played.run(**SHORT)
    assert [told.getMessage() for told in caplog.records if told.name == service.__name__] == [
        "study played: running",
        "waiting: the server is away",
        "study played: running",
        "waiting no more: it works again",
        "study played: DONE",
    ]
