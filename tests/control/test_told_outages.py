"""What a daemon says of a storage that goes away and comes back."""

from collections.abc import Callable
from typing import Any

import pytest

from autotune.errors import StorageUnreachable
from autotune.service import daemon as service
from autotune.study import executor
from storage.attempt_records import AttemptRecords
from tests.control.replayed import Replayed

SHORT: dict[str, Any] = {
    "budget": {"trials": 2, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2},
}


AWAY = "the server is away"


def refusing(
    call: Callable[..., Any], refusals: list[str], *, is_written: bool = False
) -> Callable[..., Any]:
    """Return a call of the storage that fails once for each of these reasons.

    Args:
        call: call that does not fail.
        refusals: reasons that are left.
        is_written: True if it fails once its work is done, and before it has answered.
    """

    def refused(*arguments: Any, **options: Any) -> Any:
        if refusals and is_written:
            call(*arguments, **options)
        if refusals:
            raise StorageUnreachable(refusals.pop())
        return call(*arguments, **options)

    return refused


def test_that_it_works_again_is_said_at_once(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_OUTAGE_POLL_SECONDS", 0.01)
    monkeypatch.setattr(AttemptRecords, "begin", refusing(AttemptRecords.begin, [AWAY]))
    with caplog.at_level("INFO", service.__name__):
        played.run(**SHORT)
    assert [told.getMessage() for told in caplog.records if told.name == service.__name__] == [
        "study played: running",
        "waiting: the server is away",
        "study played: running",
        "waiting no more: it works again",
        "study played: DONE",
    ]


@pytest.mark.parametrize("is_written", [False, True])
def test_result_is_recorded_once_where_the_storage_is_away_for_a_moment(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """The storage goes away before the result is written, or before it has answered."""
    refusals = [AWAY]
    finishing = refusing(AttemptRecords.finish, refusals, is_written=is_written)
    monkeypatch.setattr(AttemptRecords, "finish", finishing)
    played.run(**SHORT)
    assert not refusals
    played.assert_complete(trials=2)
    attempts = played.repository.attempts.of(played.study().id)
    assert {(attempt.attempt, attempt.result.state) for attempt in attempts} == {(1, "COMPLETE")}


def test_storage_that_stays_away_ends_the_run(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_OUTAGE_SECONDS", 0.0)
    monkeypatch.setattr(service, "_OUTAGE_POLL_SECONDS", 0.01)
    monkeypatch.setattr(AttemptRecords, "finish", refusing(AttemptRecords.finish, [AWAY]))
    played.run(**SHORT)
    played.assert_complete(trials=2)
    [first, *_] = played.repository.attempts.of(played.study().id)
    assert first.result.state == "ABANDONED"
