"""From rounds to a verdict."""

import dataclasses
import json
import math

import numpy as np
import pytest

from autotune.analysis import rounds
from autotune.analysis.batches import BatchChange
from autotune.analysis.conclusion import conclude
from autotune.analysis.confirmation import Confirmation
from autotune.analysis.confirmation_result import result_of
from autotune.analysis.estimates import leader
from autotune.analysis.finalists import Candidate, Selection
from autotune.analysis.gate import GateRecord
from autotune.analysis.memory import outgrown
from autotune.analysis.outcomes import Failure, Outcomes, SearchBest
from autotune.analysis.rounds import Stage, replay
from autotune.analysis.shortfall import Shortfall, rounds_missing
from autotune.analysis.trial_ratios import trial_ratios
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import difference
from autotune.config import StudySpec
from autotune.measurement.estimate import Ratio, paired_ratio
from autotune.views.dashboard_notes import study_note
from search_spaces import defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt, StoredNoise


def candidate(trial, *, peak=1 << 30, **knobs):
    return Candidate(trial, {**defaults(), **knobs}, peak)


def of_two_finalists(rounds):
    """A confirmation with two finalists, the second of which is far too slow."""
    several = [candidate(0), candidate(1, micro_batch=64), candidate(2, micro_batch=32)]
    return Confirmation(several, 0, rounds)


def close(confirmation, rate):
    """Close a round in which the first finalist runs at a rate, and the baseline at 100."""
    rates = {0: 100.0, 1: rate, 2: 50.0}
    confirmation.close_round({trial: rates[trial] for trial in confirmation.members()})


def confirmed(rates, candidates, baseline=0, rounds=5):
    """A confirmation in which each trial shows these rates, round by round, again and again."""
    confirmation = Confirmation(candidates, baseline, rounds)
    number = 0
    while not confirmation.decided():
        shown = {t: rates[t][number % len(rates[t])] for t in confirmation.members()}
        confirmation.close_round(shown)
        number += 1
    return confirmation


def concluded(confirmation, **known):
    return conclude(result_of(confirmation), 2, GateRecord(), **known)


def noisy(level, seed, rounds=12, noise=0.004):
    generator = np.random.default_rng(seed)
    return list(level * (1 + noise * generator.standard_normal(rounds)))


def test_a_clear_winner():
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    found = concluded(confirmed({0: noisy(100, 1), 1: noisy(150, 2)}, candidates))
    assert found.kind == "better"
    assert found.trial == 1
    assert found.speedup.low > 1.4
    assert found.knobs["micro_batch"] == 64
    assert (found.batch.before, found.batch.after) == (16, 128)


def test_what_is_gained_at_the_users_global_batch_is_said_beside_it():
    candidates = [candidate(0), candidate(1, micro_batch=64), candidate(2, precision="bf16")]
    rates = {0: [100.0, 101.0, 99.0], 1: [199.0, 200.0, 198.0], 2: [135.0, 136.5, 133.8]}
    found = concluded(confirmed(rates, candidates))
    assert found.trial == 1
    assert (found.batch.before, found.batch.after) == (16, 128)
    assert found.batch.best_knobs["precision"] == "bf16"
    gain = found.batch.best_gain
    assert (round(gain.value, 2), round(gain.low, 2), round(gain.high, 2)) == (1.35, 1.34, 1.37)
    assert found.speedup.value == pytest.approx(1.99, abs=0.005)


def test_a_gain_at_the_users_global_batch_must_be_sure():
    candidates = [candidate(0), candidate(1, micro_batch=4), candidate(2, precision="bf16")]
    rates = {0: noisy(100, 1), 1: noisy(150, 2), 2: noisy(98, 3)}
    found = concluded(confirmed(rates, candidates))
    assert found.batch == BatchChange(16, 8, compared=True)


def test_a_gain_at_the_users_global_batch_is_of_one_that_does_not_fail():
    candidates = [candidate(0), candidate(1, micro_batch=64), candidate(2, precision="bf16")]
    candidates.append(candidate(3, bucket_cap_mb=5))
    confirmation = Confirmation(candidates, 0, 5)
    number = 0
    while not confirmation.decided():
        level = 1 + 0.002 * (-1) ** number
        shown = {0: 100 * level, 1: 200.0, 2: 120.0, 3: None if number else 150.0}
        confirmation.close_round({t: shown[t] for t in confirmation.members()})
        number += 1
    found = concluded(confirmation)
    assert found.batch.best_knobs["precision"] == "bf16"


def test_the_baseline_is_compared_by_the_rounds_that_the_figure_is_of():
    """In those that chose the winner was lucky."""
    confirmation = of_two_finalists(5)
    while not confirmation.decided():
        level = 150.0 if confirmation.selected is None else 120.0
        luck = 1 + 0.002 * (-1) ** confirmation.next_round
        close(confirmation, level * luck)
    found = concluded(confirmation)
    yours, own, _ = found.finalists
    assert found.chosen_in
    assert found.speedup.value == pytest.approx(1.2, rel=0.01)
    assert yours.ratio_to_recommended.value == pytest.approx(1 / found.speedup.value)
    assert max(found.telling(own)) < 121
    note = study_note(found)
    assert f"| 0 | {1 / found.speedup.value:.3f} (" in note
    assert "By 3 rounds of the baseline and trial 1 alone; the others" in note


