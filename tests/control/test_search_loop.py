"""The search of a whole study: opening, calibration, racing, failures, memory, budgets."""

import dataclasses
import re
import threading
from pathlib import Path

import pytest
from optuna.samplers import RandomSampler

from autotune.config import load
from autotune.service.submission import submit
from autotune.worker.protocol import Knobs, Outcome
from launchers.replay import Answer, Launch, ReplayLauncher
from launchers.replay.behaviours import Behaviour, noisy, running_at
from launchers.replay.launcher import ENVIRONMENT
from storage import Database
from storage.trials import TrialLedger
from tests.control.deaths import Died, mortal
from tests.control.replayed import MEASUREMENT, PLAIN, SPACE, Replayed, configuration, rate
from tests.support.behaviours import where, within_memory
from tests.support.steering import write_study

BASELINE = {"micro_batch": 2}


def is_baseline(launch: Launch) -> bool:
    return (launch.knobs["micro_batch"], launch.knobs["accumulation_steps"]) == (2, 1)


def others(launch: Launch) -> bool:
    return not is_baseline(launch)


@pytest.mark.long
def test_a_whole_study_recommends_the_fastest(played: Replayed) -> None:
    verdict = played.run(budget={"trials": 10})
    played.assert_complete(trials=10)
    assert verdict["knobs"]["micro_batch"] == 16
    assert verdict["speedup"]["value"] == pytest.approx(
        rate(verdict["knobs"]) / rate({"micro_batch": 2, "accumulation_steps": 1}), rel=1e-6
    )
    assert "every feasible configuration has been tried" not in played.said()
    trial, attempt = played.trials()[0], played.attempts("search")[0]
    assert trial.user_attrs["standard_error"] == pytest.approx(attempt.result.sigma_run)


def test_the_search_ends_when_nothing_is_left(played: Replayed) -> None:
    played.run(budget={"trials": 100})
    played.assert_complete(trials=10)
    assert "every feasible configuration has been tried" in played.said()
    assert {configuration(a) for a in played.attempts("search")} == {
        (m, a) for m in SPACE["micro_batch"] for a in SPACE["accumulation_steps"]
    }


@pytest.mark.long
def test_the_search_ends_when_nothing_more_is_found_in_a_large_space(played: Replayed) -> None:
    names = "micro_batch", "accumulation_steps", "log_interval", "bucket_cap_mb"
    played.run(
        budget={"trials": 100},
        search_space={name: [*range(1, 23)] for name in names},
        baseline=dict.fromkeys(names, 1),
        constraints=[f"{name} == 1" for name in names],
    )
    assert "The search ends: every feasible configuration that is found was tried" in played.said()
    assert [configuration(a) for a in played.attempts("search")] == [(1, 1)]


def test_the_baseline_comes_first_then_what_experts_would_try(played: Replayed) -> None:
    parts = {"communication": 0.6, "compute": 0.4}
    played.on(where(PLAIN, lambda _: True, parts=parts)).run(budget={"trials": 3})
    assert played.attempts()[0].purpose == "profile"
    assert "(60% of its step): ranks wait for gradients" in played.said()
    first, second, _ = played.attempts("search")
    assert configuration(first) == (2, 1)
    assert configuration(second) != (2, 1)
    reasons = [t.user_attrs.get("suggested_by", "") for t in played.trials()]
    assert reasons[0] == "baseline"
    assert reasons[1].startswith("it answers what holds the baseline back")


class NeverIdle:
    """Behaviour of trials that end when the next has begun: on two slots one always runs."""

    def __init__(self, behaviour: Behaviour, trials: int) -> None:
        self._behaviour = behaviour
        self._left = trials
        self._begun = 0
        self._begins = threading.Condition()

    def __call__(self, launch: Launch) -> Answer:
        with self._begins:
            self._begun += 1
            self._begins.notify_all()
            if "-search-" in launch.request.trial:
                self._left -= 1  # after the last trial none begins
                mine = self._begun
                self._begins.wait_for(lambda: self._begun > mine or self._left <= 0, timeout=180)
        return self._behaviour(launch)


