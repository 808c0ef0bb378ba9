"""A study on several nodes of a cluster: of one kind, and yet not of one speed."""

import dataclasses
import itertools
from typing import Any

import pytest

from autotune.config import StudySpec
from autotune.service.daemon import Daemon
from autotune.service.queues import queue_for
from autotune.worker.protocol import Outcome
from launchers.replay import ENVIRONMENT, Answer, Behaviour, Launch, ReplayLauncher, ReplaySlot
from storage import Repository, StoredAttempt
from tests.control.replayed import PLAIN, Machine, Replayed, rate

SHORT: dict[str, Any] = {
    "budget": {"trials": 6, "min_improvement": 0},
    "measurement": {"finalists": 2, "rounds": 4, "baseline_runs": 1},
}
FAR = {**ENVIRONMENT, "host": "far"}
OTHER = "Left out: node odd (10.0.0.9): it has A100, and this study runs on H100"
SLOWER = 0.8


class TwoNodes(ReplayLauncher):
    """A slot on each; the same hardware, but what runs on the second is slower."""

    def __init__(self, behaviour: Behaviour, fails_far: str) -> None:
        super().__init__(behaviour)
        fast, self._news = self.slots[0], [OTHER]

        def answer(*given: Any) -> Any:
            usual, draw = fast._answer(*given)
            if fails_far and f"-{fails_far}" in given[0].trial:
                return Answer(outcome=Outcome.ERROR, cause="no such folder"), draw
            return dataclasses.replace(usual, rate=SLOWER * usual.rate), draw

        self.slots.append(ReplaySlot("replay-far", FAR, answer, fast._speed))

    def notices(self) -> list[str]:
        news, self._news = self._news, []
        return news


class Cluster(Machine):
    """Opens that, and keeps what it was asked for."""

    def __init__(self, fails_far: str = "") -> None:
        """There, runs for this purpose fail."""
        super().__init__()
        self._fails_far = fails_far
        self.asked: list[StudySpec] = []

    def open(self, *given: Any) -> ReplayLauncher:
        self.asked.append(given[0])
        self.opened.append(TwoNodes(self.behaviour, self._fails_far))
        return self.opened[-1]


class Renumbering(Cluster):
    """A cluster whose slots are numbered the other way round whenever it is opened again."""

    def open(self, *given: Any) -> ReplayLauncher:
        launcher = super().open(*given)
        if len(self.opened) % 2 == 0:
            launcher.slots.reverse()
        return launcher


def where(played: Replayed, attempt: StoredAttempt) -> str:
    found = played.repository.environments.of_attempt(attempt.id)
    assert found is not None
    return str(found["host"])


def test_what_is_compared_in_the_end_ran_on_one_node(played: Replayed) -> None:
    played.submit(**SHORT)
    played.machine = Cluster()
    played.serve()
    played.assert_complete(trials=6)
    searched = {where(played, one) for one in played.recorded("search")}
    assert searched == {"replay", "far"}
    confirmed = played.recorded("confirm")
    assert len({where(played, one) for one in confirmed}) == 1
    verdict = played.verdict
    baseline = next(one for one in verdict["finalists"] if one["baseline"])
    own = rate(verdict["knobs"]) / rate(baseline["knobs"])
    assert verdict["speedup"]["value"] == pytest.approx(own, rel=1e-3), (
        "nothing of it is the node's"
    )


def test_confirmation_goes_on_where_it_was_cut_though_slots_have_other_numbers(
    played: Replayed,
) -> None:
    """Slots of Slurm are numbered in the order in which they get ready."""
    played.submit(**SHORT)
    machine = played.machine = Renumbering()
    confirming = itertools.count(1)

    def dying(launch: Launch) -> Answer:
        if "-confirm" in launch.request.trial and next(confirming) == 4:
            raise KeyboardInterrupt
        return PLAIN(launch)

    machine.behaviour = dying
    with pytest.raises(KeyboardInterrupt):
        played.serve()
    played.bury_daemon()
    before = {where(played, one) for one in played.recorded("confirm")}
    assert len(before) == 1
    machine.behaviour = PLAIN
    played.serve()
    played.assert_complete(trials=6)
    assert len(machine.opened) == 2
    assert {where(played, one) for one in played.recorded("confirm")} == before
    assert "another machine" not in played.said()


def test_trials_are_told_as_if_all_had_run_on_one_node(played: Replayed) -> None:
    short = {**SHORT["measurement"], "baseline_runs": 2}
    played.submit(**{**SHORT, "measurement": short})
    played.machine = Cluster()
    played.serve()
    again = [where(played, one) for one in played.recorded("calibrate")]
    assert sorted(again) == ["far", "replay"], "once on the other node; and here, for the noise"
    attempts = {one.trial: one for one in played.recorded("search")}
    assert {where(played, one) for one in attempts.values()} == {"replay", "far"}
    first = min(attempts.values(), key=lambda one: (one.ended, one.id)).result.throughput
    for trial in played.trials():
        own = attempts[trial.number]
        assert trial.value == pytest.approx(rate(own.knobs) / first, rel=0.03), where(played, own)
        far = where(played, own) == "far"
        assert own.result.throughput == pytest.approx((SLOWER if far else 1.0) * rate(own.knobs))


def test_a_node_on_which_the_baseline_fails_ends_no_study(played: Replayed) -> None:
    played.submit(**{**SHORT, "measurement": {**SHORT["measurement"], "baseline_runs": 2}})
    played.machine = Cluster(fails_far="calibrate")
    played.serve()
    assert played.study().state == "DONE", played.study().error
    ended = {where(played, one): one.result.state for one in played.attempts("calibrate")}
    assert ended == {"far": "ERROR", "replay": "COMPLETE"}


def test_nodes_that_are_left_out_are_named_once(played: Replayed) -> None:
    played.submit(**SHORT)
    played.machine = Cluster()
    played.serve()
    assert played.said().count(OTHER) == 1


@pytest.mark.long
@pytest.mark.parametrize("asked", [None, "an old one"])
def test_a_study_goes_on_with_the_kind_that_it_has_begun_on(
    played: Replayed, asked: str | None
) -> None:
    played.submit(
        launcher={"kind": "ray", "address": "head:1"}, resources={"device": asked}, **SHORT
    )
    machine = played.machine = Cluster()
    cluster = queue_for(StudySpec.model_validate(played.study().spec))

    def daemon() -> Daemon:
        return Daemon(Repository(played.repository.database), cluster, machine.open)

    first, launches = daemon(), itertools.count()

    def leaving(launch: Launch) -> Answer:
        if next(launches) == 3:
            first.shut_down()
        return PLAIN(launch)

    machine.behaviour = leaving
    first.serve(idle_seconds=0.0)
    assert played.study().state == "QUEUED"
    daemon().serve(idle_seconds=0.0)
    played.assert_complete(trials=6)
    kinds = [spec.resources.device for spec in machine.asked]
    assert kinds == [asked, asked or ENVIRONMENT["cpu"]]
