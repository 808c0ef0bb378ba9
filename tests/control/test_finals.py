"""The finals of a whole study: numerics gate, confirmation, closer look, and what people read of it."""

import json
import math

import pytest
import yaml

from autotune.analysis.verdict import Verdict
from autotune.export.best import read
from autotune.views import markdown_report
from autotune.views.frame import attempts_frame
from autotune.views.overview import describe, status_of
from autotune.views.progress import ProgressLines
from autotune.views.recompute import recomputed_verdict
from autotune.views.verdict_text import text_of
from autotune.worker.protocol import Outcome
from launchers.replay import Launch
from launchers.replay.behaviours import noisy, running_at
from tests.control.replayed import PLAIN, Replayed, configuration, rate
from tests.support.behaviours import where

PRECISION = {"micro_batch": [2, 4], "precision": ["fp32", "bf16"]}


def in_bf16(launch: Launch) -> bool:
    return launch.knobs["precision"] == "bf16"


def purpose(launch: Launch, wanted: str) -> bool:
    return f"-{wanted}" in launch.request.trial


FASTER = where(PLAIN, in_bf16, rate=90.0)


def test_what_computes_the_same_is_recommended(played: Replayed) -> None:
    verdict = played.on(FASTER).run(search_space=PRECISION)
    assert verdict["knobs"]["precision"] == "bf16"
    assert set(played.states("reference") + played.states("numerics")) == {"COMPLETE"}
    assert len(played.attempts("reference")) == 1
    played.assert_complete(trials=4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss": 1.2}, "its loss leaves the reference"),
        ({"replica_spread": 1e-3}, "as if gradients were not exchanged"),
        ({"outcome": Outcome.CRASH, "cause": "rank 1: killed"}, "rank 1: killed"),
    ],
)
def test_what_computes_something_else_is_refused(
    played: Replayed, changes: dict[str, object], reason: str
) -> None:
    def checked(launch: Launch) -> bool:
        return in_bf16(launch) and bool(launch.request.trajectory)

    verdict = played.on(where(FASTER, checked, **changes)).run(search_space=PRECISION)
    assert verdict["knobs"]["precision"] == "fp32"
    refused = played.recorded("numerics")
    assert len({a.trial for a in refused}) == 2
    assert all(reason in a.result.cause for a in refused)
    assert len(verdict["refused"]) == 2
    assert set(played.states("numerics")) == {"CRASH" if "outcome" in changes else "REFUSED"}
    assert all(a.knobs["precision"] == "fp32" for a in played.recorded("confirm"))
    assert reason in json.dumps(verdict)
    played.assert_complete(trials=4)


def gradient(error: float, norm: float = 1.0) -> dict[str, object]:
    """First steps of a convolutional model, whose gradient lies so far from (1, 0)."""
    angle = 2 * math.asin(error / 2)
    row = ["weight", 9, norm, norm * math.cos(angle), norm * math.sin(angle)]
    return {"convolutions": 1, "gradient": [row], "start": "rows"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("rounding", "norm", "refused"),
    [
        (0.35, 1.0, ""),
        (0.05, 1.0, "its gradient in the first step, most of all in weight, lies 35.00%"),
        (0.35, 0.8, "the norm of its gradient in the first step lies 20.00%"),
    ],
)
def test_bf16_of_a_convolutional_model_is_compared_with_plain_autocast(
    played: Replayed, rounding: float, norm: float, refused: str
) -> None:
    def rounded(launch: Launch) -> bool:
        return in_bf16(launch) and bool(launch.request.trajectory)

    behaviour = where(FASTER, rounded, first_steps=gradient(0.35, norm))
    reference = where(behaviour, lambda one: purpose(one, "reference"), first_steps=gradient(0.0))
    autocast = where(reference, lambda one: one.request.autocast, first_steps=gradient(rounding))
    verdict = played.on(autocast).run(search_space=PRECISION)
    [plain] = played.recorded("autocast")
    assert plain.knobs["precision"] == "fp32"
    assert verdict["knobs"]["precision"] == ("fp32" if refused else "bf16")
    assert all(refused in a.result.cause for a in played.recorded("numerics"))
    again = recomputed_verdict(played.repository, played.name)
    assert again.as_dict()["refused"] == verdict["refused"]