def test_bundle_that_fails_is_split_while_another_slot_is_busy(played: Replayed) -> None:
    def crashes(launch: Launch) -> bool:
        return launch.knobs["precision"] == "bf16" and launch.knobs["micro_batch"] > 2

    failing = where(PLAIN, crashes, outcome=Outcome.CRASH, cause="rank 0: killed")
    space = {**SPACE, "precision": ["fp32", "bf16"], "log_interval": [1, 10, 100]}
    played.on(NeverIdle(failing, trials=8), slots=2).run(budget={"trials": 8}, search_space=space)
    reasons = [trial.user_attrs.get("suggested_by", "") for trial in played.trials()]
    assert "a part of what failed (CRASH)" in reasons


def test_part_of_a_bundle_that_must_run_out_of_memory_is_not_launched(played: Replayed) -> None:
    def crowded(launch: Launch) -> bool:
        return launch.knobs["micro_batch"] > 2

    failing = where(PLAIN, crowded, outcome=Outcome.OOM, cause="rank 0: no memory")
    space = {"micro_batch": [2, 8], "log_interval": [1, 50], "freeze_gc": [False, True]}
    played.on(failing).run(budget={"trials": 6}, search_space=space)
    reasons = {t.number: t.user_attrs.get("suggested_by", "") for t in played.trials()}
    parts = [a for a in played.attempts("search") if reasons[a.trial].startswith("a part of")]
    assert [a.result.state for a in parts] == ["COMPLETE"] * 2


@pytest.mark.parametrize(("cores", "favoured"), [(2, False), (16, True)])
def test_processes_that_load_are_favoured_where_there_are_cores_for_them(
    played: Replayed, cores: int, favoured: bool
) -> None:
    space = {"micro_batch": [2, 4, 8], "num_workers": [0, 2]}
    played.on(PLAIN, environment={**ENVIRONMENT, "cores": cores})
    played.run(budget={"trials": 3}, search_space=space)
    reasons = [line for line in played.said().splitlines() if "what experience favours" in line]
    assert ("num_workers" in "".join(reasons)) == favoured


SWITCHES = {"precision": ["fp32", "bf16"], "log_interval": [1, 10, 100], "freeze_gc": [False, True]}


def of_precision(factor: float) -> Behaviour:
    """Return runs whose step computes all the time, with the speed of bf16."""

    def speed(knobs: Knobs) -> float:
        return 100.0 * (factor if knobs["precision"] == "bf16" else 1.0)

    return where(running_at(speed), lambda _: True, parts={"compute": 1.0})


@pytest.mark.parametrize(("factor", "kept"), [(0.8, "fp32"), (1.2, "bf16")])
def test_bundle_leaves_out_an_answer_that_is_slower(
    played: Replayed, factor: float, kept: str
) -> None:
    asked = {"search_space": SWITCHES, "baseline": {"log_interval": 1, "freeze_gc": False}}
    played.on(noisy(of_precision(factor), block=0.005)).run(budget={"trials": 3}, **asked)
    _, answer, bundle = played.attempts("search")
    assert (answer.knobs["precision"], answer.knobs["log_interval"]) == ("bf16", 1)
    assert (bundle.knobs["precision"], bundle.knobs["log_interval"]) == (kept, 100)
    assert played.said().count("what experience favours") == 1


def test_bundle_of_nothing_but_a_slower_answer_is_not_tried(played: Replayed) -> None:
    played.on(noisy(of_precision(0.8), block=0.005))
    played.run(budget={"trials": 5}, search_space={"precision": ["fp32", "bf16"]}, baseline={})
    assert len(played.attempts("search")) == 2
    assert "what experience favours" not in played.said()


def test_bundle_is_tried_where_the_baseline_does_not_run(played: Replayed) -> None:
    computes = of_precision(0.8)

    def behaviour(launch: Launch) -> Answer:
        own = launch.knobs["precision"] == "fp32" and launch.knobs["log_interval"] == 1
        full = own and not launch.request.profile
        return dataclasses.replace(computes(launch), outcome=Outcome.OOM if full else None)

    asked = {"search_space": SWITCHES, "baseline": {"log_interval": 1, "freeze_gc": False}}
    played.on(behaviour).run(budget={"trials": 4}, **asked)
    assert "OOM" in played.states()
    assert "what experience favours" in played.said()


