"""A study above its share of a cluster gives slots back between runs, and grows again."""

import pytest

from launchers import Slot
from launchers.replay import Answer, Launch, ReplayLauncher
from tests.control import replayed
from tests.control.replayed import PLAIN, Replayed

BUDGET = {"trials": 6, "min_improvement": 0}


class SharedLauncher(ReplayLauncher):
    """Slots of which others come to wait for two; after some runs more there is room again."""

    launches = 0
    owed = 0
    retired: list[str]

    @property
    def surplus(self) -> int:
        return self.owed

    def retire(self, slot: Slot) -> None:
        assert isinstance(slot, Slot)
        self.owed -= 1
        slot.gone, slot.given_back = "it is given back to the cluster, for study b of bob", True
        self.retired = [*getattr(self, "retired", []), slot.name]

    def count(self) -> None:
        """Take in a launch."""
        self.launches += 1
        if self.launches == 2:
            self.owed = 5
        if self.launches == 5:
            self.owed = 0
            self.slots.append(self.slot("replay-3", self.slots[0].environment))


class AskedBack(SharedLauncher):
    """Slots that others come to wait for at one moment, when the study asks whether they do."""

    moment = 0
    asked = 0

    @property
    def surplus(self) -> int:
        self.asked += 1
        return 5 if self.asked >= self.moment else 0


@pytest.mark.parametrize("moment", range(4, 12))
def test_slots_may_be_asked_back_at_any_moment(
    played: Replayed, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    monkeypatch.setattr(replayed, "ReplayLauncher", AskedBack)
    monkeypatch.setattr(AskedBack, "moment", moment)
    played.submit(budget=BUDGET)
    played.on(PLAIN, slots=3).serve()
    played.assert_complete(trials=6)


@pytest.fixture
def shared(played: Replayed, monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """A study that has run to its end on such a launcher of three slots."""
    monkeypatch.setattr(replayed, "ReplayLauncher", SharedLauncher)

    def behaviour(launch: Launch) -> Answer:
        opened = played.machine.opened[0]
        assert isinstance(opened, SharedLauncher)
        opened.count()
        return PLAIN(launch)

    played.submit(budget=BUDGET)
    played.on(behaviour, slots=3).serve()
    return played


def test_study_gives_slots_back_and_loses_no_run(shared: Replayed) -> None:
    shared.assert_complete(trials=6)
    assert [a.result.state for a in shared.attempts() if a.result.state == "LOST"] == []
    opened = shared.machine.opened[0]
    assert isinstance(opened, SharedLauncher)
    assert len(opened.retired) == 2, "the last one stays, whatever others want"
    assert "given back to the cluster, for study b of bob. 1 slot left" in shared.said()


def test_study_uses_a_slot_that_is_there_again(shared: Replayed) -> None:
    assert "There is room for replay-3: 2 trials at a time" in shared.said()


def test_slot_that_was_given_back_is_not_missed(shared: Replayed) -> None:
    health = shared.repository.studies.slots(shared.study().id)
    assert health is not None
    assert (health.alive, health.planned, health.away) == (2, 2, {})
