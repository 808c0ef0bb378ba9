"""Configurations with variances of their own are compared by Welch's test, shrunk towards priors."""

import itertools
import math
import random

import pytest

from autotune.analysis.confirmation import Confirmation
from autotune.analysis.confirmation_result import own_rate
from autotune.analysis.finalists import Candidate, Selection
from autotune.analysis.gain_rounds import GainRounds
from autotune.analysis.process_spread import ProcessSpread, repeats_made
from autotune.analysis.rounds import replay
from autotune.measurement.contrasts import ONE_SIDED, Arm, Variance, welch_contrast
from autotune.worker.observers.moments import StepMoments
from search_spaces import defaults
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Purpose,
    StoredAttempt,
    StoredBlock,
)

WAITS, COMPUTES = Variance(0.2**2, 2.0), Variance(0.005**2, 2.0)
NOTHING = Variance(0.0, 0.0)


def test_comparison_without_priors_is_that_of_welch() -> None:
    one, other = Arm([math.e**2, math.e**4], NOTHING), Arm([1.0, math.e, math.e**2], NOTHING)
    found = welch_contrast(one, other)
    assert found.value == pytest.approx(2.0)
    assert found.error == pytest.approx(math.sqrt(2.0 / 2 + 1.0 / 3))
    assert found.df == pytest.approx((1 + 1 / 3) ** 2 / (1 / 1 + (1 / 9) / 2))


def test_unsteady_baseline_does_not_widen_the_rate_of_the_winner() -> None:
    winner = Arm([420.0, 421.0], COMPUTES)
    baseline = Arm([210.0, 290.0, 250.0, 330.0], WAITS)
    rate, gain = winner.rate, welch_contrast(winner, baseline).ratio(ONE_SIDED)
    assert rate.high / rate.low < 1.04
    assert gain.high / gain.low > 1.3


def test_more_runs_of_the_unsteady_arm_narrow_the_interval() -> None:
    winner, runs = Arm([420.0, 421.0], COMPUTES), [210.0, 290.0, 250.0, 330.0]
    few, many = (welch_contrast(winner, Arm(n * runs, WAITS)).beyond(ONE_SIDED) for n in (1, 3))
    assert many < 0.6 * few


@pytest.mark.parametrize("runs", [3, 6, 12])
def test_interval_of_unsteady_and_steady_arm_holds_the_truth(runs: int) -> None:
    draw, held = random.Random(runs), 0
    for _ in range(1000):
        one = Arm([math.exp(0.4 + draw.gauss(0, 0.004)) for _ in range(2)], COMPUTES)
        other = Arm([math.exp(draw.gauss(0, 0.2)) for _ in range(runs + 1)], WAITS)
        ratio = welch_contrast(one, other).ratio(ONE_SIDED)
        held += ratio.low <= math.exp(0.4) <= ratio.high
    assert 0.93 <= held / 1000 <= 0.995


def test_unsteady_baseline_hides_no_difference_between_finalists() -> None:
    """Its three processes lie 40 % apart, and the two finalists are alike."""
    candidates = [Candidate(trial, {"micro_batch": trial}, 1) for trial in range(3)]
    processes = ProcessSpread((100.0,), {0: 0.2, 1: 0.005, 2: 0.005})
    confirmation = Confirmation(candidates, 0, 10, spread=processes)
    rounds = [(80.0, 300.0, 301.0), (120.0, 301.0, 300.0), (100.0, 300.0, 300.5)]
    for rates in rounds:
        assert confirmation.selected is None
        confirmation.close_round(dict(enumerate(rates)))
    assert confirmation.selected in (1, 2)


def test_nothing_is_proven_over_a_baseline_that_failed() -> None:
    candidates = [Candidate(trial, {"micro_batch": trial}, 1) for trial in range(3)]
    confirmation = Confirmation(candidates, 0, 12, spread=ProcessSpread((), {}))
    assert not confirmation.proven
    confirmation.close_round({0: None, 1: 110.0, 2: 100.0})
    for rates in ((100.0, 111.0), (108.0, 101.0)):
        confirmation.close_round(dict(enumerate(rates, start=1)))
    assert (confirmation.members(), confirmation.to_prove) == ([1, 2], 0)
    assert not confirmation.proven


