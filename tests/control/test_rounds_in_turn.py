"""Rounds whose members are resident at once: what is recorded of them, and when they are not."""

import dataclasses
import math
from typing import Any

import pytest

from autotune.analysis.rounds import Round, rounds_of
from autotune.analysis.verdict import Verdict
from autotune.config import secrets_withheld
from autotune.views import markdown_report
from autotune.views.recompute import recomputed_attempts
from autotune.worker.protocol import Knobs, Outcome
from launchers.replay import ENVIRONMENT, Answer, Launch, SpeedVariation
from launchers.replay.behaviours import noisy, running_at
from storage import Attempts, Fault, StoredAttempt
from tests.control.deaths import Died
from tests.control.replayed import PLAIN, Replayed, rate
from tests.support.behaviours import where, within_memory

SMALL = {"budget": {"trials": 3}}


def beside_others(launch: Launch) -> bool:
    return launch.request.interleaved


def turns_of(played: Replayed, attempt: StoredAttempt) -> list[int]:
    blocks = played.repository.attempts.blocks(attempt.id)
    return [block.observed["turn"] for block in blocks if "turn" in block.observed]


def rounds(played: Replayed) -> list[Round]:
    spec = secrets_withheld.as_stored(played.study().spec)
    attempts = Attempts(played.attempts(), spec.full_baseline())
    return rounds_of(attempts, spec, played.repository.attempts.blocks, ended=True)


def in_turn(played: Replayed, purpose: str = "confirm") -> set[bool]:
    """Whether runs took turns."""
    return {bool(turns_of(played, a)) for a in played.recorded(purpose)}


@pytest.mark.long
def test_a_round_has_one_attempt_of_each_and_their_blocks_say_whose_turn_it_was(
    played: Replayed,
) -> None:
    played.run(**SMALL, measurement={"ablation_rounds": 2})
    attempts = played.attempts("confirm")
    assert [a.attempt for a in attempts] == [1] * len(attempts)
    for number in (1, 2, 3):
        of_round = [a for a in attempts if a.round == number]
        assert len(of_round) == 3
        turns = [turn for a in of_round for turn in turns_of(played, a)]
        assert sorted(turns) == list(range(1, len(turns) + 1))
    assert in_turn(played, "ablation") == {True}
    assert "at the same time and train in turn" in played.said()
    shown = markdown_report.report(
        played.repository, played.name, Verdict.from_dict(played.verdict)
    )
    runs = sum(a.trial == played.verdict["trial"] for a in attempts)
    assert f"- runs in turn with the others, block by block: {runs}\n" in shown
    played.assert_complete(trials=3)


def test_failure_beside_others_is_no_lost_agent(played: Replayed) -> None:
    """With two of these afterwards a run is not yet to blame."""
    failed: list[tuple[Any, Any]] = []

    def unlucky(launch: Launch) -> Answer:
        answer = PLAIN(launch)
        batch = launch.knobs["micro_batch"], launch.knobs["accumulation_steps"]
        if beside_others(launch) and not failed:
            failed.append(batch)
            return dataclasses.replace(answer, outcome=Outcome.OOM, cause="no memory", after=3)
        if beside_others(launch) or batch not in failed or len(failed) == 3:
            return answer
        failed.append(batch)
        return dataclasses.replace(answer, outcome=Outcome.CRASH, lost_agent=True)

    played.on(unlucky).run(**SMALL)
    lost = [a for a in played.attempts("confirm") if a.result.state == "LOST"]
    faults = [a.result.fault for a in lost]
    assert faults == [Fault.INTERLEAVED] * 3 + [Fault.TRIAL] * 2
    assert "suspected" not in played.said()
    played.assert_complete(trials=3)


def test_their_rates_follow_from_the_records(played: Replayed) -> None:
    played.on(noisy(PLAIN, block=0.05), variation=SpeedVariation(0.05)).run(**SMALL)
    again = recomputed_attempts(played.repository, played.name)
    for recorded, computed in zip(played.attempts(), again, strict=True):
        assert computed.result.throughput == pytest.approx(recorded.result.throughput, rel=1e-12)


@pytest.mark.long
def test_who_fails_beside_others_only_is_measured_alone(played: Replayed) -> None:
    def crowded(launch: Launch) -> bool:
        return beside_others(launch) and launch.knobs["micro_batch"] == 16

    failing = where(PLAIN, crowded, outcome=Outcome.OOM, cause="no memory", after=3)
    verdict = played.on(failing).run(budget={"trials": 10})
    assert verdict["knobs"]["micro_batch"] == 16
    first = [a for a in played.attempts("confirm") if a.round == 1]
    half = len(first) // 2
    assert [a.result.state for a in first] == ["LOST"] * half + ["COMPLETE"] * half
    assert in_turn(played) == {False}, "nor does a later round mix two ways of measuring"
    assert "because a run in turn was lost" in played.said()
    played.assert_complete(trials=10)


