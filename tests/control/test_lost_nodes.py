"""Nodes of a cluster die, stall and come: that is no configuration's fault, and no end of a study."""

import dataclasses
import itertools
from typing import Any

import pytest

from autotune.service import daemon as service
from autotune.study.policy import STUDY
from autotune.worker.protocol import Outcome
from launchers.replay import ENVIRONMENT, Answer, Launch, ReplayLauncher
from tests.control.replayed import PLAIN, Machine, Replayed
from tests.support.waiting import wait_for

SHORT = {
    "budget": {"trials": 6, "min_improvement": 0},
    "search_space": {"micro_batch": [1, 2, 4, 8, 16, 32]},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}
DEAD = "node far (10.0.0.2) was lost"


class Nodes(ReplayLauncher):
    """A cluster: what loses its agent can be launched on another node."""

    @property
    def several_nodes(self) -> bool:
        return True


@dataclasses.dataclass
class Cluster(Machine):
    """Opens such launchers."""

    def open(self, *_: object) -> ReplayLauncher:
        self.opened.append(Nodes(self.behaviour, **self.options))
        return self.opened[-1]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRST_AWAY_SECONDS", 0.1)


def losing(launch: Launch, **lost: Any) -> Answer:
    """A configuration under which the agent dies."""
    answer = PLAIN(launch)
    if launch.knobs["micro_batch"] != 8:
        return answer
    return dataclasses.replace(answer, lost_agent=True, outcome=Outcome.CRASH, **lost)


def states_of_8(played: Replayed) -> list[str]:
    return [a.result.state for a in played.attempts("search") if a.knobs["micro_batch"] == 8]


@pytest.mark.long
@pytest.mark.fault(23)
@pytest.mark.fault(24)
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "stalled"])
def test_what_is_lost_with_its_node_counts_against_nothing(played: Replayed, lost: bool) -> None:
    def struck(launch: Launch) -> Answer:
        if launch.number > 5 or launch.knobs["micro_batch"] != 8:
            return PLAIN(launch)
        if lost:
            return losing(launch, not_its_own=DEAD)
        return dataclasses.replace(PLAIN(launch), not_its_own="node far stood still for 35 s")

    played.submit(**SHORT)
    played.machine = Cluster(struck)
    played.serve()
    played.assert_complete(trials=6)
    *before, last = states_of_8(played)
    assert before == ["LOST"] * 5
    assert last in ("COMPLETE", "PRUNED")
    assert played.said().count("not of its own making: node far") == 5
    assert "suspected" not in played.said()


@pytest.mark.parametrize(
    ("slots", "losses"), [(1, STUDY.most_node_losses), (2, STUDY.most_launches)]
)
def test_one_under_which_its_node_stalls_each_time_is_given_up(
    played: Replayed, slots: int, losses: int
) -> None:
    """Beside others, which run well, after a few times; by itself after many.

    It is the first one beside the baseline, so that enough others come after it.
    """
    first: dict[str, int] = {}

    def struck(launch: Launch) -> Answer:
        answer, batch = PLAIN(launch), launch.knobs["micro_batch"]
        if batch == 2 or first.setdefault("micro_batch", batch) != batch:
            return answer
        if slots > 1 and launch.number > 1:
            before = len(played.recorded())
            wait_for(lambda: len(played.recorded()) > before, "another one has run beside it")
        return dataclasses.replace(answer, not_its_own="node 0 stood still for 35 s")

    played.on(struck, slots=slots).run(**SHORT)
    played.assert_complete(trials=6)
    launched = [a for a in played.attempts("search") if a.knobs["micro_batch"] in first.values()]
    *before, last = [a.result for a in launched]
    assert {result.state for result in before} == {"LOST"}
    assert (last.state, last.cause) == ("CRASH", "node 0 stood still for 35 s")
    assert len(before) + 1 == losses
    assert "is suspected: whatever it was launched on lost its node" in played.said()


@pytest.mark.fault(23)
def test_one_that_loses_its_agent_wherever_it_runs_is_suspected(played: Replayed) -> None:
    names = itertools.cycle(["near", "far"])
    played.submit(**SHORT)
    played.machine = Cluster(
        lambda launch: losing(launch, cause=f"the agent of {next(names)} died")
    )
    played.serve()
    played.assert_complete(trials=6)
    assert states_of_8(played) == ["LOST", "LOST", "CRASH"]
    told = "is suspected: whatever it was launched on lost its agent, 3 times: "
    assert told + "the agent of far died; the agent of near died." in played.said()


@pytest.mark.fault(23)
def test_one_that_loses_its_agent_on_one_node_only_is_not(played: Replayed) -> None:
    def on_far(launch: Launch) -> Answer:
        return losing(launch, cause="the agent of far died") if launch.number < 6 else PLAIN(launch)

    played.submit(**SHORT)
    played.machine = Cluster(on_far)
    played.serve()
    played.assert_complete(trials=6)
    *before, last = states_of_8(played)
    assert before == ["LOST"] * 5
    assert last in ("COMPLETE", "PRUNED")


class Striking:
    """With the third launch the first slot of the first launcher loses its nodes."""

    def __init__(self, played: Replayed, *, comes: bool = False) -> None:
        self.launches = 0
        self._played = played
        self._comes = comes

    def __call__(self, launch: Launch) -> Answer:
        self.launches += 1
        if self.launches != 3:
            return PLAIN(launch)
        launcher = self._played.machine.opened[0]
        launcher.slots[0].gone = DEAD
        if self._comes:
            launcher.slots.append(launcher.slot("replay-new", ENVIRONMENT))
        return dataclasses.replace(PLAIN(launch), lost_agent=True, not_its_own=DEAD)


@pytest.mark.fault(23)
def test_a_slot_that_is_gone_is_replaced(played: Replayed) -> None:
    played.submit(**SHORT)
    played.on(Striking(played, comes=True)).serve()
    played.assert_complete(trials=6)
    assert f"Nothing more runs on replay-0: {DEAD}" in played.said()
    assert "There is room for replay-new: 1 trial at a time." in played.said()
    assert len(played.machine.opened) == 1


@pytest.mark.fault(23)
@pytest.mark.long
def test_without_another_the_cluster_is_waited_for(played: Replayed) -> None:
    played.submit(**SHORT)
    played.on(Striking(played)).serve()
    played.assert_complete(trials=6)
    assert f"{DEAD}; tried again now and then" in played.said()
    assert len(played.machine.opened) == 2


@pytest.mark.fault(25)
@pytest.mark.long
def test_a_slot_that_there_is_room_for_later_is_used(played: Replayed) -> None:
    def coming(launch: Launch) -> Answer:
        launcher = played.machine.opened[0]
        if len(launcher.slots) == 1:
            launcher.slots.append(launcher.slot("replay-new", ENVIRONMENT))
        return PLAIN(launch)

    played.submit(**SHORT)
    played.on(coming).serve()
    played.assert_complete(trials=6)
    assert "There is room for replay-new: 2 trials at a time." in played.said()


@pytest.mark.fault(23)
def test_what_came_of_a_study_is_written_before_anything_remote_is_closed(played: Replayed) -> None:
    states: list[str] = []

    class Remote(ReplayLauncher):
        is_remote = True

        def close(self) -> None:
            states.append(played.study().state)

    class Elsewhere(Machine):
        def open(self, *_: object) -> ReplayLauncher:
            self.opened.append(Remote(self.behaviour))
            return self.opened[-1]

    played.submit(**SHORT)
    played.machine = Elsewhere()
    played.serve()
    assert states == ["DONE"]