def test_bundle_waits_for_no_answer_where_trials_run_side_by_side(played: Replayed) -> None:
    asked = {"search_space": SWITCHES, "baseline": {"log_interval": 1, "freeze_gc": False}}
    played.on(of_precision(0.8), slots=2).run(budget={"trials": 3}, **asked)
    assert "To be tried first: what experience favours" in played.said()
    assert [a.knobs["precision"] for a in played.attempts("search")] == ["fp32", "bf16", "bf16"]


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(("sigma", "again"), [(0.03, 1), (0.1, 0)])
def test_calibration_finds_the_noise_between_runs(
    played: Replayed, slots: int, sigma: float, again: int
) -> None:
    """Seven runs early on, one after eight trials unless the baseline is beside each of them."""
    played.on(noisy(PLAIN, run=sigma, block=0.005), slots=slots)
    played.run(budget={"trials": 10}, measurement={"baseline_runs": 8, "max_measure_time": 3.0})
    played.assert_complete(trials=10)
    assert len(played.recorded("calibrate")) == 7 + again
    assert bool(played.attempts("paired")) != again
    found = played.repository.noise.of(played.study().id)
    assert found is not None
    assert 0.4 * sigma < found.sigma_run < 1.8 * sigma


def test_the_baseline_runs_again_in_the_processes_of_the_trial_before(played: Replayed) -> None:
    """Where a build takes minutes it would take two more to know the noise."""
    space = {"micro_batch": [2, 4, 8, 16, 32, 64]}
    asked = {"budget": {"trials": 5}, "measurement": {"baseline_runs": 3}}
    played.on(noisy(PLAIN, run=0.01, block=0.005)).run(search_space=space, **asked)
    look, *launched = [a for a in played.attempts() if a.purpose != "confirm"][:8]
    assert [a.purpose for a in launched] == [*["search"] * 4, *["calibrate"] * 2, "search"]
    assert {a.result.resident_of for a in launched} == {look.id}


def test_best_configuration_has_one_expected_figure_over_all_runs_of_the_baseline(
    played: Replayed,
) -> None:
    def own_trial(launch: Launch) -> bool:
        return is_baseline(launch) and launch.number <= 2

    slow_at_first = where(PLAIN, own_trial, rate=0.9 * rate({**BASELINE, "accumulation_steps": 1}))
    played.on(noisy(slow_at_first, run=0.01, block=0.005)).run(
        budget={"trials": 8}, measurement={"baseline_runs": 3}, sampler="model"
    )
    said = played.said()
    best = re.search(r"The model takes (.*) for the best, with ([\d.]+)x yours", said)
    first = re.search(r"Measured again with yours: trial (\d+) \(expected ([\d.]+)x\)", said)
    assert best and first
    assert best[2] == first[2]
    assert float(first[2]) < 1.05 * rate(played.attempts("search")[int(first[1])].knobs) / rate(
        {**BASELINE, "accumulation_steps": 1}
    )


@pytest.mark.long
def test_racing_ends_what_cannot_catch_up_but_never_the_baseline(played: Replayed) -> None:
    slow_baseline = where(PLAIN, is_baseline, rate=1.0)
    uneven = noisy(slow_baseline, block=0.03)
    played.on(uneven).run(budget={"trials": 10})
    states = {configuration(a): a.result.state for a in played.attempts("search")}
    assert states[2, 1] == "COMPLETE"
    assert "PRUNED" in states.values()
    played.assert_complete(trials=10)


@pytest.mark.long
def test_what_runs_out_of_memory_is_learnt(played: Replayed) -> None:
    limited = within_memory(PLAIN, lambda knobs: knobs["micro_batch"] * 100.0, limit=500.0)
    space = {"micro_batch": [1, 2, 4, 8, 16, 32, 64], "accumulation_steps": [1, 2]}
    verdict = played.on(limited).run(
        search_space=space, budget={"trials": 14, "min_improvement": 0.0}, sampler="model"
    )
    assert verdict["knobs"]["micro_batch"] == 4
    # Whatever has as much memory or more is not launched any more.
    assert 1 <= played.states().count("OOM") <= 3
    assert all(
        a.result.peak_bytes == 100 * a.knobs["micro_batch"] for a in played.recorded("confirm")
    )
    played.assert_complete()


