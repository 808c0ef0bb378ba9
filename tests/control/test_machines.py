"""Figures of one machine are never compared with those of another."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from autotune.views.figures import figures_of
from autotune.views.markdown_report import report
from autotune.views.recompute import current_verdict, recomputed_verdict
from launchers.replay import ENVIRONMENT, Answer, Launch
from storage import Purpose, StoredAttempt
from tests.control.replayed import PLAIN, Replayed, rate

SHORT: dict[str, Any] = {
    "budget": {"trials": 3, "min_improvement": 0},
    "measurement": {"finalists": 1, "rounds": 3, "baseline_runs": 1},
}
SLOWER = {**ENVIRONMENT, "host": "slower", "cpu": "an old one"}


class Moving:
    """A machine that is another one from some launch of the confirmation on: at half the speed.

    With a pattern its steps are timed one by one, as on a CUDA device, and no processes stay for the
    next run.
    """

    def __init__(self, played: Replayed, *moves: int, pattern: Sequence[float] = ()) -> None:
        self._played = played
        self._moves = moves
        self._pattern = pattern
        self.confirming = 0

    def __call__(self, launch: Launch) -> Answer:
        stays = not self._pattern
        answer = dataclasses.replace(PLAIN(launch), pattern=self._pattern, stays=stays)
        slot = self._played.machine.opened[-1].slots[0]
        if "-confirm" in launch.request.trial:
            self.confirming += 1
            if self.confirming in self._moves:
                there = slot.environment["host"] == SLOWER["host"]
                slot.environment = dict(ENVIRONMENT if there else SLOWER)
        if slot.environment["host"] == SLOWER["host"]:
            return dataclasses.replace(answer, rate=answer.rate / 2)
        return answer


def where(played: Replayed, attempt: StoredAttempt) -> str:
    found = played.repository.environments.of_attempt(attempt.id)
    assert found is not None
    return str(found["host"])


def test_each_attempt_is_recorded_with_where_it_ran(played: Replayed) -> None:
    played.submit(**SHORT)
    played.on(Moving(played, 3)).serve()
    confirmed = played.recorded("confirm")
    hosts = [where(played, one) for one in confirmed]
    assert hosts[:2] == [ENVIRONMENT["host"]] * 2
    assert set(hosts[2:]) == {"slower"}
    assert {where(played, one) for one in played.recorded("search")} == {ENVIRONMENT["host"]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("move", "rounds"), [(3, 6), (4, 3)], ids=["between two rounds", "within a round"]
)
def test_only_rounds_of_the_machine_that_came_last_count(
    played: Replayed, move: int, rounds: int
) -> None:
    played.submit(**SHORT)
    played.on(Moving(played, move)).serve()
    played.assert_complete(trials=3)
    verdict = played.verdict
    assert verdict["rounds"] == rounds
    confirmed = played.recorded("confirm")
    counted = [one for one in confirmed if where(played, one) == "slower"]
    assert len(counted) >= 6
    baseline = next(one for one in verdict["finalists"] if one["baseline"])
    slower = [one.result.throughput for one in counted if one.trial == baseline["trial"]]
    assert set(baseline["rates"]) <= set(slower)
    own = rate(verdict["knobs"]) / rate(baseline["knobs"])
    assert verdict["speedup"]["value"] == pytest.approx(own), "nothing of it is the machine's"
    assert "What ran on another machine is not compared" in played.said()
    again = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(again.as_dict())) == verdict


@pytest.mark.parametrize("move", [1, 3], ids=["before the rounds", "between two rounds"])
def test_runs_of_the_search_on_another_machine_are_no_part_of_the_gain(
    played: Replayed, move: int
) -> None:
    """Where steps are timed one by one they tell how far processes of the baseline lie apart."""
    played.submit(**SHORT)
    played.on(Moving(played, move, pattern=[0.999, 1.001, 1.0])).serve()
    searched = played.recorded("search")
    assert {where(played, one) for one in searched} == {ENVIRONMENT["host"]}
    assert searched[0].result.resident_of is None
    verdict = played.verdict
    baseline = next(one for one in verdict["finalists"] if one["baseline"])
    own = rate(verdict["knobs"]) / rate(baseline["knobs"])
    assert verdict["speedup"]["value"] == pytest.approx(own, rel=1e-3)
    assert verdict["speedup"]["low"] > 0.97 * own
    assert verdict["baseline"]["value"] == pytest.approx(rate(baseline["knobs"]) / 2, rel=1e-3)


@pytest.mark.long
def test_power_is_that_of_the_machine_that_came_last(played: Replayed) -> None:
    moving = Moving(played, 3)

    def drawing(launch: Launch) -> Answer:
        answer = moving(launch)
        slower = played.machine.opened[-1].slots[0].environment["host"] == SLOWER["host"]
        return dataclasses.replace(answer, watts=100.0 if slower else 300.0)

    played.submit(**SHORT)
    played.on(drawing).serve()
    assert {where(played, one) for one in played.recorded("confirm")} == {
        "slower",
        ENVIRONMENT["host"],
    }
    energy = figures_of(played.repository, played.study()).energy
    assert energy is not None
    assert energy.watts == pytest.approx((100.0, 100.0))


def test_the_verdict_says_what_it_was_measured_on(played: Replayed) -> None:
    played.submit(**SHORT)
    played.on(Moving(played, 4)).serve()
    verdict = current_verdict(played.repository, played.study())
    assert verdict.measured_on == "an old one (CPU; slower, PyTorch none)"
    assert "Measured on an old one (CPU; slower" in report(played.repository, played.name, verdict)
    recommended = played.repository.recommendations.newest_of(played.study().id)
    assert recommended is not None
    assert recommended["provenance"]["environment"]["host"] == "slower"


def test_a_daemon_elsewhere_begins_the_confirmation_anew(played: Replayed) -> None:
    """As with `resume --foreground` on another host."""
    played.submit(**SHORT)
    moving = Moving(played)

    def dying(launch: Launch) -> Answer:
        answer = moving(launch)
        if moving.confirming == 4:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        played.on(dying).serve()
    played.bury_daemon()
    played.on(PLAIN, environment=SLOWER).serve()
    played.assert_complete()
    rounds = {one.round for one in played.recorded("confirm") if where(played, one) == "slower"}
    assert len(rounds) >= 3
    assert played.verdict["rounds"] == 6
    assert played.verdict["measured_on"].startswith("an old one")


@pytest.mark.slow
def test_a_machine_that_changes_all_the_time_is_waited_for(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.service.daemon.FIRST_SECONDS", 0.1)
    played.submit(**SHORT)
    played.on(Moving(played, *range(2, 40, 2))).serve()
    played.assert_complete()
    assert "the machine has changed" in played.said()
    assert played.verdict["rounds"] == 3


@pytest.mark.long
def test_noise_between_machines_is_no_noise_between_runs(played: Replayed) -> None:
    played.submit(
        budget={"trials": 8, "min_improvement": 0},
        measurement={**SHORT["measurement"], "baseline_runs": 4},
    )
    launches = 0

    def switching(launch: Launch) -> Answer:
        nonlocal launches
        launches += f"-{Purpose.CALIBRATE}" in launch.request.trial
        slot = played.machine.opened[-1].slots[0]
        slot.environment = dict(SLOWER if launches else ENVIRONMENT)
        answer = PLAIN(launch)
        return Answer(**{**vars(answer), "rate": answer.rate / 2}) if launches else answer

    played.on(switching).serve()
    noise = played.repository.noise.of(played.study().id)
    assert noise is not None
    assert noise.runs == 4, "as many as were asked for, all of them there"
    assert noise.sigma_run < 0.05