def test_yours_that_is_kept_after_all_is_compared_by_the_rounds_since():
    """The winner was 8 % faster in the rounds that chose it, and is 5 % slower in those after."""
    confirmation = of_two_finalists(5)
    while not confirmation.decided():
        level = 108.0 if confirmation.selected is None else 95.0
        luck = 1 + 0.002 * (-1) ** confirmation.next_round
        close(confirmation, level * luck)
    found = concluded(confirmation)
    assert (found.kind, found.trial) == ("nothing_better", 0)
    other = found.finalists[1]
    assert other.ratio_to_recommended.value == pytest.approx(0.95, rel=0.01)
    assert max(found.telling(other)) < 96


@pytest.mark.parametrize(("ends", "kind"), [(False, "undecided"), (True, "better")])
def test_last_look_spends_the_error_that_later_looks_would_have_had(ends, kind):
    """Three rounds of ten: one-sided levels of 0.2 % while others follow, and of 2.5 % if none does."""
    confirmation = Confirmation([candidate(0), candidate(1, micro_batch=64)], 0, 10)
    for own, its in [(100.0, 163.0), (100.0, 195.0), (100.0, 187.0)]:
        confirmation.close_round({0: own, 1: its})
    if ends:
        confirmation.end()
    found = concluded(confirmation)
    assert found.kind == kind
    if ends:
        assert 1.0 < found.speedup.low < 1.5


def test_rounds_that_are_decided_have_no_further_look():
    """They show within one round in two that 0.5 % is the most, and not that 0.2 % is a gain."""
    draw, stopped = np.random.default_rng(0), 0
    for _ in range(40):
        confirmation = Confirmation([candidate(0), candidate(1, micro_batch=64)], 0, 10)
        while not confirmation.decided():
            own, its = 100 * np.exp(0.0008 * draw.standard_normal(2))
            confirmation.close_round({0: own, 1: 1.002 * its})
        if confirmation.selected is None and confirmation.rounds_left:
            stopped += 1
            confirmation.end()
            assert confirmation.recommended() == 0
    assert stopped > 10


def test_last_look_of_equal_configurations_rarely_calls_one_better():
    draw, called = np.random.default_rng(1), 0
    for _ in range(400):
        confirmation = Confirmation([candidate(0), candidate(1, micro_batch=64)], 0, 10)
        for _ in range(3):
            own, its = 100 * np.exp(0.05 * draw.standard_normal(2))
            confirmation.close_round({0: own, 1: its})
        confirmation.end()
        called += concluded(confirmation).kind == "better"
    assert called <= 18  # 2.5 % are 10, and 18 are beyond 99 % of what chance brings


def test_nothing_beats_the_baseline():
    candidates = [candidate(0), candidate(1, bucket_cap_mb=5)]
    found = concluded(confirmed({0: noisy(100, 1), 1: noisy(97, 2)}, candidates))
    assert found.kind == "nothing_better"
    assert found.trial == 0


def test_a_lead_of_the_baseline_that_noise_may_have_made_is_no_proof():
    candidates = [candidate(0), candidate(1, bucket_cap_mb=5)]
    rates = {0: [100, 100, 112], 1: [104, 103, 98]}
    found = concluded(confirmed(rates, candidates, rounds=3))
    assert found.kind == "undecided"
    assert found.trial == 0
    assert found.contender.knobs["bucket_cap_mb"] == 5
    assert found.contender.gain.vague


def test_how_much_there_may_be_left_is_said():
    candidates = [candidate(0), candidate(1, bucket_cap_mb=5)]
    rates = {0: [100.0, 101.0, 99.5, 100.2], 1: [100.3, 100.9, 99.1, 100.0]}
    found = concluded(confirmed(rates, candidates, rounds=4))
    assert found.kind == "nothing_better"
    assert 0.0005 < found.most_gain < 0.01


def rounds_of(pair, count, most):
    """A confirmation of two with rounds that scatter like this, over and over."""
    confirmation = Confirmation([candidate(0), candidate(1, bucket_cap_mb=5)], 0, most)
    for number in range(count):
        gain = pair[number % len(pair)]
        confirmation.close_round({0: 100.0, 1: 100.0 * math.exp(gain)})
    return confirmation


def test_as_many_rounds_are_said_to_be_missing_as_the_decision_takes():
    scatter = [-0.005, 0.045, 0.02, -0.01, 0.05, 0.02]
    missing = rounds_missing(rounds_of(scatter, 6, 6))
    assert missing > 3
    assert rounds_of(scatter, 6 + missing, 6 + missing).gain(1).low > 1
    fewer = 6 + missing // 2
    assert rounds_of(scatter, fewer, fewer).gain(1).low < 1


def test_an_advantage_within_the_noise_is_none():
    candidates = [candidate(0), candidate(1, bucket_cap_mb=5)]
    rates = {0: [100, 103, 98, 101, 99], 1: [101, 100, 102, 99, 101]}
    assert concluded(confirmed(rates, candidates)).trial == 0