@pytest.mark.long
def test_each_seed_of_a_convolutional_model_is_compared_with_its_own_plain_autocast(
    played: Replayed,
) -> None:
    """Rounding of the second seed's gradient is beyond 1.5 times that of the first."""

    def rounded(launch: Launch) -> bool:
        return bool(launch.request.trajectory) and not purpose(launch, "reference")

    def another_seed(launch: Launch) -> bool:
        return rounded(launch) and launch.request.seed > 0

    first = where(FASTER, lambda one: purpose(one, "reference"), first_steps=gradient(0.0))
    second = where(first, rounded, first_steps=gradient(0.2))
    third = where(second, another_seed, first_steps=gradient(0.4))
    open_at_first = where(third, lambda one: purpose(one, "numerics"), loss=1.031)
    played.on(open_at_first).run(search_space=PRECISION)
    checked = {a.seed for a in played.recorded("numerics")}
    assert len(checked) > 1
    assert {a.seed for a in played.recorded("autocast")} == checked
    assert not any("gradient" in a.result.cause for a in played.recorded("numerics"))


def test_line_of_a_check_that_leaves_the_loss_open_says_so_and_which_seed_follows(
    played: Replayed,
) -> None:
    played.on(where(FASTER, lambda one: purpose(one, "numerics"), loss=1.031))
    played.run(search_space=PRECISION)
    told = [
        line.split(maxsplit=3)[3] for line in ProgressLines(played.repository, played.study()).new()
    ]
    own = [line for line in told if line.startswith("numerics: ")]
    assert own[:3] == [
        "numerics: fp32 reference  ok",
        "numerics: loss against fp32  open: another seed is needed",
        "numerics: fp32 reference, seed 2  ok",
    ]
    assert own[3].startswith("numerics: loss against fp32, seed 2  ")


def test_no_run_under_autocast_where_rounding_is_not_amplified(played: Replayed) -> None:
    first = {**gradient(0.0), "convolutions": 0}
    played.on(where(FASTER, lambda one: bool(one.request.trajectory), first_steps=first))
    assert played.run(search_space=PRECISION)["knobs"]["precision"] == "bf16"
    assert not played.attempts("autocast")


def test_no_run_under_autocast_where_gradients_are_not_known(played: Replayed) -> None:
    first = {"convolutions": 1}
    played.on(where(FASTER, lambda one: bool(one.request.trajectory), first_steps=first))
    assert played.run(search_space=PRECISION)["knobs"]["precision"] == "bf16"
    assert not played.attempts("autocast")


@pytest.mark.long
@pytest.mark.parametrize("needed", [{"find_unused_parameters": True}, {"broadcast_buffers": False}])
def test_the_reference_has_what_the_baseline_needs(
    played: Replayed, needed: dict[str, bool]
) -> None:
    def without(launch: Launch) -> bool:
        return any(launch.knobs[name] != value for name, value in needed.items())

    picky = where(FASTER, without, outcome=Outcome.ERROR, cause="rank 0: needs something")
    verdict = played.on(picky).run(search_space=PRECISION, baseline={"micro_batch": 2, **needed})
    assert played.states("reference") == ["COMPLETE"]
    assert verdict["knobs"]["precision"] == "bf16"
    assert verdict["numerics"]["unverified"] == ""
    played.assert_complete(trials=4)


UNCHECKED = where(
    FASTER,
    lambda launch: purpose(launch, "reference"),
    outcome=Outcome.ERROR,
    cause="rank 0: no reference",
)


def test_what_could_not_be_checked_is_not_recommended(played: Replayed) -> None:
    verdict = played.on(UNCHECKED).run(search_space=PRECISION)
    assert played.states("reference") == ["ERROR", "ERROR"]
    assert played.attempts("numerics") == []
    assert verdict["knobs"]["precision"] == "fp32"
    assert {r["knobs"]["precision"] for r in verdict["refused"]} == {"bf16"}
    assert "the reference ended in ERROR: rank 0: no" in verdict["refused"][0]["reason"]
    assert all(a.knobs["precision"] == "fp32" for a in played.recorded("confirm"))
    recomputed = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(recomputed.as_dict())) == verdict
    played.assert_complete(trials=4)