def test_batch_that_fits_without_accumulation_is_found_after_it_failed_with_it(
    played: Replayed,
) -> None:
    def memory(knobs: Knobs) -> float:
        waiting = 500.0 * (knobs["accumulation_steps"] > 1)
        return knobs["micro_batch"] * 100.0 + waiting

    space = {"micro_batch": [2, 32], "accumulation_steps": [1, 2]}
    limited = within_memory(PLAIN, memory, limit=3500.0)
    played.on(limited).run(search_space=space, budget={"trials": 14})
    fitted = [a.knobs for a in played.attempts("search") if a.result.throughput]
    assert (32, 1) in [(k["micro_batch"], k["accumulation_steps"]) for k in fitted]
    assert played.states().count("OOM") <= 1
    played.assert_complete()


def test_a_baseline_without_memory_is_said_and_the_rest_is_searched(played: Replayed) -> None:
    broken = where(PLAIN, is_baseline, outcome=Outcome.OOM, cause="rank 0: no memory")
    verdict = played.on(broken).run(budget={"trials": 6})
    assert "OOM" in played.states()
    assert verdict["trial"] not in (None, 0)
    assert verdict["baseline_failure"]["cause"] == "rank 0: no memory"
    played.assert_complete()


FAILURES = {
    Outcome.ERROR: "rank {rank}: ValueError: planted error (train.py:7, in loss)",
    Outcome.CRASH: "rank {rank}: died by SIGSEGV",
    Outcome.HANG: "rank {rank}: a step took more than 20 s",
}


@pytest.mark.sample
@pytest.mark.fault(17)
@pytest.mark.parametrize("outcome", FAILURES)
@pytest.mark.parametrize("slots", [1, 2])
def test_two_equal_failures_of_the_baseline_end_the_study(
    played: Replayed, outcome: Outcome, slots: int
) -> None:
    def broken(launch: Launch) -> Answer:
        # Which rank is first is chance.
        cause = FAILURES[outcome].format(rank=launch.number % 2)
        return dataclasses.replace(PLAIN(launch), outcome=outcome, cause=cause)

    played.on(broken, slots=slots).submit(budget={"trials": 100})
    played.serve()
    study = played.study()
    assert study.state == "FAILED"
    assert FAILURES[outcome].partition(": ")[2] in str(study.error)
    assert "autotune logs played --trial 0" in str(study.error)
    baseline = [a for a in played.recorded() if configuration(a) == (2, 1)]
    assert [a.purpose for a in baseline] == ["profile", "search"]
    assert len(played.attempts()) <= 1 + 2 * slots
    assert not (played.folder / "best.yaml").exists()


def test_a_baseline_that_fails_late_is_tried_again_before_anything_else(played: Replayed) -> None:
    """Its profile is too short to meet what fails."""

    def timed(launch: Launch) -> bool:
        return is_baseline(launch) and not launch.request.profile

    broken = where(PLAIN, timed, outcome=Outcome.ERROR, cause="rank 0: NonFiniteLoss: step 30")
    played.on(broken).submit(budget={"trials": 100})
    played.serve()
    assert played.study().state == "FAILED"
    # In the processes of the look first; what fails there counts only in its own.
    purposes = [a.purpose for a in played.attempts()]
    assert purposes == ["profile", "search", "search", "calibrate"]
    assert played.attempts("search")[0].result.state == "LOST"


@pytest.mark.long
def test_a_baseline_that_was_mended_goes_on(played: Replayed) -> None:
    broken = where(PLAIN, is_baseline, outcome=Outcome.ERROR, cause="rank 0: planted error")
    played.on(broken).submit(budget={"trials": 5})
    played.serve()
    assert played.study().state == "FAILED"
    before = len(played.attempts())
    played.submit(budget={"trials": 5})  # not mended at all
    played.serve()
    assert played.study().state == "FAILED"
    assert len(played.attempts()) == before + 1
    played.on(PLAIN).submit(budget={"trials": 5})
    played.serve()
    assert played.study().state == "DONE"
    assert played.verdict["baseline"] is not None
    assert played.verdict["speedup"]["value"] > 1
    assert played.states().count("ERROR") == 1
    assert len(played.trials()) == 5