def test_what_the_noise_hides_is_called_undecided():
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    rates = {0: [490, 298, 147, 300, 300], 1: [762, 300, 200, 260, 330]}
    found = concluded(confirmed(rates, candidates))
    assert found.kind == "undecided"
    assert found.trial == 0
    assert found.contender.trial == 1


@pytest.mark.parametrize(
    "rates",
    [
        {0: [100, 100], 1: [330, 451]},  # 3.86x, 1.35 to 11
        {0: [100, 100, 100], 1: [105, 135, 175]},
        {0: [100, 100], 1: [500, 1340]},  # 8.18x, 0.02 to 4000
    ],
)
def test_an_interval_that_is_wider_than_its_figure_asks_for_time_instead(rates):
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 5)
    for number in range(len(rates[0])):
        confirmation.close_round({trial: rates[trial][number] for trial in (0, 1)})
    assert not confirmation.decided()
    lacking = Shortfall(75.0)
    found = concluded(confirmation, lacking=lacking)
    assert (found.kind, found.trial, found.missing_seconds) == ("undecided", 0, 75.0)
    assert found.contender.gain.vague
    assert concluded(confirmation, lacking=Shortfall(rounds=9)).missing_rounds == 9


def test_what_is_surely_faster_is_recommended_even_if_by_how_much_is_not_known():
    """Three rounds choose it; in four more it is faster by 8 to 44 %: it has won."""
    confirmation = of_two_finalists(7)
    for gain in (1.22, 1.25, 1.28, 1.08, 1.44, 1.38, 1.2):
        close(confirmation, 100.0 * gain)
    assert len(confirmation.fresh) == 4
    assert not confirmation.decided()
    lacking = Shortfall(75.0)
    found = concluded(confirmation, lacking=lacking)
    assert (found.kind, found.trial, found.missing_seconds) == ("better", 1, 75.0)
    assert found.speedup.vague
    assert concluded(confirmation, lacking=Shortfall(rounds=9)).missing_rounds == 9


def test_verdict_that_was_written_as_json_is_read_back_as_it_was():
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    found = concluded(confirmed({0: [100.0] * 5, 1: [200.0] * 5}, candidates))
    assert Verdict.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    older = {**found.as_dict(), "price": {"device_hours": 1.0}}
    assert Verdict.from_dict(older) == found, "what an earlier version had besides is left out"


def test_of_equals_the_one_with_less_memory():
    candidates = [
        candidate(0),
        candidate(1, micro_batch=64, peak=8 << 30),
        candidate(2, micro_batch=32, peak=4 << 30),
    ]
    rates = {0: noisy(100, 1), 1: noisy(150.3, 2, noise=0.001), 2: noisy(150, 3, noise=0.001)}
    assert concluded(confirmed(rates, candidates)).trial == 2


def test_of_equals_with_the_same_memory_the_nearest_to_the_baseline():
    candidates = [
        candidate(0),
        candidate(1, micro_batch=64, bucket_cap_mb=5, log_interval=50),
        candidate(2, micro_batch=64),
    ]
    rates = {0: noisy(100, 1), 1: noisy(150.3, 2, noise=0.001), 2: noisy(150, 3, noise=0.001)}
    assert concluded(confirmed(rates, candidates)).trial == 2


def test_a_slower_finalist_drops_out_after_three_rounds():
    candidates = [candidate(0), candidate(1, micro_batch=64), candidate(2, micro_batch=32)]
    confirmation = Confirmation(candidates, 0, 5)
    for number in range(3):
        rates = {0: 100 + number, 1: 150 + number, 2: 120 + number}
        confirmation.close_round({t: rates[t] for t in confirmation.members()})
    assert confirmation.choice_rounds.dropped == {2: 3}


def test_a_finalist_that_fails_when_run_again_is_not_recommended():
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 5)
    for _ in range(5):
        confirmation.close_round({t: None if t == 1 else 100.0 for t in confirmation.members()})
    assert concluded(confirmation).trial == 0


def test_without_a_baseline_the_best_is_named_and_no_speed_up_claimed():
    candidates = [candidate(3, micro_batch=4), candidate(5, micro_batch=2)]
    rates = {3: noisy(100, 1), 5: noisy(90, 2)}
    found = concluded(confirmed(rates, candidates, baseline=None))
    assert found.kind == "no_baseline"
    assert found.speedup is None
    assert found.baseline_rounds == 0


def test_a_baseline_that_fails_as_it_is_measured_again_is_beaten_by_nobody():
    confirmation = Confirmation([candidate(0), candidate(1, bucket_cap_mb=5)], 0, 5)
    confirmation.close_round({0: 100.0, 1: 88.0})
    confirmation.close_round({0: None, 1: 88.5})
    while not confirmation.decided():
        confirmation.close_round({1: 88.0})
    found = concluded(confirmation, failure=Failure(0, AttemptState.CRASH, "why"))
    assert found.kind == "no_baseline"
    assert found.speedup is None
    assert (found.baseline_rounds, found.baseline_failure.cause) == (1, "why")