def test_what_could_not_be_checked_is_recommended_if_the_study_says_so(played: Replayed) -> None:
    verdict = played.on(UNCHECKED).run(
        search_space=PRECISION, measurement={"unverified_numerics": "allow"}
    )
    assert verdict["knobs"]["precision"] == "bf16"
    assert "no reference" in verdict["numerics"]["unverified"]
    assert verdict["touched"] == ["precision"]
    recomputed = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(recomputed.as_dict())) == verdict
    played.assert_complete(trials=4)


def test_a_reference_without_memory_is_run_with_half_the_micro_batch(played: Replayed) -> None:
    def large(launch: Launch) -> bool:
        return launch.knobs["precision"] == "fp32" and launch.knobs["micro_batch"] > 2

    small = where(FASTER, large, outcome=Outcome.OOM, cause="rank 0: no memory")
    space = {"micro_batch": [4, 8], "compile": ["none", "default"], "precision": ["bf16"]}
    baseline = {"micro_batch": 8, "precision": "bf16"}
    compiled = where(small, lambda launch: launch.knobs["compile"] == "default", rate=120.0)
    verdict = played.on(compiled).run(search_space=space, baseline=baseline)
    sizes = [(a.knobs["micro_batch"], a.result.state) for a in played.attempts("reference")]
    assert sizes[0][1] == "OOM"
    assert sizes[-1] == (2, "COMPLETE")
    assert verdict["knobs"]["compile"] == "default"
    assert {a.knobs["micro_batch"] for a in played.recorded("numerics")} == {2}


def test_a_reference_whose_loss_is_no_number(played: Replayed) -> None:
    diverging = where(FASTER, lambda launch: purpose(launch, "reference"), loss=math.nan)
    verdict = played.on(diverging).run(search_space=PRECISION)
    assert played.states("reference") == ["REFUSED"]
    assert verdict["knobs"]["precision"] == "fp32"


@pytest.mark.long
def test_noise_asks_for_more_rounds(played: Replayed) -> None:
    played.on(noisy(PLAIN, run=0.2), seed=1)
    played.run(budget={"trials": 10}, measurement={"rounds": 6, "finalists": 3})
    rounds = {a.round for a in played.attempts("confirm")}
    assert len(rounds) > 3
    played.assert_complete(trials=10)


def test_nothing_is_a_verdict_too(played: Replayed) -> None:
    """All are as fast as the baseline: noise alone must not make a winner."""
    flat = noisy(where(PLAIN, lambda _: True, rate=50.0), run=0.03, block=0.01)
    verdict = played.on(flat).run(budget={"trials": 8}, measurement={"rounds": 5, "finalists": 3})
    assert verdict["trial"] == 0
    assert yaml.safe_load((played.folder / "best.yaml").read_text())["knobs"]["micro_batch"] == 2
    played.assert_complete(trials=8)


@pytest.mark.parametrize("micro_batch", [2, 16], ids=["baseline", "finalist"])
@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.CRASH, Outcome.HANG])
def test_a_run_of_a_round_that_fails_once_is_repeated(
    played: Replayed, micro_batch: int, outcome: Outcome
) -> None:
    struck: list[str] = []

    def once(launch: Launch) -> bool:
        trial, _, run = launch.request.trial.split("/")[1].partition("-confirm2-")
        # The first run is one beside the others, which is not counted; the second is alone.
        if launch.knobs["micro_batch"] != micro_batch or run not in ("1", "2"):
            return False
        struck.append(trial)
        return trial == struck[0]

    failing = where(PLAIN, once, outcome=outcome, cause="NCCL error: connection reset by peer")
    verdict = played.on(failing).run(budget={"trials": 10}, measurement={"finalists": 2})
    assert verdict["kind"] == "better"
    assert verdict["knobs"]["micro_batch"] == 16
    second = [a for a in played.attempts("confirm") if a.round == 2]
    [failed] = [a for a in second if a.result.state == outcome.value]
    assert failed.knobs["micro_batch"] == micro_batch
    assert [a.result.state for a in second if a.trial == failed.trial][-2:] == [
        outcome.value,
        "COMPLETE",
    ]
    played.assert_complete(trials=10)


