"""A configuration that takes its daemon with it each time is launched three times, and no more."""

import dataclasses

import pytest

from autotune.errors import LauncherError
from autotune.service import daemon as service
from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Launch
from tests.control.deaths import Died
from tests.control.replayed import PLAIN, Replayed

SHORT = {
    "budget": {"trials": 6, "min_improvement": 0},
    "search_space": {"micro_batch": [1, 2, 4, 8, 16, 32]},
    "measurement": {"finalists": 1, "rounds": 2, "baseline_runs": 1},
}


def deadly(launch: Launch) -> Answer:
    if launch.knobs["micro_batch"] == 8:
        raise Died
    return PLAIN(launch)


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 3])
def test_it_is_recorded_as_a_crash_and_its_neighbours_are_not(played: Replayed, slots: int) -> None:
    played.on(deadly, slots=slots).submit(**SHORT)
    for _ in range(3):
        with pytest.raises(Died):
            played.serve()
    played.serve()
    played.assert_complete(trials=6)
    own = [a.result for a in played.attempts("search") if a.knobs["micro_batch"] == 8]
    assert [result.state for result in own] == ["ABANDONED"] * 3 + ["CRASH"]
    assert own[-1].cause == "its daemon or its agent died each of the 3 times that it was launched"
    others = [a.result for a in played.recorded("search") if a.knobs["micro_batch"] != 8]
    assert {result.state for result in others} <= {"COMPLETE", "PRUNED"}


def test_one_that_happens_to_run_when_its_daemon_dies_runs_again(played: Replayed) -> None:
    deaths = []

    def twice(launch: Launch) -> Answer:
        if launch.knobs["micro_batch"] == 8 and len(deaths) < 2:
            deaths.append(launch)
            raise Died
        return PLAIN(launch)

    played.on(twice).submit(**SHORT)
    for _ in range(2):
        with pytest.raises(Died):
            played.serve()
    played.serve()
    played.assert_complete(trials=6)
    states = [a.result.state for a in played.attempts("search") if a.knobs["micro_batch"] == 8]
    assert states[:2] == ["ABANDONED", "ABANDONED"]
    assert states[2] in ("COMPLETE", "PRUNED")


@pytest.mark.long
def test_yours_is_tried_again_if_it_only_happened_to_run_when_daemons_died(
    played: Replayed,
) -> None:
    deaths = []

    def at_first(launch: Launch) -> Answer:
        if len(deaths) < 3 and "-search" in launch.request.trial:
            deaths.append(launch)
            raise Died
        return PLAIN(launch)

    played.on(at_first).submit(**SHORT)
    for _ in range(3):
        with pytest.raises(Died):
            played.serve()
    played.serve()
    played.assert_complete(trials=6)
    assert {launch.knobs["micro_batch"] for launch in deaths} == {2}
    states = [a.result.state for a in played.recorded("search") if a.knobs["micro_batch"] == 2]
    assert states == ["CRASH", "COMPLETE"]
    assert played.verdict["baseline"]


@pytest.mark.slow
def test_one_that_takes_the_machine_with_it_each_time_is_given_up(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is lost, and then no other one comes up: the study waits, and launches it again. The
    waiting is nobody's fault and counts for nothing; the losses count."""
    monkeypatch.setattr(service, "FIRST_SECONDS", 0.1)
    launches = []

    def powering_off(launch: Launch) -> Answer:
        if launch.knobs["micro_batch"] != 8:
            return PLAIN(launch)
        launches.append(launch)
        if len(launches) % 3 != 1:
            raise LauncherError("no agent comes up")
        return dataclasses.replace(PLAIN(launch), lost_agent=True, outcome=Outcome.CRASH)

    played.on(powering_off).run(**SHORT)
    played.assert_complete(trials=6)
    states = [a.result.state for a in played.attempts("search") if a.knobs["micro_batch"] == 8]
    assert states == ["LOST", "ABANDONED", "ABANDONED"] * 2 + ["CRASH"]