def test_who_is_looked_at_early_is_further_behind_at_most():
    """All looks together are wrong as seldom as a single one may be."""
    candidates = [candidate(0), candidate(1, micro_batch=64), candidate(2, micro_batch=32)]
    behind = []
    for most in (3, 10):
        confirmation = Confirmation(candidates, None, most)
        for rates in ((100, 101, 99.5), (102, 100, 101), (99, 102, 100)):
            confirmation.close_round(dict(enumerate(map(float, rates))))
        behind.append(confirmation.choice_rounds.behind(confirmation.choice_rounds.leader()))
    assert 1.2 * behind[0] < behind[1]


def three_rounds(first, second):
    """Of a slow baseline and two finalists that are so fast."""
    candidates = [candidate(0), candidate(1, micro_batch=64), candidate(2, micro_batch=32)]
    confirmation = Confirmation(candidates, 0, 6)
    for rates in zip((100.0, 103.0, 97.0), first, second, strict=True):
        confirmation.close_round(dict(enumerate(rates)))
    return confirmation


def test_more_rounds_are_asked_for_than_told_by_how_much():
    """Not than chose it, which may be fewer."""
    confirmation = three_rounds((165.0, 163.0, 164.0), (162.0, 164.0, 155.0))
    for baseline, chosen in [(100, 140), (103, 107), (98, 121), (101, 150), (97, 99), (104, 133)]:
        confirmation.close_round({0: float(baseline), 1: float(chosen)})
    lacking = Shortfall(20.0)
    found = concluded(confirmation, lacking=lacking)
    assert (found.exhausted, found.rounds, found.missing_seconds) == (True, 6, None)


def test_the_leader_is_taken_where_that_loses_next_to_nothing_on_average():
    """It may be more than 2 % slower than the other one, but hardly is."""
    confirmation = three_rounds((165.0, 163.0, 164.0), (162.0, 164.0, 155.0))
    assert confirmation.selected == 1
    assert confirmation.choice_rounds.behind(1) > 0.02


def test_two_that_may_each_be_the_faster_one_run_on():
    confirmation = three_rounds((165.0, 153.0, 164.0), (152.0, 163.0, 158.0))
    assert confirmation.selected is None
    assert not confirmation.decided()


def test_two_that_are_the_same_are_rarely_called_different():
    different = 0
    for seed in range(200):
        candidates = [candidate(0), candidate(1, bucket_cap_mb=5)]
        rates = {0: noisy(100, 2 * seed, noise=0.02), 1: noisy(100, 2 * seed + 1, noise=0.02)}
        different += concluded(confirmed(rates, candidates)).trial == 1
    assert different <= 14  # 2.5 % one-sided, looked at up to three times


def ended(number, purpose, state, cause=""):
    result = AttemptResult(AttemptState(state), cause)
    return StoredAttempt(number, number, Purpose(purpose), 0, 1, defaults(), 0.0, 1.0, result)


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        (
            [ended(1, "search", "OOM", "rank 1: full")],
            Outcomes(False, {"OOM": 1}, Failure(1, AttemptState.OOM, "rank 1: full")),
        ),
        (
            [
                ended(0, "profile", "COMPLETE"),
                ended(1, "search", "PRUNED", "cannot catch up"),
                ended(2, "search", "ERROR", "rank 1: planted"),
            ],
            Outcomes(
                False, {"ERROR": 1, "PRUNED": 1}, Failure(2, AttemptState.ERROR, "rank 1: planted")
            ),
        ),
        (
            [ended(1, "search", "COMPLETE"), ended(1, "confirm", "CRASH", "rank 0: gone")],
            Outcomes(True, {"CRASH": 1}, Failure(1, AttemptState.CRASH, "rank 0: gone")),
        ),
        ([], Outcomes(False, {}, None)),
    ],
)
def test_outcomes_hold_ends_and_first_failure(attempts, expected):
    assert Outcomes.of(Attempts(attempts, defaults())) == expected


def test_difference_names_what_changed_as_yaml_writes_it():
    changed = {**defaults(), "gradient_as_bucket_view": True}
    assert difference(changed, defaults()) == "gradient_as_bucket_view=true"
    assert difference(defaults(), defaults()) == "no change"


def attempt(number, trial, rate, *, round_=0, state="COMPLETE", **knobs):
    purpose = Purpose.CONFIRM if round_ else Purpose.SEARCH
    result = AttemptResult(AttemptState(state), throughput=rate, half_width=0.01)
    return StoredAttempt(
        number, trial, purpose, round_, 1, {**defaults(), **knobs}, float(number), 1.0, result
    )


SEARCHED = [attempt(1, 0, 100), attempt(2, 1, 150, micro_batch=64)]


def replayed(attempts):
    return replay(Attempts(attempts, defaults()), Selection(2), 5)


def test_a_confirmation_is_replayed_from_its_records():
    rounds = [attempt(3, 0, 101, round_=1), attempt(4, 1, 151, round_=1, micro_batch=64)]
    found = replayed(SEARCHED + rounds)
    assert found.rounds == {1: {0: 101, 1: 151}}
    assert found.next_round == 2