@pytest.mark.parametrize("spread", [0.002, 0.005, 0.008])
def test_rate_of_two_rounds_holds_the_truth_with_processes_apart_and_drift(spread: float) -> None:
    """Each round has processes of its own, and the machine has drifted since the one before."""
    draw, held = random.Random(3), 0
    for _ in range(1000):
        drift = draw.gauss(0, 0.003)
        rates = [math.exp(draw.gauss(0, spread) + at * drift) for at in (-0.5, 0.5)]
        rate = Arm(rates, COMPUTES).rate
        held += rate.low <= 1 <= rate.high
    assert held / 1000 >= 0.93


@pytest.mark.parametrize("steps", [0.002, 0.01])
def test_well_known_scatter_of_steps_counts_for_more_freedom_than_two_runs(steps: float) -> None:
    alone = Arm([420.0, 421.0], Variance(COMPUTES.value + steps**2, COMPUTES.df)).rate
    apart = Arm([420.0, 421.0], COMPUTES, Variance(steps**2, 60.0)).rate
    assert apart.high / apart.low < alone.high / alone.low


@pytest.mark.parametrize("steps", [0.001, 0.005, 0.02])
@pytest.mark.parametrize("runs", [2, 4])
def test_interval_of_runs_with_scattering_steps_holds_the_truth(steps: float, runs: int) -> None:
    """The scatter of steps is known from twelve degrees of freedom."""
    draw, held = random.Random(runs), 0
    for _ in range(1000):
        rates = [math.exp(draw.gauss(0, math.hypot(0.005, steps))) for _ in range(runs)]
        within = steps**2 * draw.gammavariate(6, 1 / 6)
        rate = Arm(rates, COMPUTES, Variance(within, 12.0)).rate
        held += rate.low <= 1 <= rate.high
    assert held / 1000 >= 0.93


STEPS = Variance(0.02**2 / 60, 30.0)
HERE, THERE = 1, 2
BASELINE = {**defaults(), "micro_batch": 8, "accumulation_steps": 1}


def gain_by_rounds(draw: random.Random, earlier: float, runs: int) -> GainRounds:
    """Return the rounds of two equal configurations, after the baseline has run in the search.

    Args:
        earlier: log rate of those runs over that of the rounds.
        runs: number of them.
    """

    def drawn(around: float = 0.0) -> float:
        return math.exp(around + draw.gauss(0, math.hypot(0.005, math.sqrt(STEPS.value))))

    before = tuple(drawn(earlier) for _ in range(runs))
    processes = ProcessSpread(before, {0: 0.005, 1: 0.005}, {0: STEPS, 1: STEPS})
    rounds = GainRounds(1, 0, 10, 2, 1, processes)
    while not rounds.decided():
        rounds.rounds[len(rounds.rounds) + 1] = {0: drawn(), 1: drawn()}
    return rounds


@pytest.mark.parametrize("earlier", [-0.05, -0.02, 0.0, 0.02])
def test_runs_of_the_search_under_other_conditions_make_nothing_faster(earlier: float) -> None:
    draw = random.Random(1)
    gains = [gain_by_rounds(draw, earlier, runs=5).gain() for _ in range(400)]
    assert sum(gain.faster for gain in gains) <= 0.025 * len(gains)
    assert sum(gain.low <= 1 <= gain.high for gain in gains) >= 0.94 * len(gains)


def test_runs_of_the_search_tell_how_far_processes_lie_apart() -> None:
    alone = Arm([420.0, 421.0], COMPUTES)
    others = Arm([420.0, 421.0], COMPUTES, others=[400.0, 400.5, 400.2, 400.8])
    assert others.mean == alone.mean
    assert others.of_mean.df > alone.of_mean.df + 2
    assert others.rate.high / others.rate.low < alone.rate.high / alone.rate.low


