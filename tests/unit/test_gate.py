"""What a finalist is compared with."""

import dataclasses

import pytest

from autotune.analysis.barred import Barred
from autotune.analysis.finalists import Candidate, Selection
from autotune.analysis.gate import record, unverified
from autotune.analysis.gate_plan import missing_runs, next_check
from autotune.analysis.sameness import Rules
from search_spaces import Facts, KnobValue, defaults, infeasible
from search_spaces.numerics import reference_knobs, touched
from storage import (
    AttemptResult,
    Attempts,
    AttemptState,
    Fault,
    Purpose,
    StoredAttempt,
    StoredBlock,
)

ON_GPU = Facts("cuda", 2, (9, 0), backend="nccl")


def test_the_reference_is_the_baseline_in_fp32() -> None:
    baseline = {
        **defaults(),
        "precision": "bf16",
        "gradient_compression": "powersgd",
        "powersgd_rank": 4,
        "find_unused_parameters": True,
        "compile": "default",
        "loss_chunks": 4,
    }
    checked = {**baseline, "micro_batch": 4, "float8": "tensorwise", "layer_keep": 1}
    assert reference_knobs(checked, baseline) == {
        **baseline,
        "micro_batch": 4,
        "precision": "fp32",
        "gradient_compression": "none",
        "powersgd_rank": 1,
    }


def test_what_does_not_go_with_fp32_has_its_default() -> None:
    baseline = {**defaults(), "precision": "bf16", "attention": "flash"}
    reference = reference_knobs({**baseline, "compile": "default"}, baseline)
    assert (reference["precision"], reference["attention"]) == ("fp32", "auto")
    assert infeasible(reference, ON_GPU) == []


def test_what_does_not_go_with_what_is_trained_has_its_default() -> None:
    baseline = {**defaults(), "static_graph": True}
    reference = reference_knobs({**baseline, "layer_keep": 0.5}, baseline)
    assert (reference["layer_keep"], reference["static_graph"]) == (0.5, False)


@pytest.mark.parametrize(
    ("name", "value"), [("nccl_algo", "Tree"), ("nccl_proto", "LL"), ("channels_last", True)]
)
def test_other_order_of_sums_is_a_change_of_the_numbers(name: str, value: KnobValue) -> None:
    assert touched({**defaults(), name: value}, defaults()) == [name]


def split(
    micro_batch: int, accumulation_steps: int, precision: str = "bf16"
) -> dict[str, KnobValue]:
    sizes = {"micro_batch": micro_batch, "accumulation_steps": accumulation_steps}
    return {**defaults(), **sizes, "precision": precision}


def searched(*several: dict[str, KnobValue]) -> list[StoredAttempt]:
    """Complete trials of a search with these configurations."""
    complete = AttemptResult(AttemptState.COMPLETE, throughput=100.0)
    return [
        StoredAttempt(number, number, Purpose.SEARCH, 0, 1, knobs, 0.0, 9.0, complete)
        for number, knobs in enumerate(several)
    ]


def out_of_memory(number: int, knobs: dict[str, KnobValue]) -> StoredAttempt:
    failed = AttemptResult(AttemptState.OOM, "out of memory")
    return StoredAttempt(10 + number, 1, Purpose.REFERENCE, 0, 1, knobs, 0.0, 9.0, failed)


def checked_in(
    baseline: dict[str, KnobValue],
    knobs: dict[str, KnobValue],
    *references: StoredAttempt,
    keeps_batch: bool = True,
) -> tuple[KnobValue, KnobValue]:
    """Return micro-batch and accumulation of the reference that is to be run for a trial."""
    recorded = [*searched(baseline, knobs), *references]
    attempts = Attempts(recorded, baseline, keeps_batch=keeps_batch)
    found = next_check([Candidate(1, knobs, 0)], baseline, attempts, falling)
    assert found is not None and found.purpose is Purpose.REFERENCE
    missing = [run.knobs for run in missing_runs([knobs], baseline, attempts)]
    assert found.knobs in missing
    return found.knobs["micro_batch"], found.knobs["accumulation_steps"]