def test_a_round_that_was_cut_short_is_not_counted_but_kept():
    found = replayed([*SEARCHED, attempt(3, 0, 101, round_=1)])
    assert found.rounds == {}
    assert found.recorded(Attempts([attempt(3, 0, 101, round_=1)], defaults())) == {0: 101}


@pytest.mark.parametrize("state", ["ABANDONED", "LOST", "RUNNING"])
def test_an_attempt_without_a_result_is_measured_again(state):
    found = replayed([*SEARCHED, attempt(3, 0, None, round_=1, state=state)])
    run = attempt(3, 0, None, round_=1, state=state)
    assert found.recorded(Attempts([run], defaults())) == {}


def test_rounds_from_before_the_search_went_on_do_not_count():
    before = [attempt(3, 0, 101, round_=1), attempt(4, 1, 151, round_=1, micro_batch=64)]
    found = replayed([*SEARCHED, *before, attempt(5, 2, 170, micro_batch=128)])
    assert found.rounds == {}
    assert found.next_round == 2
    assert set(found.members()) == {0, 1, 2}


def test_nobody_to_confirm():
    assert replayed([attempt(1, 0, None, state="OOM")]) is None


def test_a_verdict_comes_back_from_what_is_stored_of_it():
    candidates = [candidate(0), candidate(1, micro_batch=64), candidate(2, micro_batch=32)]
    confirmation = Confirmation(candidates, 0, 5)
    confirmation.close_round({0: 100.0, 1: 150.0, 2: None})
    for _ in range(3):
        confirmation.close_round({0: 101.0, 1: 150.0})
    found = concluded(confirmation)
    assert Verdict.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_a_bound_that_is_infinite_is_stored_as_none():
    confirmation = Confirmation([candidate(0), candidate(1, micro_batch=64)], 0, 1)
    confirmation.close_round({0: 100.0, 1: 150.0})
    found = concluded(confirmation)
    stored = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert stored["throughput"]["high"] is None
    assert Verdict.from_dict(stored) == found


def test_verdict_of_version_1_is_read_with_its_text():
    """It had no `numerics`, `refused` or `baseline`."""
    old = {"version": 1, "kind": "better", "trial": 1, "rounds": 5, "told": "2.00x"}
    found = Verdict.from_dict(old)
    assert (found.version, found.kind, found.trial, found.told) == (1, "better", 1, "2.00x")


BATCHES = [
    attempt(1, 0, 100),
    *(attempt(number, number - 1, 200 + number, micro_batch=64) for number in (2, 3, 4)),
    attempt(5, 4, 130, precision="bf16"),
    attempt(6, 5, 140, precision="bf16", log_interval=50, state="PRUNED"),
]


def test_the_fastest_of_the_baselines_global_batch_is_measured_again_too():
    assert replayed(BATCHES).members() == [0, 3, 2, 5], "though it was stopped early"


def test_a_finalist_with_the_baselines_global_batch_is_enough():
    found = replayed(BATCHES[:2] + BATCHES[4:])
    assert found.members() == [0, 1, 5], "140, though it was stopped early, and not 130"


def test_rounds_that_went_without_it_count():
    """Those of a study of an earlier version."""
    rounds = [
        attempt(10 * number + trial, trial, 100 + trial, round_=number)
        for number in (1, 2)
        for trial in (0, 2, 3)
    ]
    found = replayed([*BATCHES, *rounds])
    assert found.members() == [0, 3, 2]
    assert len(found.rounds) == 2


def seen(number, purpose, trial, rate=None, state="COMPLETE", **changes):
    result = AttemptResult(AttemptState(state), throughput=rate, half_width=0.01)
    knobs = {**defaults(), **changes}
    return StoredAttempt(number, trial, Purpose(purpose), 0, 1, knobs, 0.0, 1.0, result)


def provisionally(*several, noise=None):
    attempts = Attempts(several, defaults())
    return leader(attempts, defaults(), GateRecord(), outgrown(attempts), 2, noise)


def test_what_has_run_out_of_memory_since_is_no_provisional_answer():
    found = provisionally(
        seen(1, "search", 0, 100.0),
        seen(2, "search", 1, 150.0, micro_batch=64),
        seen(3, "search", 2, 120.0, bucket_cap_mb=5),
        seen(4, "longest", 1, state="OOM", micro_batch=64),
    )
    assert found.trial == 2


def noisy_run(number, purpose, trial, rate, sigma, environment=1, **changes):
    """As it is recorded where runs are taken to scatter like this."""
    run = seen(number, purpose, trial, rate, **changes)
    width = {"half_width": math.hypot(0.01, 1.96 * sigma), "block_half_width": 0.01}
    result = dataclasses.replace(run.result, sigma_run=sigma, **width)
    return dataclasses.replace(run, result=result, environment=environment)


def test_a_provisional_answer_knows_what_is_known_by_now_of_the_noise():
    """The first trial was told with what was assumed; equal runs have shown three times that since."""
    first = (
        noisy_run(1, "search", 0, 100.0, 0.02),
        noisy_run(2, "search", 1, 115.0, 0.02, num_workers=4),
    )
    again = [
        noisy_run(number, "calibrate", 0, rate, 0.06) for number, rate in ((3, 91.0), (4, 106.0))
    ]
    assert provisionally(*first, *again).trial == 0