@pytest.mark.long
def test_a_trial_of_somebody_that_cannot_be_ends_no_study(played: Replayed) -> None:
    """It was enqueued with a value that is none, and the daemon that asked for it has died."""
    played.run(budget={"trials": 2})
    ledger = TrialLedger(played.repository.database, played.name, RandomSampler(0))
    ledger._study.enqueue_trial({"micro_batch": 3})
    ledger._study.ask({})
    played.submit(budget={"trials": 5})
    played.serve()
    study = played.study()
    assert (study.state, study.error) == ("DONE", None)
    states = [trial.state.name for trial in played.trials()]
    assert [number for number, state in enumerate(states) if state == "FAIL"] == [2]
    assert len(states) > 3


def test_a_baseline_that_fails_by_chance_has_its_figure(played: Replayed) -> None:
    def once(launch: Launch) -> bool:
        return is_baseline(launch) and launch.number == 2

    unlucky = where(PLAIN, once, outcome=Outcome.CRASH, cause="rank 0: died by SIGBUS")
    verdict = played.on(unlucky).run(budget={"trials": 6})
    assert verdict["baseline"] is not None
    assert played.study().state == "DONE"


@pytest.mark.long
def test_a_hang_takes_its_deadline_and_the_study_goes_on(played: Replayed) -> None:
    hangs = where(PLAIN, lambda launch: launch.knobs["micro_batch"] == 4, outcome=Outcome.HANG)
    played.on(where(hangs, others, after=2)).run(budget={"trials": 10})
    hung = [a for a in played.recorded("search") if a.knobs["micro_batch"] == 4]
    assert [a.result.state for a in hung] == ["HANG"] * 2
    assert all(20 < a.result.wall_seconds < 25 for a in hung), "blocks, then the timeout of a step"
    played.assert_complete(trials=10)


def test_a_lost_agent_costs_a_launch_and_no_trial(played: Replayed) -> None:
    def first(launch: Launch) -> bool:
        searched = "-search-" in launch.request.trial
        return searched and launch.request.trial.rpartition("/")[0].endswith("-1")

    lossy = where(PLAIN, first, lost_agent=True, outcome=Outcome.CRASH, cause="the agent died")
    played.on(lossy).run(budget={"trials": 3})
    assert played.states() == ["LOST", "COMPLETE"] * 3
    assert played.said().count("it is launched again") == 3
    played.assert_complete(trials=3)


@pytest.mark.long
def test_agents_that_keep_dying_end_a_trial(played: Replayed) -> None:
    lossy = where(
        PLAIN,
        lambda launch: launch.knobs["micro_batch"] == 16,
        lost_agent=True,
        outcome=Outcome.CRASH,
        cause="the agent died",
    )
    played.on(lossy).run(budget={"trials": 10})
    states = [a.result.state for a in played.attempts("search") if a.knobs["micro_batch"] == 16]
    assert states == ["LOST", "LOST", "CRASH"] * 2
    played.assert_complete(trials=10)


# Budgets, in virtual time


def test_wall_time_ends_the_search_and_keeps_what_the_proof_takes(played: Replayed) -> None:
    played.on(where(PLAIN, lambda _: True, startup=100.0, stays=False))
    played.run(budget={"trials": None, "wall_time": "20m"})
    assert "s are for what proves the result" in played.said()
    searched = sum(a.result.wall_seconds for a in played.attempts("search"))
    assert 300 < searched < 600  # three rounds of two runs take another 600
    assert {a.round for a in played.attempts("confirm")} == {1, 2, 3}
    assert played.seconds <= 1.1 * 1200
    assert played.seconds == pytest.approx(
        sum(a.result.wall_seconds for a in played.attempts()), rel=1e-6
    )
    played.assert_complete()