@pytest.mark.parametrize(
    ("own", "tried", "reference"),
    [
        ((2, 4), (8, 1), (2, 4)),
        ((2, 4), (4, 2), (2, 4)),
        ((2, 4), (2, 4), (2, 4)),
        ((2, 4), (1, 8), (1, 8)),
        ((4, 2), (8, 1), (4, 2)),
        ((8, 1), (2, 4), (2, 4)),
    ],
)
def test_reference_of_a_kept_global_batch_has_its_samples_in_a_smaller_micro_batch(
    own: tuple[int, int], tried: tuple[int, int], reference: tuple[int, int]
) -> None:
    assert checked_in(split(*own, "fp32"), split(*tried)) == reference


def test_reference_of_another_global_batch_accumulates_as_its_trial() -> None:
    own = split(2, 4, "fp32")
    assert checked_in(own, split(8, 1), keeps_batch=False) == (2, 1)


def test_reference_without_enough_memory_has_the_next_micro_batch_that_divides_its_samples() -> (
    None
):
    own = split(6, 2, "bf16")
    failed = [out_of_memory(n, split(*one, "fp32")) for n, one in enumerate([(6, 2), (3, 4)])]
    tried = {**split(6, 2), "float8": "tensorwise"}
    assert checked_in(own, tried, failed[0]) == (3, 4)
    assert checked_in(own, tried, *failed) == (1, 12)
    own, tried = split(5, 2), {**split(5, 2), "float8": "tensorwise"}
    assert checked_in(own, tried, out_of_memory(0, split(5, 2, "fp32"))) == (2, 5)
    own, tried = split(5, 3), {**split(5, 3), "float8": "tensorwise"}
    assert checked_in(own, tried, out_of_memory(0, split(5, 3, "fp32"))) == (1, 15)


BASELINE = defaults()
HALF = {**BASELINE, "precision": "bf16"}
SEARCHED = searched(BASELINE, HALF)


def check(
    number: int, purpose: Purpose, state: AttemptState = AttemptState.COMPLETE, seed: int = 0
) -> StoredAttempt:
    knobs = HALF if purpose is Purpose.NUMERICS else BASELINE
    result = AttemptResult(state, "ended after 3 of 32 steps", wall_seconds=9.0)
    return StoredAttempt(10 + number, 1, purpose, seed, 1, knobs, 0.0, 9.0, result)


def falling(_: int) -> list[StoredBlock]:
    """Losses of a run."""
    return [StoredBlock(n, 1, 8, 0, 1.0, [1.0], 0.0, 5.0 - 0.05 * n, 0, False) for n in range(32)]


def test_runs_of_the_gate_that_their_time_has_ended_are_made_again() -> None:
    checked, cut = Candidate(1, HALF, 0), AttemptState.PRUNED
    reference, numerics = Purpose.REFERENCE, Purpose.NUMERICS
    for before, wanted in (
        ([check(1, reference, cut)], reference),
        ([check(1, reference), check(2, numerics, cut)], numerics),
        ([check(1, reference, cut), check(2, reference), check(3, numerics, cut)], numerics),
    ):
        attempts = Attempts([*SEARCHED, *before], BASELINE)
        found = next_check([checked], BASELINE, attempts, falling)
        assert found is not None
        assert found.purpose is wanted
        assert wanted in [run.purpose for run in missing_runs([HALF], BASELINE, attempts)]
        assert unverified(attempts, falling, BASELINE) == {}


def test_run_with_another_seed_that_its_time_has_ended_is_missing_too() -> None:
    first = [check(1, Purpose.REFERENCE), check(2, Purpose.NUMERICS)]
    cut = check(3, Purpose.REFERENCE, AttemptState.PRUNED, seed=1)
    later = check(4, Purpose.REFERENCE, seed=1)
    missing = {
        len(several): missing_runs([HALF], BASELINE, Attempts([*SEARCHED, *several], BASELINE))
        for several in (first, [*first, cut], [*first, cut, later])
    }
    assert [len(runs) for runs in missing.values()] == [0, 1, 0]
    assert missing[3][0].purpose is Purpose.REFERENCE


def test_run_that_its_time_has_ended_twice_is_missing_once() -> None:
    twice = [check(n, Purpose.REFERENCE, AttemptState.PRUNED) for n in (1, 2)]
    missing = missing_runs([HALF], BASELINE, Attempts([*SEARCHED, *twice], BASELINE))
    assert [run.purpose for run in missing] == [Purpose.REFERENCE, Purpose.NUMERICS]


