"""Suggestions after a bundle of changes that failed or was refused."""

import pytest

from autotune.analysis.barred import Barred
from autotune.analysis.sameness import ChangeKind
from autotune.search.sampling import Shortage
from autotune.search.space import Space
from autotune.study.suggestions import Suggestion, fitting, halves, parts_of, rest
from search_spaces import CATALOGUE, Facts, defaults

CPU = Facts("cpu", 1)
BASELINE = {**defaults(), "parallelism": "none", "micro_batch": 4}
BUNDLE = {
    "micro_batch": 16,
    "precision": "bf16",
    "num_workers": 2,
    "persistent_workers": True,
    "prefetch_factor": 4,
}
WITHOUT_WORKERS = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": 2}


def space_of(bundle, baseline, facts=CPU):
    return Space({name: [baseline[name], value] for name, value in bundle.items()}, baseline, facts)


@pytest.mark.parametrize(
    ("kinds", "without"),
    [
        ([ChangeKind.WORKERS], WITHOUT_WORKERS),
        ([ChangeKind.KEPT_WORKERS], {"persistent_workers": False}),
        ([ChangeKind.KEPT_WORKERS, ChangeKind.WORKERS], WITHOUT_WORKERS),
    ],
)
def test_what_goes_with_a_refused_change_is_taken_back_with_it(kinds, without):
    found = rest(
        space_of(BUNDLE, BASELINE),
        BASELINE,
        BUNDLE,
        Barred({1: "refused"}, dict.fromkeys(kinds, 1)),
    )
    assert found == {**BUNDLE, **without}


def test_every_change_of_a_refused_kind_is_taken_back():
    baseline = {**defaults(), "find_unused_parameters": True}
    bundle = {"find_unused_parameters": False, "static_graph": True, "precision": "bf16"}
    barred = Barred({1: "refused"}, {ChangeKind.PROMISE: 1})
    found = rest(space_of(bundle, baseline, Facts("cpu", 2)), baseline, bundle, barred)
    assert found == {"find_unused_parameters": True, "static_graph": False, "precision": "bf16"}


def test_a_change_that_goes_only_with_a_later_one_stays():
    baseline = {**BASELINE, "num_workers": 2, "persistent_workers": True}
    fewer = {"num_workers": 0, "persistent_workers": False}
    assert rest(space_of(fewer, baseline), baseline, fewer, Barred()) == fewer


FOUR = {"micro_batch": 16, "precision": "bf16", "freeze_gc": True, "log_interval": 50}
ORDERED = sorted(FOUR, key=[*CATALOGUE].index)


@pytest.mark.parametrize(("guilty", "most"), [(ORDERED[:1], 5), (ORDERED[:2], 4), (ORDERED[2:], 4)])
def test_parts_of_a_bundle_take_few_trials_where_several_changes_fail(guilty, most):
    space, failed, ran, tried = space_of(FOUR, BASELINE), [(FOUR, "ERROR")], [], []
    while new := [
        p.params for p in parts_of(space, BASELINE, failed, ran) if p.params not in tried
    ]:
        tried.append(new[0])
        if any(new[0][name] != BASELINE[name] for name in guilty):
            failed.append((new[0], "ERROR"))
        else:
            ran.append(space.complete(new[0]))
    sound = {name for knobs in ran for name in FOUR if knobs[name] != BASELINE[name]}
    assert sound == FOUR.keys() - set(guilty)
    assert len(tried) <= most


def test_a_part_that_must_run_out_of_memory_is_split_without_a_trial():
    bundle = {"micro_batch": 16, "log_interval": 50, "freeze_gc": True}
    space = space_of(bundle, BASELINE)
    too_large = space.complete(bundle)
    baseline = {name: BASELINE[name] for name in bundle}
    first, second = halves(space, BASELINE, bundle, "OOM")
    assert first.params == {**bundle, "freeze_gc": False}
    found = list(fitting(space, BASELINE, [first, second], [Shortage(too_large, False)]))
    assert [one.params for one in found] == [{**baseline, "log_interval": 50}, second.params]


def test_what_ran_out_of_memory_rules_out_nothing_that_ran():
    """Loader workers take memory of the host, in which the baseline's micro-batch fits."""
    bundle = {"micro_batch": 16, "num_workers": 32, "log_interval": 50}
    space = space_of(bundle, BASELINE)
    baseline, failed = (
        space.complete({name: BASELINE[name] for name in bundle}),
        space.complete(bundle),
    )
    found = fitting(
        space, BASELINE, halves(space, BASELINE, bundle, "OOM"), [Shortage(failed, False)]
    )
    assert {**bundle, "num_workers": 0, "log_interval": 10} in [one.params for one in found]
    ran = {**failed, "log_interval": 10}
    again = Suggestion(bundle, "why")
    assert list(fitting(space, BASELINE, [again], [Shortage(failed, False)], [baseline])) != [again]
    assert list(fitting(space, BASELINE, [again], [Shortage(failed, False)], [baseline, ran])) == [
        again
    ]


def test_what_may_fit_is_suggested_as_it_is():
    space = space_of(BUNDLE, BASELINE)
    suggestion = Suggestion({**BUNDLE, "precision": "fp32"}, "why")
    assert list(fitting(space, BASELINE, [suggestion], [])) == [suggestion]
    other = Shortage(space.complete(BUNDLE), False)
    assert list(fitting(space, BASELINE, [suggestion], [other])) == [suggestion]


def test_device_without_memory_has_none_either_beside_other_loader_workers():
    bundle = {"micro_batch": 16, "num_workers": 2}
    space, suggestion = (
        space_of(bundle, BASELINE),
        Suggestion({**bundle, "num_workers": 0}, "why"),
    )
    failed = space.complete(bundle)

    def tried(cause):
        return list(fitting(space, BASELINE, [suggestion], [Shortage.of(failed, cause)]))

    assert tried("rank 0: OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB") == []
    assert tried("killed by the kernel's out-of-memory killer") == [suggestion]
    assert tried("RuntimeError: CUDA error: out of memory") == [suggestion], "in page-locked memory"