@pytest.mark.parametrize("noise", [None, StoredNoise(0.03, 3, None)])
def test_provisional_speedup_is_that_of_the_trial_table(noise):
    attempts = (
        noisy_run(1, "search", 0, 100.0, 0.02),
        noisy_run(2, "search", 1, 150.0, 0.02, num_workers=4),
        noisy_run(3, "calibrate", 0, 104.0, 0.02),
        noisy_run(4, "calibrate", 0, 99.0, 0.02),
    )
    table = trial_ratios(Attempts(attempts, defaults()), noise)
    found = provisionally(*attempts, noise=noise)
    assert (found.trial, found.speedup) == (1, table[1].ratio)
    assert SearchBest.of(Attempts(attempts, defaults()), noise, ()).ratio == table[1].ratio
    best = SearchBest.of(Attempts(attempts, defaults()), noise, [1])
    assert best.knobs == defaults(), "what is refused is not the best that was seen"


def test_ratio_of_what_is_unchecked_is_that_of_the_trial_table():
    attempts = (
        noisy_run(1, "search", 0, 100.0, 0.02),
        noisy_run(2, "search", 1, 150.0, 0.02, precision="bf16"),
        noisy_run(3, "calibrate", 0, 110.0, 0.02),
    )
    table = trial_ratios(Attempts(attempts, defaults()), None)
    assert provisionally(*attempts).unverified.ratio == table[1].ratio


def test_ratio_that_an_earlier_version_stored_without_an_interval_was_seen_once():
    best = {"complete": True, "knobs": defaults(), "rate": 100.0, "ratio": 1.125}
    found = Verdict.from_dict({"kind": "not_enough_time", "search_best": best})
    assert found.search_best.ratio == Ratio(1.125, 0.0, math.inf)


def test_what_cannot_change_numerics_is_not_called_unchecked():
    """It leads, but not surely; what follows it may compute something else."""
    found = provisionally(
        noisy_run(1, "search", 0, 100.0, 0.02),
        noisy_run(2, "search", 1, 110.0, 0.02, num_workers=4),
    )
    assert found.trial == 0
    assert found.unverified is None
    found = provisionally(
        noisy_run(1, "search", 0, 100.0, 0.02),
        noisy_run(2, "search", 1, 110.0, 0.02, num_workers=4),
        noisy_run(3, "search", 2, 108.0, 0.02, precision="bf16"),
    )
    assert found.unverified.touched == ("precision",)


def test_a_provisional_answer_takes_a_noise_that_few_runs_tell_for_known_by_few():
    few = (
        noisy_run(1, "search", 0, 100.0, 0.02),
        noisy_run(2, "search", 1, 110.0, 0.02, num_workers=4),
    )
    many = [noisy_run(number, "calibrate", 0, 100.0, 0.02) for number in range(3, 13)]
    assert provisionally(*few).trial == 0
    assert provisionally(*few, *many).trial == 1


def test_many_runs_on_one_node_leave_the_doubt_of_the_node():
    def on_another_node(level):
        runs = [noisy_run(number, "calibrate", 0, 100.0, 0.001) for number in range(2, 12)]
        trials = [
            noisy_run(20 + number, purpose, 1, level, 0.001, environment=2, num_workers=4)
            for number, purpose in enumerate(("search", "confirm", "confirm"))
        ]
        return provisionally(noisy_run(1, "search", 0, 100.0, 0.001), *runs, *trials)

    assert on_another_node(112.0).trial == 0
    assert on_another_node(150.0).trial == 1


def test_a_finalist_that_failed_as_it_was_measured_again_is_named():
    """The fastest runs once and then fails: that nothing left is faster is not all there is to say."""
    candidates = [candidate(0), candidate(1, micro_batch=64), candidate(2, micro_batch=16)]
    confirmation = Confirmation(candidates, 0, 5)
    confirmation.close_round({0: 100.0, 1: 150.0, 2: 110.0})
    confirmation.close_round({0: 101.0, 1: None, 2: 111.0})
    while not confirmation.decided():
        confirmation.close_round({trial: 100.0 + 5 * trial for trial in confirmation.members()})
    found = concluded(confirmation)
    assert found.trial == 2
    assert found.failed == (1,)


def test_nothing_beats_the_baseline_as_the_only_finalist_failed():
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 5)
    confirmation.close_round({0: 100.0, 1: None})
    while not confirmation.decided():
        confirmation.close_round({0: 100.0})
    found = concluded(confirmation)
    assert found.kind == "nothing_better"
    assert found.failed == (1,)


def test_what_would_lead_further_is_not_said_of_a_study_that_goes_on():
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 10)
    for rate in (106.0, 99.0, 108.0):
        confirmation.close_round({0: 100.0, 1: rate})
    found = concluded(confirmation)
    assert (found.kind, found.missing_seconds) == ("undecided", None)
    done = concluded(confirmation, lacking=Shortfall(75.0))
    assert done.missing_seconds == 75.0


