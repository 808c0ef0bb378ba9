"""What `status` says while nodes are away, or nothing comes of what runs."""

from typing import Any

import pytest

from autotune.study import executor
from autotune.views.overview import describe, status_of
from launchers.replay import Answer, Launch
from storage.database import _NOW
from tests.control.replayed import PLAIN, Replayed
from tests.support.waiting import wait_for

SHORT: dict[str, Any] = {
    "budget": {"trials": 4, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}
LOST = "far (10.0.0.2) lost"


class Held:
    """The second launch goes on until the test has seen what it wants to see."""

    def __init__(self, played: Replayed) -> None:
        self._played = played
        self.launches = 0

    def status(self) -> dict[str, Any]:
        return status_of(self._played.repository, self._played.name)

    def __call__(self, launch: Launch) -> Answer:
        self.launches += 1
        if self.launches == 2:
            self.look()
        return PLAIN(launch)

    def look(self) -> None:
        raise NotImplementedError


class Losing(Held):
    """Meanwhile a node of the other slot is lost, and comes back."""

    seen: list[str]

    def look(self) -> None:
        other = self._played.machine.opened[0].slots[1]
        self.seen = []
        for away in ((), (LOST,), ()):
            other.unreachable = lambda away=away: away  # type: ignore[method-assign]
            self.seen.append(wait_for(lambda away=away: self.told(away), f"away: {away}"))

    def told(self, away: tuple[str, ...]) -> str:
        slots = self.status()["slots"]
        if slots is None or tuple(slots["away"]) != away:
            return ""
        return next(line for line in describe(self.status()).splitlines() if "slots" in line)


@pytest.mark.fault(24)
def test_slots_alive_are_told_of_those_planned(played: Replayed) -> None:
    played.submit(**SHORT)
    losing = Losing(played)
    played.on(losing, slots=2).serve()
    played.assert_complete(trials=4)
    before, meanwhile, after = losing.seen
    assert before == after == "  slots     2 of 2 alive"
    assert meanwhile.startswith(f"  slots     1 of 2 alive; {LOST} ")
    assert meanwhile.endswith(" s ago")
    assert losing.status()["slots"] is None
    assert "alive" not in played.said(), "that is no message"


class Dated(Losing):
    """Meanwhile the ages of what is told are looked at, too."""

    ages: tuple[float, ...] = ()
    running: tuple[str, ...] = ()

    def told(self, away: tuple[str, ...]) -> str:
        told, found = super().told(away), self.status()
        if told and found["slots"]["away"]:
            self.ages = found["progress_seconds"], *found["slots"]["away"].values()
            self.running = tuple(found["running"])
        return told


@pytest.mark.parametrize("off_by", [-36_000, 36_000])
def test_ages_go_by_the_clock_of_the_database(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, off_by: int
) -> None:
    """Else they would be hours too long, or always none."""
    monkeypatch.setitem(_NOW, "sqlite", f"{_NOW['sqlite']} + {off_by}")
    played.submit(**SHORT)
    dated = Dated(played)
    played.on(dated, slots=2).serve()
    assert len(dated.ages) == 2
    assert max(dated.ages) < 3600.0
    assert dated.running
    assert not any(" h" in text or "-" in text for text in dated.running)


class Still(Held):
    """Meanwhile nothing comes of it."""

    seen: float

    def look(self) -> None:
        wait_for(lambda: self.status()["doing"], "it has said how far that is")

        def long_ago() -> float | None:
            found: float = self.status()["progress_seconds"]
            return found if found > 1.0 else None

        found = wait_for(long_ago, "nothing has come of it for a second")
        assert found is not None
        self.seen = found


@pytest.mark.fault(24)
def test_what_is_said_again_is_no_progress(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_TELL_SECONDS", 0.0)
    played.submit(**SHORT)
    still = Still(played)
    played.on(still).serve()
    played.assert_complete(trials=4)
    assert still.seen > 1.0
    assert still.status()["progress_seconds"] is None