def test_round_of_a_script_that_ends_early_compares_runs_alone_only(played: Replayed) -> None:
    """Yours is 18 % faster in turn than alone."""

    def ending(launch: Launch) -> Answer:
        answer = PLAIN(launch)
        yours = launch.knobs["micro_batch"] == 2
        if not beside_others(launch):
            return answer
        if yours:
            return dataclasses.replace(answer, rate=1.18 * answer.rate)
        return dataclasses.replace(answer, outcome=Outcome.ERROR, cause="it ended", after=9)

    study = {"search_space": {"micro_batch": [2, 16]}, "budget": {"trials": 2}}
    verdict = played.on(ending).run(**study)
    ratio = rate({"micro_batch": 16, "accumulation_steps": 1}) / rate(
        {"micro_batch": 2, "accumulation_steps": 1}
    )
    assert verdict["speedup"]["value"] == pytest.approx(ratio, rel=0.01)
    assert in_turn(played) == {False}


@pytest.mark.long
@pytest.mark.parametrize(("limit", "together"), [(2**34, True), (2**30, False)])
def test_what_does_not_fit_together_runs_one_after_another(
    played: Replayed, limit: int, together: bool
) -> None:
    def peak(knobs: Knobs) -> float:
        return 2.0**28 * (1 + knobs["micro_batch"] / 100)

    here = {**ENVIRONMENT, "memory_bytes": limit}
    played.on(within_memory(PLAIN, peak, 2**40), environment=here).run(**SMALL)
    assert in_turn(played) == {together}
    assert ("by their peaks they need" in played.said()) != together


def test_long_steps_are_no_neighbours(played: Replayed) -> None:
    slow = running_at(lambda knobs: rate(knobs) / 100.0)
    played.on(slow).run(**SMALL, measurement={"step_timeout": 600})
    assert in_turn(played) == {False}
    assert "is too long for turns" in played.said()


def test_after_a_daemon_has_died_a_round_goes_on_one_by_one(played: Replayed) -> None:
    killed: list[str] = []

    def deadly(launch: Launch) -> Any:
        if beside_others(launch) and "-confirm2-" in launch.request.trial and not killed:
            killed.append(launch.request.trial)
            raise Died
        return PLAIN(launch)

    played.on(deadly).submit(**SMALL)
    with pytest.raises(Died):
        played.serve()
    played.serve()
    second = [a for a in played.attempts("confirm") if a.round == 2]
    assert len([a for a in second if a.recorded]) == 3
    assert not any(turns_of(played, a) for a in second)
    assert any(turns_of(played, a) for a in played.attempts("confirm") if a.round == 3)
    played.assert_complete(trials=3)


@pytest.mark.parametrize("purpose", ["confirm", "ablation"])
def test_round_that_another_daemon_goes_on_with_is_measured_anew(
    played: Replayed, purpose: str
) -> None:
    """On a machine that is 10 % slower by then."""
    killed: list[str] = []

    def deadly(launch: Launch) -> Any:
        one = launch.request.trial.split("/")[1]
        begun = [a for a in played.recorded(purpose) if a.round == 2]
        if f"-{purpose}2-" in one and begun and not killed:
            killed.append(one)
            raise Died
        answer = PLAIN(launch)
        return dataclasses.replace(answer, rate=answer.rate / (111.0 if killed else 100.0))

    slow = {"step_timeout": 600, "ablation_rounds": 2}
    played.on(deadly).submit(**SMALL, measurement=slow)
    with pytest.raises(Died):
        played.serve()
    played.serve()
    assert killed
    second = [a for a in played.recorded(purpose) if a.round == 2]
    daemons = [a.epoch for a in second]
    assert len(set(daemons)) == 2
    members = {tuple(a.knobs.items()) for a in second}
    again = [tuple(a.knobs.items()) for a in second if a.epoch == max(daemons)]
    assert sorted(again) == sorted(members), "each once by the daemon that ended it"
    knobs = {a.trial: a.knobs for a in played.recorded("search")}
    for one in rounds(played):
        expected = {trial: rate(knobs[trial]) / rate(knobs[0]) for trial in one.ratios}
        assert one.ratios == pytest.approx(expected, rel=0.01)
    played.assert_complete(trials=3)


def test_on_a_restless_machine_three_rounds_tell_three_percent(played: Replayed) -> None:
    """Runs one after another do not: see the control below."""
    barely = running_at(lambda knobs: 100.0 * (1.03 if knobs["micro_batch"] == 4 else 1.0))
    restless = {"variation": SpeedVariation(0.08, 10.0)}
    study = {"search_space": {"micro_batch": [2, 4]}, "budget": {"trials": 2}}
    verdict = played.on(barely, **restless).run(**study, measurement={"rounds": 3})
    assert verdict["knobs"]["micro_batch"] == 4
    ratio = verdict["speedup"]
    assert ratio["low"] < 1.03 < ratio["high"]
    assert math.log(ratio["high"] / ratio["low"]) < 0.06