@pytest.mark.long
def test_a_finalist_that_fails_in_its_second_round_is_out(played: Replayed) -> None:
    def second(launch: Launch) -> bool:
        return launch.knobs["micro_batch"] == 16 and purpose(launch, "confirm2-")

    failing = where(PLAIN, second, outcome=Outcome.CRASH, cause="rank 0: killed")
    verdict = played.on(failing).run(budget={"trials": 10}, measurement={"finalists": 3})
    assert verdict["knobs"]["micro_batch"] == 8
    crashed = [a for a in played.attempts("confirm") if a.result.state == "CRASH"]
    assert {(a.knobs["micro_batch"], a.round) for a in crashed} == {(16, 2)}
    assert all(a.knobs["micro_batch"] != 16 for a in played.attempts("confirm") if a.round > 2)
    played.assert_complete(trials=10)


def test_when_all_fail_in_the_confirmation_there_is_no_result(played: Replayed) -> None:
    failing = where(PLAIN, lambda launch: purpose(launch, "confirm"), outcome=Outcome.ERROR)
    verdict = played.on(failing).run(budget={"trials": 3})
    assert verdict["trial"] is None
    assert played.repository.recommendations.newest_of(played.study().id) is None
    played.assert_complete(trials=3)


def test_a_finalist_whose_agent_dies_is_measured_again(played: Replayed) -> None:
    def first(launch: Launch) -> bool:
        name = launch.request.trial.split("/")[1]
        return purpose(launch, "confirm1") and name.endswith("-1")

    lossy = where(PLAIN, first, lost_agent=True, outcome=Outcome.CRASH)
    played.on(lossy).run(budget={"trials": 3})
    states = [a.result.state for a in played.attempts("confirm") if a.round == 1]
    assert sorted(states) == ["COMPLETE"] * 3 + ["LOST"] * 3
    played.assert_complete(trials=3)


@pytest.mark.long
def test_ablation_and_profiles_tell_what_each_knob_brings(played: Replayed) -> None:
    played.run(budget={"trials": 10}, measurement={"ablation_rounds": 2})
    verdict = played.verdict
    winner = (verdict["knobs"]["micro_batch"], verdict["knobs"]["accumulation_steps"])
    assert winner == (16, 2)
    variants = {configuration(a) for a in played.recorded("ablation")}
    assert variants == {(16, 2), (2, 2), (16, 1)}
    assert {a.round for a in played.recorded("ablation")} == {1, 2}
    profiled = [configuration(a) for a in played.recorded("profile")]
    assert profiled == [(2, 1), (16, 2)]
    shown = markdown_report.report(played.repository, played.name, Verdict.from_dict(verdict))
    assert "micro_batch" in shown
    assert "communication" in shown


def test_what_people_read_of_a_study(played: Replayed) -> None:
    verdict = played.on(noisy(PLAIN, run=0.02, block=0.01)).run(budget={"trials": 6})
    status = status_of(played.repository, played.name)
    assert json.loads(json.dumps(status))["state"] == "DONE"
    text = text_of(Verdict.from_dict(verdict))
    assert "DONE" in describe(status)
    assert text in markdown_report.report(
        played.repository, played.name, Verdict.from_dict(verdict)
    )
    recomputed = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(recomputed.as_dict())) == verdict
    assert len(attempts_frame(played.repository, played.name)) == len(played.attempts())
    assert read(played.folder / "best.yaml").knobs == verdict["knobs"]


def quick_to_log(knobs: dict[str, object]) -> float:
    """Larger batches are faster; to log at every step gains 0.4 %, which nobody needs."""
    return rate(knobs) * (1.004 if knobs["log_interval"] == 1 else 1.0)


def test_a_change_that_brings_nothing_goes_back_before_the_rounds_that_tell_by_how_much(
    played: Replayed,
) -> None:
    space = {"micro_batch": [2, 16], "log_interval": [1, 10]}
    verdict = played.on(running_at(quick_to_log)).run(
        search_space=space,
        baseline={"micro_batch": 2, "log_interval": 10},
        budget={"trials": 4},
        measurement={"ablation_rounds": 2, "finalists": 1},
    )
    searched = next(a for a in played.recorded("search") if a.trial == verdict["trial"])
    assert (searched.knobs["micro_batch"], searched.knobs["log_interval"]) == (16, 1)
    assert (verdict["knobs"]["micro_batch"], verdict["knobs"]["log_interval"]) == (16, 10)
    assert verdict["reverted"] == {"log_interval": 10}
    own = [a for a in played.recorded("confirm") if a.trial == verdict["trial"]]
    assert [a.knobs["log_interval"] for a in own] == [1] * verdict["chosen_in"] + [10] * verdict[
        "rounds"
    ]
    assert read(played.folder / "best.yaml").knobs == verdict["knobs"]
    recomputed = recomputed_verdict(played.repository, played.name)
    assert json.loads(json.dumps(recomputed.as_dict())) == verdict
    shown = markdown_report.report(played.repository, played.name, Verdict.from_dict(verdict))
    assert "What each change brings" in shown
    gains = shown.partition("### What each change brings")[2].partition("\n### ")[0]
    assert "| log_interval |" not in gains
    played.assert_complete(trials=4)