def test_choice_that_fresh_rounds_do_not_bear_out_is_not_recommended():
    """Chosen by 2 %, and in fresh rounds as often slower; all of them together show nothing either."""
    confirmation = of_two_finalists(3)
    for rate in (102.0, 102.1, 102.05, 101.1, 98.7, 100.6):
        close(confirmation, rate)
    lacking = Shortfall(75.0)
    assert confirmation.gain_is_measured
    found = concluded(confirmation, lacking=lacking)
    assert (found.kind, found.trial, found.speedup.value) == ("undecided", 0, 1.0)
    assert found.missing_seconds is None, "all rounds are over"


def test_gain_that_restless_fresh_rounds_do_not_show_is_told_by_all_rounds():
    """Chosen by 20 %, and 2 to 40 % faster in fresh rounds: these alone leave a loss possible."""
    confirmation = of_two_finalists(3)
    for rate in (118.0, 122.0, 120.0, 102.0, 140.0, 115.0):
        close(confirmation, rate)
    assert confirmation.gain_is_measured
    assert confirmation.gain_rounds.gain().low < 1
    found = concluded(confirmation)
    assert (found.kind, found.trial, found.rounds, found.chosen_in) == ("better", 1, 6, 0)
    assert found.speedup.value == pytest.approx(1.19, abs=0.01)
    assert 1 < found.speedup.low < 1.1


def test_reduced_choice_is_not_told_by_rounds_of_what_it_was():
    candidates = [candidate(0), candidate(1, micro_batch=64, log_interval=100)]
    confirmation = Confirmation(candidates, 0, 3)
    for rate in (118.0, 122.0, 120.0):
        confirmation.close_round({0: 100.0, 1: rate})
    confirmation.revert({**candidates[1].knobs, "log_interval": 10})
    for rate in (102.0, 140.0, 115.0):
        confirmation.close_round({0: 100.0, 1: rate})
    assert concluded(confirmation).kind == "undecided"


def test_all_rounds_of_a_single_finalist_tell_by_how_much():
    """Nothing was chosen among several: each round after those that showed it faster adds to them."""
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 10)
    rates = [118.0, 122.0, 120.0, 125.0, 117.0, 121.0]
    for rate in rates[:3]:
        confirmation.close_round({0: 100.0, 1: rate})
    assert confirmation.selected == 1
    assert (confirmation.to_prove, confirmation.to_prove_reduced) == (1, 3)
    assert rounds_missing(confirmation) == 3, "its changes may be reverted"
    for rate in rates[3:]:
        confirmation.close_round({0: 100.0, 1: rate})
        assert confirmation.gain_is_measured
    found = concluded(confirmation)
    assert (found.kind, found.rounds, found.chosen_in) == ("better", 6, 0)
    assert found.speedup == paired_ratio(rates, [100.0] * 6)


def test_gain_of_a_single_finalist_that_is_little_beside_its_interval_is_told_by_fresh_rounds():
    """Four rounds choose; the interval is that of the three rounds after them."""
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 10)
    rates = (106.0, 112.0, 109.0, 111.0, 105.0, 103.0, 107.0)
    for rate in rates:
        confirmation.close_round({0: 100.0, 1: rate})
    found = concluded(confirmation)
    assert (found.kind, found.rounds, found.chosen_in) == ("better", 3, 4)
    assert found.speedup == paired_ratio(rates[4:], [100.0] * 3)


def test_interval_of_a_choice_that_is_the_last_round_is_that_of_the_look_that_chose():
    """That look was passed because the rounds lie close together, which a narrower one would rest on."""
    confirmation = Confirmation([candidate(0), candidate(1, micro_batch=64)], 0, 10)
    rates = (120.0, 121.0, 119.0)
    for rate in rates:
        confirmation.close_round({0: 100.0, 1: rate})
    before = confirmation.gain(1)
    confirmation.end()
    assert concluded(confirmation).speedup == before
    alone = paired_ratio(rates, [100.0] * 3)
    assert before.high / before.low > 1.1 * alone.high / alone.low


@pytest.mark.parametrize(("later", "kind"), [((118.0, 108.0), "better"), ((103.0,), "better")])
def test_slow_round_after_the_choice_of_a_single_finalist_does_not_vanish(later, kind):
    """All rounds together no longer tell the gain by themselves: they are further looks."""
    confirmation = Confirmation([candidate(0), candidate(1, micro_batch=64)], 0, 10)
    rates = (120.0, 121.0, 119.0, *later)
    for rate in rates:
        confirmation.close_round({0: 100.0, 1: rate})
    assert not confirmation.gain_is_measured
    confirmation.end()
    found = concluded(confirmation)
    assert (found.kind, found.rounds) == (kind, len(rates))
    assert found.speedup.value == pytest.approx(paired_ratio(rates, [100.0] * len(rates)).value)


def test_slow_rounds_of_a_single_finalist_that_leave_no_gain_are_no_recommendation():
    confirmation = Confirmation([candidate(0), candidate(1, micro_batch=64)], 0, 10)
    for rate in (120.0, 121.0, 119.0, 85.0):
        confirmation.close_round({0: 100.0, 1: rate})
    confirmation.end()
    assert concluded(confirmation).kind == "undecided"