def test_out_of_time_the_confirmation_makes_do_with_the_fewest_rounds(played: Replayed) -> None:
    played.on(noisy(where(PLAIN, lambda _: True, startup=100.0, stays=False), run=0.2))
    played.run(budget={"trials": None, "wall_time": "20m"}, measurement={"rounds": 9})
    assert {a.round for a in played.attempts("confirm")} == {1, 2, 3}


def test_device_hours_count_trials_times_ranks(played: Replayed) -> None:
    played.on(where(PLAIN, lambda _: True, startup=895.0, stays=False), workers=4)
    played.run(budget={"trials": None, "device_hours": 3})
    assert "the budget of 3 device hours is spent" in played.said()
    assert len(played.attempts("search")) == 3
    played.assert_complete(trials=3)


@pytest.mark.long
def test_a_budget_that_is_raised_goes_on_where_it_stood(played: Replayed) -> None:
    played.run(budget={"trials": 3})
    before = [a.id for a in played.attempts("search")]
    played.run(budget={"trials": 6})
    assert [a.id for a in played.attempts("search")][:3] == before
    played.assert_complete(trials=6)


WIDE = {"micro_batch": [1, 2, 4, 8, 16, 32, 64], "log_interval": [1, 2, 5, 10, 20]}


@pytest.mark.long
def test_a_daemon_that_comes_later_knows_what_was_not_worth_it_before(played: Replayed) -> None:
    played.run(budget={"min_improvement": 0.005}, sampler="model", search_space=WIDE)
    assert "less than the" in played.said()
    played.assert_complete()
    alone = len(played.trials())
    assert 6 <= alone < 25
    again = Replayed(played.folder, Database(f"sqlite:///{played.folder}/again.db"))
    again.run(
        budget={"trials": alone, "min_improvement": 0.005}, sampler="model", search_space=WIDE
    )
    assert f"the budget of {alone} trials is spent" in again.said()
    again.run(budget={"min_improvement": 0.005}, sampler="model", search_space=WIDE)
    assert "less than the" in again.said()
    again.assert_complete(trials=alone)


@pytest.mark.long
def test_without_a_number_of_trials_it_ends_once_one_costs_more_than_it_saves(
    played: Replayed,
) -> None:
    played.run(budget={"min_improvement": None}, sampler="model", search_space=WIDE)
    assert "of a job of 168 hours, objective.expected_job_hours" in played.said()
    week = len(played.trials())
    assert 6 <= week < 35
    short = Replayed(played.folder, Database(f"sqlite:///{played.folder}/short.db"))
    short.run(
        budget={"min_improvement": None},
        objective={"expected_job_hours": 0.02, "global_batch_size": "free"},
        sampler="model",
        search_space=WIDE,
    )
    assert "of a job of 0.02 hours, objective.expected_job_hours" in short.said()
    assert len(short.trials()) <= week


# micro_batch: max


def limited(limit: float) -> object:
    return within_memory(PLAIN, lambda knobs: knobs["micro_batch"] * 10.0 + 50.0, limit)


LARGEST = {"micro_batch": ["max"], "accumulation_steps": [1, 2]}
MEMORY = {"workers": 2, "memory_per_worker": "1GiB"}


def test_the_largest_batch_is_found_and_searched(played: Replayed) -> None:
    played.on(limited(450.0))  # 40 fit
    verdict = played.run(search_space=LARGEST, resources=MEMORY, budget={"trials": 4})
    fits = {a.knobs["micro_batch"]: a.result.state for a in played.attempts("fit")}
    assert fits[32] == "COMPLETE"
    assert fits[64] == "OOM"
    assert "max is taken to be 32" in played.said()
    assert verdict["knobs"]["micro_batch"] == 32
    played.assert_complete(trials=4)


def test_not_even_one_sample_fits(played: Replayed) -> None:
    played.on(limited(10.0))
    played.submit(search_space=LARGEST, resources=MEMORY, baseline={"micro_batch": 1})
    played.serve()
    assert played.study().state == "FAILED"
    assert "not even 1 fits in memory" in str(played.study().error)