def either_of_two(knobs: dict[str, object]) -> float:
    """Two changes, each of which brings a fifth, and both a thousandth more."""
    changed = [knobs["log_interval"] == 50, knobs["bucket_cap_mb"] == 100]
    return 100.0 * (1.2 if any(changed) else 1.0) * (1.001 if all(changed) else 1.0)


def test_of_two_changes_that_do_the_same_one_is_kept_and_the_other_named(played: Replayed) -> None:
    """Taken away alone neither is missed, together they are."""
    verdict = played.on(running_at(either_of_two)).run(
        search_space={"log_interval": [10, 50], "bucket_cap_mb": [25, 100]},
        baseline={"log_interval": 10, "bucket_cap_mb": 25},
        budget={"trials": 4},
        measurement={"ablation_rounds": 2, "finalists": 1},
    )
    searched = next(a for a in played.recorded("search") if a.trial == verdict["trial"])
    assert (searched.knobs["log_interval"], searched.knobs["bucket_cap_mb"]) == (50, 100)
    kept = (verdict["knobs"]["log_interval"], verdict["knobs"]["bucket_cap_mb"])
    assert kept in [(50, 25), (10, 100)]
    gone = {"bucket_cap_mb": 25} if kept == (50, 25) else {"log_interval": 10}
    assert verdict["reverted"] == gone
    assert verdict["speedup"]["value"] == pytest.approx(1.2, abs=0.002)
    own = [a for a in played.recorded("confirm") if a.trial == verdict["trial"]]
    alone = [
        (a.knobs["log_interval"], a.knobs["bucket_cap_mb"]) for a in own[verdict["chosen_in"] :]
    ]
    assert set(alone) == {kept}
    shown = markdown_report.report(played.repository, played.name, Verdict.from_dict(verdict))
    assert f"| {'log_interval' if kept == (50, 25) else 'bucket_cap_mb'} |" in shown
    played.assert_complete(trials=4)


@pytest.mark.long
@pytest.mark.parametrize(
    "wall_time",
    [90, 220, 240, *(pytest.param(one, marks=pytest.mark.slow) for one in (160, 230))],
)
def test_what_is_recommended_is_what_the_figures_are_of(played: Replayed, wall_time: int) -> None:
    """Where the time is over before what was taken back is measured, because that starts so slowly."""

    def reduced(launch: Launch) -> bool:
        return (
            purpose(launch, "confirm")
            and launch.knobs["log_interval"] == 10
            and launch.knobs["micro_batch"] == 16
        )

    verdict = played.on(where(running_at(quick_to_log), reduced, startup=40.0)).run(
        search_space={"micro_batch": [2, 16], "log_interval": [1, 10]},
        baseline={"micro_batch": 2, "log_interval": 10},
        budget={"trials": 4, "wall_time": f"{wall_time}s"},
        measurement={"ablation_rounds": 2, "finalists": 1},
    )
    own = [a for a in played.recorded("confirm") if a.trial == verdict["trial"]]
    in_vain = [a for a in own if a.result.throughput is None]
    assert len(in_vain) <= 3, "each was given twice the time of the one before"
    measured = [a for a in own if a.result.throughput and a.knobs == verdict["knobs"]]
    assert len(measured) >= verdict["rounds"]
    recomputed = recomputed_verdict(played.repository, played.name)
    found = json.loads(json.dumps(recomputed.as_dict()))
    for one in (found, verdict):  # by the clock, and that of a replay is virtual
        del one["missing_seconds"]
    assert found == verdict