@pytest.mark.parametrize("state", [AttemptState.ERROR, AttemptState.CRASH, AttemptState.HANG])
@pytest.mark.parametrize("purpose", [Purpose.REFERENCE, Purpose.NUMERICS])
def test_first_failure_of_a_run_is_repeated_and_the_second_is_final(
    purpose: Purpose, state: AttemptState
) -> None:
    before = [] if purpose is Purpose.REFERENCE else [check(1, Purpose.REFERENCE)]
    once = Attempts([*SEARCHED, *before, check(2, purpose, state)], BASELINE)
    found = next_check([Candidate(1, HALF, 0)], BASELINE, once, falling)
    assert found is not None and found.purpose is purpose
    assert purpose in [run.purpose for run in missing_runs([HALF], BASELINE, once)]
    assert out_of(once) == []
    twice = Attempts([*once, check(3, purpose, state)], BASELINE)
    assert next_check([Candidate(1, HALF, 0)], BASELINE, twice, falling) is None
    assert out_of(twice) == [1]


@pytest.mark.parametrize(
    ("state", "compiled", "repeated"),
    [
        (AttemptState.REFUSED, "none", False),
        (AttemptState.HANG, "default", False),
        (AttemptState.CRASH, "default", True),
    ],
)
def test_failure_that_would_be_the_same_again_is_final_at_once(
    state: AttemptState, compiled: str, repeated: bool
) -> None:
    baseline = {**BASELINE, "compile": compiled}
    failed = dataclasses.replace(check(1, Purpose.REFERENCE, state), knobs=baseline)
    attempts = Attempts([*SEARCHED, failed], baseline)
    candidate = Candidate(1, {**baseline, "precision": "bf16"}, 0)
    assert (next_check([candidate], baseline, attempts, falling) is not None) is repeated


def test_trial_that_was_stopped_early_is_unverified_as_well_where_the_reference_fails() -> None:
    own, tried = searched(BASELINE, HALF)
    cut = dataclasses.replace(tried.result, state=AttemptState.PRUNED)
    failed = [check(n, Purpose.REFERENCE, AttemptState.ERROR) for n in (1, 2)]
    attempts = Attempts([own, dataclasses.replace(tried, result=cut), *failed], BASELINE)
    assert list(unverified(attempts, falling, BASELINE)) == [1]
    assert [one.trial for one in record(attempts, falling, BASELINE, Rules()).refused] == []


@pytest.mark.parametrize("purpose", [Purpose.REFERENCE, Purpose.NUMERICS])
def test_script_that_is_not_what_the_study_says_is_not_run_again(purpose: Purpose) -> None:
    before = [] if purpose is Purpose.REFERENCE else [check(1, Purpose.REFERENCE)]
    failed = check(2, purpose, AttemptState.ERROR)
    told = dataclasses.replace(failed.result, fault=Fault.STUDY)
    attempts = [*SEARCHED, *before, dataclasses.replace(failed, result=told)]
    once = Attempts(attempts, BASELINE)
    assert next_check([Candidate(1, HALF, 0)], BASELINE, once, falling) is None
    assert out_of(once) == [1]


@pytest.mark.parametrize("purpose", [Purpose.REFERENCE, Purpose.NUMERICS])
def test_first_failure_of_a_run_is_repeated_whatever_rounds_have_run_since(
    purpose: Purpose,
) -> None:
    before = [] if purpose is Purpose.REFERENCE else [check(1, Purpose.REFERENCE)]
    failed = check(2, purpose, AttemptState.ERROR)
    later = Attempts([*SEARCHED, *before, failed, check(3, Purpose.CONFIRM)], BASELINE)
    found = next_check([Candidate(1, HALF, 0)], BASELINE, later, falling)
    assert found is not None and found.purpose is purpose
    assert out_of(later) == []


