"""Which finalists train something else than the baseline, by what ranks have reported."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from autotune.analysis.sameness import ChangeKind, Comparison, Rules
from search_spaces import KnobValue, defaults
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

BASELINE = {**defaults(), "micro_batch": 8, "find_unused_parameters": True}
ROWS = {"rows": 48, "contents": "a", "indices": "", "order": "o", "counted": 48, "copies": 0}


def seen(**changes: Any) -> dict[str, Any]:
    rows = {**ROWS, **changes.pop("consumed", {})}
    usual = {"consumed": rows, "unused_parameters": 0, "batch_dependent": "", "replica_spread": 0.0}
    return {**usual, **changes}


NO_OWN: Mapping[str, KnobValue] = {}
Later = tuple[int, Purpose, dict[str, Any], dict[str, Any]]


def comparison(
    baseline: dict[str, Any],
    *trials: tuple[dict[str, Any], dict[str, Any]],
    later: Sequence[Later] = (),
    own: Mapping[str, KnobValue] = NO_OWN,
    harmless: Collection[str] = (),
    **rules: bool,
) -> Comparison:
    """Compare trials 1 to n, each with its changes and what was observed of it.

    Args:
        later: further runs: trial, purpose, changes and observations.
        own: the baseline's values of the study's own knobs; `harmless` are names of some.
    """
    default = {**BASELINE, **own}
    searched = [(n, Purpose.SEARCH, *trial) for n, trial in enumerate(trials, 1)]
    base = [(0, Purpose.SEARCH, {}, baseline), (0, Purpose.CALIBRATE, {}, baseline)]
    attempts, observed = [], {}
    for number, (trial, purpose, knobs, told) in enumerate([*base, *searched, *later], 1):
        result = AttemptResult(AttemptState.COMPLETE, throughput=100.0 + number)
        attempts.append(
            StoredAttempt(number, trial, purpose, 0, 1, {**default, **knobs}, 0.0, 1.0, result)
        )
        observed[number] = told
    return Comparison(
        Attempts(attempts, default, frozenset(harmless)),
        lambda id_: [StoredBlock(0, 1, 1, 0, 1.0, [1.0], 0.0, 1.0, 1, False, False, observed[id_])],
        default,
        Rules(**rules),
    )


WORKERS = {"num_workers": 2}


@pytest.mark.parametrize(
    ("of_baseline", "of_trial", "refused"),
    [(0, 24, True), (0, 2, False), (4, 4, False), (4, 40, True), (4, 8, False), (24, 40, False)],
)
def test_more_copies_than_the_baseline_has_are_refused(
    of_baseline: int, of_trial: int, refused: bool
) -> None:
    baseline = seen(consumed={"copies": of_baseline})
    found = comparison(baseline, (WORKERS, seen(consumed={"copies": of_trial})))
    assert bool(found.refused()) == refused


@pytest.mark.parametrize(("harmless", "kind"), [((), None), (("draws",), ChangeKind.WORKERS)])
def test_workers_are_blamed_only_where_no_knob_of_the_study_may_repeat_rows(
    harmless: Collection[str], kind: ChangeKind | None
) -> None:
    trial = ({**WORKERS, "draws": "again"}, seen(consumed={"copies": 24}))
    found = comparison(seen(), trial, own={"draws": "once"}, harmless=harmless).objections()
    assert found[1].kind is kind


@pytest.mark.parametrize("other", ["find_unused_parameters", "parallelism", "bucket_cap_mb"])
def test_split_is_blamed_for_a_drift_only_where_nothing_else_may_cause_it(other: str) -> None:
    values = {"find_unused_parameters": False, "parallelism": "fsdp", "bucket_cap_mb": 5}
    knobs = {"micro_batch": 4, "accumulation_steps": 2, other: values[other]}
    found = comparison(seen(), (knobs, seen(replica_spread=1e-4))).objections()
    assert found[1].kind is (ChangeKind.SPLIT if other == "bucket_cap_mb" else None)


def test_copies_of_labels_alone_are_not_judged() -> None:
    """With ten labels, all rows but ten are copies, however many rows there are."""
    baseline = seen(consumed={"rows": 1536, "counted": 1536, "copies": 1526})
    trial = seen(consumed={"rows": 384, "counted": 384, "copies": 374})
    assert comparison(baseline, (WORKERS, trial)).refused() == {}


def test_a_knob_that_cannot_change_data_is_not_judged_by_it() -> None:
    found = comparison(seen(), ({"bucket_cap_mb": 100}, seen(consumed={"copies": 24})))
    assert found.refused() == {}


@pytest.mark.parametrize(
    ("baseline", "trial", "word"),
    [
        (seen(), seen(), ""),
        (seen(consumed={"indices": "i"}), seen(consumed={"contents": "b", "indices": "i"}), ""),
        (seen(), seen(consumed={"contents": "b"}), "other rows than yours"),
        ({**seen(), "consumed": None}, seen(), "were not seen"),
    ],
    ids=["equal rows", "equal indices", "other rows", "not seen"],
)
def test_data_that_is_not_shown_to_be_the_same_is_named(
    baseline: dict[str, Any], trial: dict[str, Any], word: str
) -> None:
    baseline = {name: value for name, value in baseline.items() if value is not None}
    found = comparison(baseline, (WORKERS, trial))
    sentences = found.open(1, {**BASELINE, **WORKERS})
    assert bool(sentences) == bool(word)
    assert word in " ".join(sentences)


@pytest.mark.parametrize("of_script", [True, False])
def test_parallelism_is_refused_where_a_layer_computes_over_other_rows(of_script: bool) -> None:
    baseline = seen(batch_dependent="BatchNorm") if of_script else {"batch_dependent": "BatchNorm"}
    values = ("none", "zero1", "fsdp", "hsdp", "data_parallel")
    found = comparison(baseline, *(({"parallelism": value}, baseline) for value in values))
    refused = found.refused()
    assert sorted(refused) == [3, 4], "those that shard"
    assert all("parallelism changes its statistics" in reason for reason in refused.values())
    plain = comparison(seen(), ({"parallelism": "data_parallel"}, seen()))
    assert plain.refused() == {}


@pytest.mark.parametrize("merges", ["trial", "baseline"])
def test_data_parallel_is_refused_where_it_computes_the_rows_of_all_ranks_at_once(
    merges: str,
) -> None:
    apart, merged = ({"batch_dependent": f"BatchNorm{rows}"} for rows in ("", " over all rows"))
    both = (apart, merged) if merges == "trial" else (merged, apart)
    found = comparison(both[0], ({"parallelism": "data_parallel"}, both[1]))
    assert "parallelism changes its statistics" in found.refused()[1]
    allowed = comparison(
        both[0], ({"parallelism": "data_parallel"}, both[1]), reject_batch_dependent=False
    )
    assert allowed.refused() == {}
    assert "parallelism changes" in " ".join(
        allowed.open(1, {**BASELINE, "parallelism": "data_parallel"})
    )


def test_workers_that_stay_are_refused_where_the_dataset_changes() -> None:
    knobs = {"num_workers": 1, "persistent_workers": True}
    found = comparison(
        seen(),
        (knobs, seen(epochs=1, stale=["dataset.epoch"])),
        (knobs, seen(epochs=3, stale=[])),
        (knobs, seen()),
    )
    assert list(found.refused()) == [1]
    configuration = {**BASELINE, **knobs}
    assert not found.lacks_epoch(2, configuration)
    assert found.lacks_epoch(3, configuration)
    assert "no second epoch" in " ".join(found.open(3, configuration))


@pytest.mark.parametrize("baseline", [True, False])
def test_gradients_of_zero_are_refused_where_a_step_leaves_parameters_out(baseline: bool) -> None:
    """Where they are set to zero today, only the trial shows which have none."""
    knobs = {"set_to_none": False}
    told = (seen(unused_parameters=2), seen()) if baseline else (seen(), seen(unused_parameters=2))
    (reason,) = comparison(told[0], (knobs, told[1])).refused().values()
    assert "2 parameters had no gradient" in reason
    assert comparison(seen(), (knobs, seen())).refused() == {}
    unseen = comparison({}, (knobs, {}))
    assert "set_to_none" in " ".join(unseen.open(1, {**BASELINE, **knobs}))
    assert unseen.open(1, BASELINE) == []


def test_a_graph_that_the_script_does_not_call_static_stays_a_risk() -> None:
    knobs = {"find_unused_parameters": False}
    found = comparison(seen(), (knobs, seen()))
    assert found.refused() == {}
    assert "find_unused_parameters=false" in " ".join(found.open(1, {**BASELINE, **knobs}))
    assert found.open(1, {**BASELINE, "bucket_cap_mb": 5}) == []
    assert list(comparison(seen(unused_parameters=2), (knobs, seen())).refused()) == [1]


def test_replicas_that_drift_apart_are_refused_unless_those_of_the_baseline_do() -> None:
    knobs, apart = {"micro_batch": 4, "accumulation_steps": 2}, seen(replica_spread=1e-4)
    assert list(comparison(seen(), (knobs, apart)).refused()) == [1]
    assert comparison(apart, (knobs, apart)).refused() == {}


def test_another_micro_batch_under_batch_normalisation_is_refused_unless_allowed() -> None:
    baseline, other = seen(batch_dependent="BatchNorm"), {"micro_batch": 4, "accumulation_steps": 2}
    trials = ((other, baseline), ({"bucket_cap_mb": 5}, baseline))
    assert list(comparison(baseline, *trials).refused()) == [1]
    allowed = comparison(baseline, *trials, reject_batch_dependent=False)
    assert allowed.refused() == {}
    assert "BatchNorm" in " ".join(allowed.open(1, {**BASELINE, **other}))


def test_a_study_whose_ranks_tell_nothing_refuses_nothing() -> None:
    found = comparison({}, (WORKERS, {}), ({"persistent_workers": True}, {}))
    assert found.refused() == {}
    assert found.open(1, {**BASELINE, **WORKERS}) == []


def updates(gradient: float, rates: list[float], optimizer: str = "SGD") -> dict[str, Any]:
    return seen(first_gradient=gradient, learning_rates=rates, optimizer=optimizer)


SPLIT = {"micro_batch": 1, "accumulation_steps": 8}
SLOW = [0.001 * step for step in range(6)]
FAST = [8 * rate for rate in SLOW]


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (updates(1.1, SLOW), ""),
        (updates(8.3, SLOW), "8.3 times yours"),
        (updates(8.3, SLOW, "AdamW"), ""),
        (updates(100.0, SLOW), ""),
        (updates(8.3, SLOW, "Shampoo"), ""),
        (updates(1.1, FAST, "AdamW"), "0.008 where yours is 0.001"),
        (updates(1.1, [0.0, 0.0015, 0.003, 0.003, 0.004, 0.005]), ""),
        (updates(1.1, [1.1 * rate for rate in SLOW]), ""),
        (seen(), ""),
    ],
    ids=[
        "equal",
        "sums",
        "sums, Adam",
        "other cause",
        "sums, others",
        "rate",
        "short warm-up",
        "rounded",
        "not told",
    ],
)
def test_split_that_changes_the_size_of_updates_is_refused(told: dict[str, Any], word: str) -> None:
    refused = comparison(updates(1.0, SLOW), (SPLIT, told)).refused()
    assert bool(refused) == bool(word)
    assert word in refused.get(1, "")


@pytest.mark.parametrize(
    "knobs", [{"bucket_cap_mb": 5}, {"micro_batch": 64}, {**SPLIT, "parallelism": "fsdp"}]
)
def test_size_of_the_gradient_is_not_compared_where_the_batch_or_the_shards_differ(
    knobs: dict[str, Any],
) -> None:
    assert comparison(updates(1.0, SLOW), (knobs, updates(8.0, SLOW))).refused() == {}


def test_an_allowed_split_with_other_updates_stays_a_risk() -> None:
    configuration = {**BASELINE, **SPLIT}
    for optimizer, word in (("SGD", "does not divide its loss"), ("AdamW", "clipped")):
        told = updates(8.0, FAST, optimizer)
        found = comparison(updates(1.0, SLOW), (SPLIT, told), reject_batch_dependent=False)
        assert found.refused() == {}
        said = " ".join(found.open(1, configuration))
        assert word in said
        assert "learning rate" in said


def test_runs_of_other_rounds_or_other_knobs_do_not_hide_that_losses_are_summed() -> None:
    """Rounds draw other rows, and the ablation of a winner runs it without its split."""
    later = [
        (0, Purpose.CONFIRM, {}, updates(5.0, SLOW)),
        (1, Purpose.CONFIRM, SPLIT, updates(1.0, SLOW)),
        (1, Purpose.ABLATION, {}, updates(1.0, SLOW)),
    ]
    refused = comparison(updates(1.0, SLOW), (SPLIT, updates(8.0, SLOW)), later=later)
    assert list(refused.refused()) == [1]
    allowed = comparison(
        updates(1.0, SLOW, "AdamW"), (SPLIT, updates(8.0, SLOW, "AdamW")), later=later
    )
    assert "does not divide its loss" in " ".join(allowed.open(1, {**BASELINE, **SPLIT}))


def test_rows_of_other_rounds_are_not_compared() -> None:
    other = [
        (0, Purpose.CONFIRM, {}, seen(consumed={"contents": "c"})),
        (1, Purpose.CONFIRM, WORKERS, seen(consumed={"contents": "d"})),
    ]
    found = comparison(seen(), (WORKERS, seen(consumed={"contents": "b"})), later=other)
    assert "other rows than yours" in " ".join(found.open(1, {**BASELINE, **WORKERS}))


@pytest.mark.parametrize(("gradient", "kind"), [(8.1, ChangeKind.SPLIT), (5.0, None)])
def test_only_a_gradient_of_just_the_factor_speaks_against_all_splits(
    gradient: float, kind: ChangeKind | None
) -> None:
    found = comparison(updates(1.0, SLOW), (SPLIT, updates(gradient, SLOW))).objections()
    assert found[1].kind is kind


@pytest.mark.parametrize(
    ("winner", "back", "holds"),
    [
        ({"num_workers": 2, "broadcast_buffers": False}, "broadcast_buffers", True),
        ({"num_workers": 2, "bucket_cap_mb": 100}, "bucket_cap_mb", True),
        ({"micro_batch": 4, "accumulation_steps": 2, "num_workers": 2}, "num_workers", True),
        ({"micro_batch": 4, "accumulation_steps": 2, "static_graph": True}, "static_graph", False),
    ],
)
def test_checks_hold_for_what_is_left_unless_a_batch_was_seen_with_other_gradients(
    winner: dict[str, Any], back: str, holds: bool
) -> None:
    whole = {**BASELINE, **winner}
    left = {**whole, back: BASELINE[back]}
    assert comparison(seen(), (winner, seen())).holds_without(whole, left) == holds
    assert comparison({}, (winner, {})).holds_without(whole, left), "there is nothing to hold"