def test_rounds_of_two_unsteady_configurations_go_on_until_they_show_the_gain() -> None:
    processes = ProcessSpread((), {0: 0.2, 1: 0.2}, {0: STEPS, 1: STEPS})
    rounds = GainRounds(1, 0, 10, 2, 1, processes)
    draw = random.Random(1)
    while not rounds.decided():
        drawn = [rate * math.exp(draw.gauss(0, 0.004)) for rate in (100.0, 130.0)]
        rounds.rounds[len(rounds.rounds) + 1] = dict(enumerate(drawn))
    assert rounds.gain().faster and not rounds.gain().vague
    assert 2 < len(rounds.rounds) < 10


class Records:
    """Records of a study whose steps are timed one by one."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._runs: list[StoredAttempt] = []

    def run(
        self,
        purpose: Purpose,
        rate: float,
        where: int,
        trial: int = 0,
        round_: int = 0,
        **how: bool,
    ) -> None:
        number = next(self._numbers)
        knobs = BASELINE | {"prefetch_factor": 7} if trial else BASELINE
        result = AttemptResult(AttemptState.COMPLETE, throughput=rate, **how)
        ended = number + 1.0
        self._runs.append(
            StoredAttempt(number, trial, purpose, round_, 1, knobs, number, ended, result, where)
        )

    def attempts(self) -> Attempts:
        return Attempts(self._runs, BASELINE)

    def processes(self) -> ProcessSpread:
        found = ProcessSpread.of(self.attempts(), steps_of, [0, 1])
        assert found is not None
        return found


def steps_of(_: int) -> list[StoredBlock]:
    moments = list(StepMoments.of([0.05 * (1 + 0.004 * (-1) ** at) for at in range(20)]))
    told = {"step_moments": moments}
    return [StoredBlock(0, 20, 20, 20, 1.0, [1.0], 0.0, 1.0, 0, kept=True, observed=told)]


def searched() -> Records:
    records = Records()
    for trial in (0, 1):
        records.run(Purpose.SEARCH, 100.0, HERE, trial)
    for at in range(4):
        records.run(Purpose.CALIBRATE, 100.0 + 0.1 * at, HERE)
    return records


def confirmed(records: Records, numbers: range, where: int, rate: float) -> None:
    for number, trial in itertools.product(numbers, (0, 1)):
        records.run(Purpose.CONFIRM, rate + 0.1 * number, where, trial, number)


def test_rounds_on_another_machine_than_the_search_prove_nothing_of_equal_configurations() -> None:
    records = searched()
    confirmed(records, range(1, 4), THERE, 108.0)
    attempts = records.attempts()
    found = replay(attempts, Selection.by_records(attempts, 3), 10, (), steps_of)
    assert found is not None and not found.proven
    own = own_rate(found, 0)
    assert found.gain(1).value == pytest.approx(1.0)
    assert own is not None and own.low > 107


def test_baseline_between_rounds_counts_where_the_last_round_ran() -> None:
    records = searched()
    confirmed(records, range(1, 2), HERE, 100.0)
    records.run(Purpose.REPEAT, 101.0, HERE)
    confirmed(records, range(2, 3), THERE, 108.0)
    records.run(Purpose.REPEAT, 109.0, THERE)
    assert records.processes().repeats == (109.0,)
    assert repeats_made(records.attempts()) == 1
    records.run(Purpose.REPEAT, 109.0, HERE)
    assert repeats_made(records.attempts()) == 2


def test_baseline_between_rounds_from_before_the_search_went_on_does_not_count() -> None:
    records = searched()
    confirmed(records, range(1, 2), HERE, 100.0)
    records.run(Purpose.REPEAT, 101.0, HERE)
    records.run(Purpose.SEARCH, 100.0, HERE, trial=2)
    confirmed(records, range(2, 3), HERE, 100.0)
    assert records.processes().repeats == ()
    assert repeats_made(records.attempts()) == 0


@pytest.mark.parametrize("how", [{"contended": True}, {"steady": False}])
def test_disturbed_run_tells_no_spread_where_there_are_others(how: dict[str, bool]) -> None:
    records = searched()
    records.run(Purpose.CALIBRATE, 80.0, HERE, **how)
    assert min(records.processes().earlier) == 100.0
    alone = Records()
    alone.run(Purpose.SEARCH, 80.0, HERE, **how)
    assert alone.processes().earlier == (80.0,)