def test_a_baseline_that_cannot_run_here_is_bad_input(played: Replayed) -> None:
    played.submit(
        objective={"global_batch_size": 6},
        baseline={"micro_batch": 3},
        search_space={"micro_batch": [1, 3]},
    )
    played.on(running_at(rate), refusal=lambda knobs: "not on this machine")
    played.serve()
    assert played.study().state == "FAILED"
    assert "the baseline cannot run here: not on this machine" in str(played.study().error)


@pytest.mark.long
def test_more_budget_while_the_launcher_opens_is_spent(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon has claimed the study, and runs it by its old settings first."""
    played.submit(budget={"trials": 2})
    opening = played.machine.open

    def raise_budget(*arguments: object) -> ReplayLauncher:
        monkeypatch.setattr(played.machine, "open", opening)
        played.submit(budget={"trials": 4})
        return opening(*arguments)

    monkeypatch.setattr(played.machine, "open", raise_budget)
    played.serve()
    played.assert_complete(trials=4)


def test_ranks_look_for_the_workload_beside_the_study_file_too(
    played: Replayed, tmp_path: Path
) -> None:
    asked: set[tuple[str, ...]] = set()

    def seen(launch: Launch) -> Answer:
        asked.add(launch.request.import_paths)
        return PLAIN(launch)

    beside = tmp_path / "beside"
    beside.mkdir()
    played.on(seen).submit(budget={"trials": 2})
    assert played.study().spec["folder"] == str(tmp_path)
    moved = write_study(
        beside,
        name=played.name,
        measurement=MEASUREMENT,
        search_space=SPACE,
        sampler="random",
        budget={"trials": 2},
        storage=played.url,
    )
    submit(played.repository, load(moved), tmp_path)
    played.serve()
    assert asked == {(str(tmp_path), str(beside))}


@pytest.mark.long
def test_what_won_is_tried_first_in_the_next_study(played: Replayed) -> None:
    won = played.on(PLAIN).run(budget={"trials": 6})["knobs"]
    again = Replayed(played.folder, played.repository.database, "again")
    again.on(PLAIN).run(budget={"trials": 2})
    assert again.attempts("search")[1].knobs == won
    assert f"study {played.name} recommended it" in again.said()


@pytest.mark.parametrize(
    ("failures", "state"),
    [
        ([Outcome.HANG, Outcome.CRASH, Outcome.ERROR], "FAILED"),
        ([Outcome.HANG, Outcome.HANG], "FAILED"),
        ([Outcome.HANG, Outcome.CRASH], "DONE"),
    ],
)
def test_a_baseline_that_fails_again_and_again_ends_the_study(
    played: Replayed, failures: list[Outcome], state: str
) -> None:
    """Twice in the same way, or three times in a row in any."""
    left = list(failures)

    def failing(launch: Launch) -> Answer:
        if is_baseline(launch) and left:
            outcome = left.pop(0)
            return Answer(outcome=outcome, cause=f"{outcome}, whatever comes of it")
        return PLAIN(launch)

    played.submit(baseline=BASELINE, budget={"trials": 4})
    played.on(failing).serve()
    study = played.study()
    assert study.state == state, study.error
    assert not left
    if state == "FAILED":
        assert f"{failures[-1]}, whatever comes of it" in str(study.error)


@pytest.mark.long
def test_knob_that_can_vary_by_now_stays_as_it_was_in_the_first_trials(played: Replayed) -> None:
    played.on(PLAIN, refusal=lambda knobs: "no room" * (knobs["accumulation_steps"] > 1))
    played.run(budget={"trials": 3})
    played.on(PLAIN).run(budget={"trials": 5})
    assert {attempt.knobs["accumulation_steps"] for attempt in played.attempts("search")} == {1}
    assert all(trial.params.keys() == {"micro_batch"} for trial in played.trials())


def test_all_knobs_vary_after_a_death_while_the_first_trial_is_asked_for(played: Replayed) -> None:
    death = "Optuna.set_trial_param", "after", 1
    played.submit(budget={"trials": 3})
    with mortal([death[0]], death), pytest.raises(Died):
        played.serve()
    assert len(played.trials()[0].params) == 1
    played.bury_daemon()
    played.serve()
    assert [trial.params.keys() for trial in played.trials()] == 3 * [SPACE.keys()]