def test_single_finalist_that_fresh_rounds_show_slower_is_not_recommended():
    """Faster by 4 % in three rounds, slower by 2 % in three more."""
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 10)
    for rate in (104.0, 104.1, 104.05, 97.5, 97.2, 98.1):
        confirmation.close_round({0: 100.0, 1: rate})
    found = concluded(confirmation)
    assert (found.kind, found.trial, found.rounds) == ("nothing_better", 0, 3)


@pytest.mark.parametrize("failing", [0, 1])
def test_failure_in_a_round_after_the_choice_of_a_single_finalist_reopens_it(failing):
    candidates = [candidate(0), candidate(1, micro_batch=64)]
    confirmation = Confirmation(candidates, 0, 10)
    for rate in (120.0, 121.0, 122.0):
        confirmation.close_round({0: 100.0, 1: rate})
    confirmation.close_round({0: 100.0, 1: 120.0, failing: None})
    assert confirmation.selected is None
    assert len(confirmation.choice_rounds.rounds) == 3
    assert confirmation.recommended() == 1 - failing


@pytest.mark.parametrize("reduced", [False, True])
def test_rounds_of_a_single_finalist_before_its_changes_were_reverted_do_not_count(reduced):
    both = {**defaults(), "precision": "bf16", "freeze_gc": True}
    configurations = {0: defaults(), 1: both}
    attempts = runs_of_a_round(0, {0: 100.0, 1: 121.0}, configurations)
    for number, rate in enumerate((120.0, 121.0, 122.0), 1):
        attempts += runs_of_a_round(number, {0: 100.0, 1: rate}, configurations)
    fresh = {**configurations, 1: {**both, "freeze_gc": not reduced}}
    attempts += runs_of_a_round(4, {0: 100.0, 1: 119.0}, fresh)
    confirmation = replay(Attempts(attempts, defaults()), Selection(3), 10)
    assert confirmation.gain_is_measured is not reduced
    assert len(confirmation.gain_rounds.counted) == (1 if reduced else 4)
    assert confirmation.to_prove == (2 if reduced else 0)
    spec = StudySpec.model_validate({"name": "one", "workload": {"name": "gpt"}})
    told = rounds.rounds_of(Attempts(attempts, defaults()), spec, lambda _: [])
    assert [one.stage for one in told[:3]] == [Stage.CHOICE if reduced else Stage.GAIN] * 3
    assert told[3].stage is Stage.GAIN


def runs_of_a_round(number, rates, configurations):
    """Attempts of a round, or of the search (0), by trial."""
    purpose = Purpose.CONFIRM if number else Purpose.SEARCH
    return [
        StoredAttempt(
            10 * number + trial + 1,
            trial,
            purpose,
            number,
            1,
            configurations[trial],
            10.0 * number + trial,
            10.0 * number + trial + 0.5,
            AttemptResult(AttemptState.COMPLETE, throughput=rate),
        )
        for trial, rate in rates.items()
    ]


@pytest.mark.parametrize("reduced", [False, True])
def test_fresh_rounds_of_a_reduced_choice_do_not_join_those_that_chose(reduced):
    """Two finalists run neck and neck for five rounds; the time ends after one fresh round."""
    both = {**defaults(), "precision": "bf16", "freeze_gc": True}
    configurations = {0: defaults(), 1: both, 2: {**defaults(), "micro_batch": 32}}
    attempts = runs_of_a_round(0, {0: 100.0, 1: 113.0, 2: 112.0}, configurations)
    rates = [(113.0, 109.0), (110.0, 114.0), (114.0, 111.0), (111.0, 113.5), (113.0, 110.0)]
    for number, (one, other) in enumerate(rates, 1):
        attempts += runs_of_a_round(number, {0: 100.0, 1: one, 2: other}, configurations)
    assert replay(Attempts(attempts, defaults()), Selection(3), 15).selected == 1
    fresh = {**configurations, 1: {**both, "freeze_gc": not reduced}}
    attempts += runs_of_a_round(6, {0: 100.0, 1: 99.9}, fresh)
    confirmation = replay(Attempts(attempts, defaults()), Selection(3), 15)
    assert not confirmation.gain_is_measured
    assert confirmation.recommended() == (0 if reduced else 1)


def test_choice_that_fresh_rounds_show_slower_is_not_recommended():
    """0.95 to 1.00: nothing beats what the user has."""
    confirmation = of_two_finalists(3)
    for rate in (104.0, 104.1, 104.05, 97.5, 97.2, 98.1):
        close(confirmation, rate)
    assert confirmation.gain(1).high < 1
    found = concluded(confirmation)
    assert (found.kind, found.trial) == ("nothing_better", 0)


def test_few_fresh_rounds_that_contradict_the_choice_are_not_passed_over():
    confirmation = of_two_finalists(10)
    for rate in (104.0, 104.1, 104.05, 97.5, 97.2):
        close(confirmation, rate)
    assert confirmation.selected == 1
    assert not confirmation.gain_is_measured
    found = concluded(confirmation, lacking=Shortfall(75.0))
    assert (found.trial, found.missing_seconds) == (0, 75.0)
