"""What Optuna's tables must hold of a study's trials: on SQLite and on PostgreSQL."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import optuna
import optuna_dashboard
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.search.sampling import sampler
from autotune.search.space import Space
from autotune.search.trial_attributes import OUT_OF_MEMORY
from autotune.study.dashboard_sync import tell_result
from search_spaces import Facts, defaults
from storage import AttemptResult, Database, TrialLedger

KNOBS: dict[str, BaseDistribution] = {
    "micro_batch": CategoricalDistribution([1, 2, 4, 8]),
    "precision": CategoricalDistribution(["fp32", "bf16"]),
    "gradient_as_bucket_view": CategoricalDistribution([False, True]),
}
BASELINE = {"micro_batch": 2, "precision": "fp32", "gradient_as_bucket_view": False}
NUMBERS = itertools.count()

Open = Callable[..., TrialLedger]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """One database of each kind for all tests here; each test has a study of its own."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/autotune.db"
    else:
        server = request.getfixturevalue("postgres_server")
        server.psql("create database ledger")
        url = server.get_uri(database="ledger")
    opened = Database(url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def open_ledger(database: Database) -> Open:
    """Opens a ledger of the test's study; called again, another one of the same study."""
    name = f"study-{next(NUMBERS)}"

    def opened(chosen: optuna.samplers.BaseSampler | None = None) -> TrialLedger:
        return TrialLedger(database, name, chosen or optuna.samplers.RandomSampler(0))

    return opened


@pytest.fixture
def ledger(open_ledger: Open) -> TrialLedger:
    return open_ledger()


def batch_space() -> Space:
    """Two knobs whose product is given: of 16 combinations, the four on the diagonal are feasible."""
    return Space(
        {"micro_batch": [1, 2, 4, 8], "accumulation_steps": [1, 2, 4, 8]},
        {**defaults(), "micro_batch": 8, "accumulation_steps": 1},
        Facts(device="cpu", world_size=2, capability=None, global_batch_size=16),
    )


def note_of(ledger: TrialLedger, number: int) -> str:
    study = ledger._study
    return optuna_dashboard.get_note(Trial(study, ledger.trials()[number]._trial_id))


def completed(
    successor: TrialLedger, half: FrozenTrial, distributions: dict[str, BaseDistribution]
) -> FrozenTrial:
    return successor.complete_params(successor.trials()[half.number], distributions)


def everything(ledger: TrialLedger) -> list[FrozenTrial]:
    """The trials as they now stand, apart from what the ledger may keep in memory."""
    return list(ledger._study.get_trials(deepcopy=True))


class TestStudy:
    def test_it_is_to_be_maximised(self, ledger: TrialLedger) -> None:
        assert ledger._study.directions == [StudyDirection.MAXIMIZE]
        assert ledger.trials() == []

    def test_opened_again_it_is_the_same(self, ledger: TrialLedger, open_ledger: Open) -> None:
        ledger.enqueue(BASELINE, "baseline")
        again = open_ledger()
        assert again._study._study_id == ledger._study._study_id
        assert len(again.trials()) == 1

    def test_studies_are_apart(self, ledger: TrialLedger, database: Database) -> None:
        ledger.enqueue(BASELINE, "baseline")
        other = TrialLedger(database, f"study-{next(NUMBERS)}")
        assert other._study._study_id != ledger._study._study_id
        assert other.trials() == []

    def test_its_note_is_kept(self, ledger: TrialLedger, open_ledger: Open) -> None:
        ledger.note("first")
        ledger.note("## Verdict\n\n1.5x — ünïcode 🚀")
        again = open_ledger()._study
        assert optuna_dashboard.get_note(again) == "## Verdict\n\n1.5x — ünïcode 🚀"

    @pytest.mark.parametrize("length", [2044, 2045, 2046, 10_000])
    def test_a_shorter_note_takes_the_place_of_a_long_one(
        self, ledger: TrialLedger, length: int
    ) -> None:
        long = "".join(chr(ord("a") + n % 26) for n in range(length))
        ledger.note(long)
        assert optuna_dashboard.get_note(ledger._study) == long
        ledger.note("short")
        assert optuna_dashboard.get_note(ledger._study) == "short"


class TestAsking:
    def test_the_baseline_is_enqueued_once(self, ledger: TrialLedger, open_ledger: Open) -> None:
        ledger.enqueue(BASELINE, "baseline")
        ledger.enqueue(BASELINE, "baseline")
        open_ledger().enqueue(dict(reversed(BASELINE.items())), "baseline")
        [trial] = ledger.trials()
        assert trial.state is TrialState.WAITING
        assert trial.user_attrs == {"suggested_by": "baseline"}

    @pytest.mark.parametrize("state", ["COMPLETE", "PRUNED", "OOM"])
    def test_the_baseline_is_not_enqueued_again_once_it_has_run(
        self, ledger: TrialLedger, open_ledger: Open, state: str
    ) -> None:
        ledger.enqueue(BASELINE, "baseline")
        ledger.ask(KNOBS)
        open_ledger().enqueue(BASELINE, "baseline")
        throughput = None if state == "OOM" else 5.0
        tell_result(ledger, 0, AttemptResult(state, throughput=throughput), "note")
        open_ledger().enqueue(BASELINE, "baseline")
        assert len(ledger.trials()) == 1

    @pytest.mark.parametrize(("state", "told"), [("ERROR", "FAIL"), ("PRUNED", "PRUNED")])
    def test_a_baseline_that_failed_or_was_cut_may_be_tried_again(
        self, ledger: TrialLedger, open_ledger: Open, state: str, told: str
    ) -> None:
        ledger.enqueue(BASELINE, "baseline")
        ledger.ask(KNOBS)
        tell_result(ledger, 0, AttemptResult(state), "note")
        for _ in range(2):
            open_ledger().enqueue(BASELINE, "baseline")
        assert [trial.state.name for trial in ledger.trials()] == [told, "WAITING"]

    def test_a_baseline_of_no_knobs_is_enqueued_once(
        self, ledger: TrialLedger, open_ledger: Open
    ) -> None:
        ledger.enqueue({}, "baseline")
        open_ledger().enqueue({}, "baseline")
        assert len(ledger.trials()) == 1
        assert ledger.ask({}).number == 0

    def test_the_baseline_comes_first_then_what_the_sampler_says(self, ledger: TrialLedger) -> None:
        ledger.enqueue(BASELINE, "baseline")
        asked = [ledger.ask(KNOBS) for _ in range(4)]
        assert [trial.number for trial in asked] == [0, 1, 2, 3]
        assert asked[0].params == BASELINE
        assert [type(value) for value in asked[0].params.values()] == [int, str, bool]
        for trial in asked:
            assert trial.state is TrialState.RUNNING
            assert set(trial.params) == set(KNOBS)
            assert trial.distributions == KNOBS
            assert trial.datetime_start is not None
        assert ledger.trials() == asked

    def test_a_space_that_is_used_up_leaves_no_trial_behind(self, open_ledger: Open) -> None:
        """Or the study shows one that runs for ever, and whoever goes on with the study trips."""
        space = batch_space()
        chosen = sampler("random", space, 0)
        ledger = open_ledger(chosen)
        while chosen.has_more(ledger.trials()):
            asked = ledger.ask(space.distributions())
            assert asked.number < 4
            tell_result(ledger, asked.number, AttemptResult("COMPLETE", throughput=1.0), "")

        successor = open_ledger(sampler("random", space, 1))
        assert [trial.state for trial in everything(successor)] == [TrialState.COMPLETE] * 4
        assert not sampler("random", space, 1).has_more(successor.trials())

    def test_what_somebody_has_enqueued_and_cannot_be_ends_no_search(
        self, ledger: TrialLedger
    ) -> None:
        ledger._study.enqueue_trial({"precision": "fp7"})
        asked = ledger.ask(KNOBS)
        assert asked.number == 1
        assert [trial.state for trial in everything(ledger)] == [
            TrialState.FAIL,
            TrialState.RUNNING,
        ]


class TestHalfAsked:
    """A daemon was killed between two parameters of a trial that it was asking for."""

    def test_the_rest_is_asked_for(self, ledger: TrialLedger, open_ledger: Open) -> None:
        half = ledger.ask({"precision": KNOBS["precision"]})
        whole = completed(open_ledger(), half, KNOBS)
        assert whole.number == half.number
        assert whole.state is TrialState.RUNNING
        assert set(whole.params) == set(KNOBS)
        assert whole.params["precision"] == half.params["precision"]
        assert everything(ledger)[0].params == whole.params

    def test_one_of_which_nothing_was_asked_yet(
        self, ledger: TrialLedger, open_ledger: Open
    ) -> None:
        empty = ledger.ask({})
        assert set(completed(open_ledger(), empty, KNOBS).params) == set(KNOBS)

    def test_that_of_the_baseline_becomes_the_baseline(
        self, ledger: TrialLedger, open_ledger: Open
    ) -> None:
        ledger.enqueue(BASELINE, "baseline")
        half = ledger.ask({"gradient_as_bucket_view": KNOBS["gradient_as_bucket_view"]})
        assert completed(open_ledger(), half, KNOBS).params == BASELINE

    def test_a_whole_one_stays_as_it_is(self, ledger: TrialLedger, open_ledger: Open) -> None:
        whole = ledger.ask(KNOBS)
        assert completed(open_ledger(), whole, KNOBS).params == whole.params

    def test_what_comes_of_it_is_feasible(self, open_ledger: Open) -> None:
        space = batch_space()
        distributions = space.distributions()
        in_turn = open_ledger(optuna.samplers.GridSampler({"micro_batch": [1, 2, 4, 8]}))
        halves = [in_turn.ask({"micro_batch": distributions["micro_batch"]}) for _ in range(4)]
        assert {half.params["micro_batch"] for half in halves} == {1, 2, 4, 8}

        successor = open_ledger(sampler("random", space, 0))
        whole = [completed(successor, half, distributions).params for half in halves]
        assert [p["micro_batch"] for p in whole] == [h.params["micro_batch"] for h in halves]
        assert [space.problems(params) for params in whole] == [[]] * len(whole), whole

    def test_it_can_be_told(self, ledger: TrialLedger, open_ledger: Open) -> None:
        half = ledger.ask({"precision": KNOBS["precision"]})
        successor = open_ledger()
        completed(successor, half, KNOBS)
        tell_result(successor, half.number, AttemptResult("COMPLETE", throughput=3.0), "")
        assert everything(ledger)[0].value == 3.0


FULL = AttemptResult(
    "COMPLETE",
    throughput=1234.5678901234567,
    half_width=0.015,
    peak_bytes=2**41 + 1,
    wall_seconds=3.0,
)


class TestTelling:
    def test_a_complete_trial_carries_its_throughput(
        self, ledger: TrialLedger, open_ledger: Open
    ) -> None:
        params = ledger.ask(KNOBS).params
        tell_result(ledger, 0, FULL, "### COMPLETE\n- ünïcode 🚀")
        for reader in (ledger, open_ledger()):
            [trial] = everything(reader)
            assert trial.state is TrialState.COMPLETE
            assert trial.value == FULL.throughput
            assert trial.params == params
            assert trial.datetime_complete is not None
            assert trial.user_attrs == {
                "end": "COMPLETE",
                "peak_bytes": 2**41 + 1,
                "half_width": 0.015,
            }
            assert note_of(reader, 0) == "### COMPLETE\n- ünïcode 🚀"
        assert ledger._study.best_trial.number == 0

    def test_a_pruned_trial_carries_its_throughput(self, ledger: TrialLedger) -> None:
        ledger.ask(KNOBS)
        result = AttemptResult("PRUNED", "cannot catch up", throughput=7.5, half_width=0.1)
        tell_result(ledger, 0, result, "slow")
        [trial] = everything(ledger)
        assert trial.state is TrialState.PRUNED
        assert trial.value == 7.5
        assert trial.user_attrs["cause"] == "cannot catch up"
        assert note_of(ledger, 0) == "slow"

    def test_a_pruned_trial_without_a_figure_has_none(self, ledger: TrialLedger) -> None:
        ledger.ask(KNOBS)
        tell_result(ledger, 0, AttemptResult("PRUNED"), "")
        [trial] = everything(ledger)
        assert (trial.state, trial.value) == (TrialState.PRUNED, None)

    def test_out_of_memory_is_pruned_and_violates_the_constraint(self, ledger: TrialLedger) -> None:
        ledger.ask(KNOBS)
        tell_result(
            ledger, 0, AttemptResult("OOM", "CUDA out of memory", peak_bytes=2**36), "too large"
        )
        [trial] = everything(ledger)
        assert (trial.state, trial.value) == (TrialState.PRUNED, None)
        assert trial.constraints == {OUT_OF_MEMORY: 1.0}
        assert trial.user_attrs["end"] == "OOM"
        assert trial.user_attrs["peak_bytes"] == 2**36
        assert note_of(ledger, 0) == "too large"

    @pytest.mark.parametrize("state", ["CRASH", "HANG", "ERROR"])
    def test_a_failure_fails(self, ledger: TrialLedger, state: str) -> None:
        ledger.ask(KNOBS)
        tell_result(
            ledger, 0, AttemptResult(state, "rank 1: ValueError: no", throughput=None), "broken"
        )
        [trial] = everything(ledger)
        assert (trial.state, trial.value) == (TrialState.FAIL, None)
        assert trial.user_attrs == {"end": state, "cause": "rank 1: ValueError: no"}
        assert note_of(ledger, 0) == "broken"

    @pytest.mark.parametrize("state", ["COMPLETE", "PRUNED", "CRASH"])
    def test_what_had_memory_enough_keeps_the_constraint(
        self, ledger: TrialLedger, state: str
    ) -> None:
        ledger.ask(KNOBS)
        tell_result(ledger, 0, AttemptResult(state, throughput=1.0), "")
        assert all(value <= 0 for value in everything(ledger)[0].constraints.values())

    def test_telling_twice_changes_nothing(self, ledger: TrialLedger, open_ledger: Open) -> None:
        ledger.ask(KNOBS)
        tell_result(ledger, 0, FULL, "first")
        before = everything(ledger)
        other = AttemptResult("OOM", "another story", throughput=1.0, peak_bytes=7)
        for teller in (ledger, open_ledger()):
            tell_result(teller, 0, other, "second")
            tell_result(teller, 0, FULL, "third")
        assert everything(open_ledger()) == before
        assert note_of(open_ledger(), 0) == "first"

    def test_one_that_was_told_half_is_told_whole(
        self, ledger: TrialLedger, open_ledger: Open
    ) -> None:
        """The daemon was killed between the attributes and the value."""
        asked = ledger.ask(KNOBS)
        half = Trial(ledger._study, asked._trial_id)
        half.set_user_attr("end", "COMPLETE")
        optuna_dashboard.save_note(half, "half")
        tell_result(open_ledger(), 0, FULL, "whole")
        [trial] = everything(ledger)
        assert (trial.state, trial.value) == (TrialState.COMPLETE, FULL.throughput)
        assert note_of(ledger, 0) == "whole"

    def test_trials_are_told_in_any_order(self, ledger: TrialLedger) -> None:
        for _ in range(4):
            ledger.ask(KNOBS)
        for number in (2, 0, 3):
            result = AttemptResult("COMPLETE", throughput=float(number))
            tell_result(ledger, number, result, f"trial {number}")
        trials = everything(ledger)
        assert [trial.value for trial in trials] == [0.0, None, 2.0, 3.0]
        assert trials[1].state is TrialState.RUNNING
        assert [note_of(ledger, n) for n in range(4)] == ["trial 0", "", "trial 2", "trial 3"]

    @pytest.mark.parametrize("strange", ["\0", "\udc80", "<b>&", "x" * 5000], ids=range(4))
    def test_a_cause_may_hold_anything(self, ledger: TrialLedger, strange: str) -> None:
        ledger.ask(KNOBS)
        tell_result(
            ledger, 0, AttemptResult("ERROR", f"before{strange}after"), f"before{strange}after"
        )
        [trial] = everything(ledger)
        assert trial.state is TrialState.FAIL
        for kept in (trial.user_attrs["cause"], note_of(ledger, 0)):
            assert kept.startswith("before")
            assert kept.endswith("after")

    @pytest.mark.long
    def test_two_ledgers_that_tell_one_trial_at_once_tell_it_once(self, open_ledger: Open) -> None:
        """A daemon that was taken over tells from the same records as its successor."""
        ledgers = [open_ledger(), open_ledger()]
        for number in range(8):
            ledgers[0].ask(KNOBS)
            barrier = threading.Barrier(2)

            def tell(ledger: TrialLedger, number: int = number, b: threading.Barrier = barrier):
                b.wait(30)
                tell_result(ledger, number, FULL, "note")

            with ThreadPoolExecutor(2) as pool:
                assert list(pool.map(tell, ledgers)) == [None, None]
        for trial in everything(open_ledger()):
            assert (trial.state, trial.value) == (TrialState.COMPLETE, FULL.throughput)
            assert trial.user_attrs["end"] == "COMPLETE"
            assert note_of(ledgers[0], trial.number) == "note"