@pytest.mark.parametrize("state", [AttemptState.COMPLETE, AttemptState.REFUSED])
def test_check_of_other_software_is_made_again_whatever_it_showed(state: AttemptState) -> None:
    def under(torch: str, attempt: StoredAttempt) -> StoredAttempt:
        return dataclasses.replace(attempt, software=("", "", torch))

    checks = [check(1, Purpose.REFERENCE), check(2, Purpose.NUMERICS, state)]
    before = Attempts([*SEARCHED, *(under("2.8", one) for one in checks)], BASELINE)
    assert next_check([Candidate(1, HALF, 0)], BASELINE, before, falling) is None
    round_ = check(3, Purpose.CONFIRM)
    same = before.followed_by([*before, under("2.8", round_)])
    assert next_check([Candidate(1, HALF, 0)], BASELINE, same, falling) is None
    other = before.followed_by([*before, under("2.9", round_)])
    found = next_check([Candidate(1, HALF, 0)], BASELINE, other, falling)
    assert found is not None and found.purpose is Purpose.REFERENCE
    assert out_of(other) == []
    assert Selection.by_records(other, 3).unaffordable == (1,)


def out_of(attempts: Attempts) -> list[int]:
    found = record(attempts, falling, BASELINE, Rules(reject_unverified=False))
    return [*(one.trial for one in found.refused), *found.unverified]


def with_third(**change: KnobValue) -> list[StoredAttempt]:
    """Trials of a search, the third with another change beside that of the second."""
    third = dataclasses.replace(SEARCHED[1], id=2, trial=2, knobs={**HALF, **change})
    return [*SEARCHED, third]


OTHER_START = 13


def check_of_third(**change: KnobValue) -> StoredAttempt:
    """Check that begins with other weights or rows than its reference."""
    return dataclasses.replace(
        check(OTHER_START - 10, Purpose.NUMERICS), trial=2, knobs={**HALF, **change}
    )


def level(attempt: int) -> list[StoredBlock]:
    """Losses that hardly fall, with gradients."""
    start = "other" if attempt == OTHER_START else "same"
    told = {"gradient": [["w", 2000, 1.0, 1.0, 0.0]], "start": start}
    return [
        dataclasses.replace(block, loss=2 - 0.0005 * block.index, observed=told)
        for block in falling(attempt)
    ]


def test_a_check_that_began_with_other_rows_says_nothing_of_configurations_that_do_not() -> None:
    checks = [check(1, Purpose.REFERENCE), check_of_third(num_workers=4)]
    attempts = Attempts([*with_third(num_workers=4), *checks], BASELINE)
    assert list(unverified(attempts, level, BASELINE)) == [2]
    found = next_check([Candidate(1, HALF, 0)], BASELINE, attempts, level)
    assert found is not None and (found.purpose, found.trial) == (Purpose.NUMERICS, 1)


def test_what_another_trial_could_not_show_takes_nothing_from_a_trial_that_has_passed() -> None:
    checks = [check(1, Purpose.REFERENCE), check(2, Purpose.NUMERICS)]
    third = [*with_third(pin_memory=True), *checks, check_of_third(pin_memory=True)]
    attempts = Attempts(third, BASELINE)
    assert list(record(attempts, level, BASELINE, Rules()).passed) == [1]
    assert list(unverified(attempts, level, BASELINE)) == [2]


def apart(attempt: int) -> list[StoredBlock]:
    """Losses of a check that lies a little above its reference, with noise."""
    return [
        dataclasses.replace(block, loss=block.loss + 0.06 + 0.05 * (block.index % 3 == 0))
        if attempt == 12
        else block
        for block in falling(attempt)
    ]


@pytest.mark.parametrize("failed", [(), (1,), (1, 2)])
def test_an_open_answer_without_another_reference_leaves_a_trial_unchecked(
    failed: tuple[int, ...],
) -> None:
    checks = [check(1, Purpose.REFERENCE), check(2, Purpose.NUMERICS)]
    others = [check(2 + n, Purpose.REFERENCE, AttemptState.REFUSED, seed=n) for n in failed]
    attempts = Attempts([*SEARCHED, *checks, *others], BASELINE)
    found = next_check([Candidate(1, HALF, 0)], BASELINE, attempts, apart)
    barred = Barred.by(attempts, apart, BASELINE, Rules()).trials
    if len(failed) < 2:
        assert found is not None and found.seed == len(failed) + 1
        assert barred == {}
    else:
        assert found is None
        assert "the reference with another ended in REFUSED" in barred[1]
