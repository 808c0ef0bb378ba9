"""What is tried after a bundle of changes that came to nothing."""

import pytest

from autotune.analysis.barred import Barred
from autotune.analysis.sameness import ChangeKind
from autotune.search.space import Space
from autotune.study.follow_ups import rest
from search_spaces import Facts, defaults

CPU = Facts("cpu", 1)
TODAY = {**defaults(), "parallelism": "none", "micro_batch": 4}
BUNDLE = {
    "micro_batch": 16,
    "precision": "bf16",
    "loader_workers": 2,
    "persistent_workers": True,
    "prefetch_factor": 4,
}
WITHOUT_WORKERS = {"loader_workers": 0, "persistent_workers": False, "prefetch_factor": 2}


def space_of(bundle, today, facts=CPU):
    return Space({name: [today[name], value] for name, value in bundle.items()}, today, facts)


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
        space_of(BUNDLE, TODAY), TODAY, BUNDLE, Barred({1: "refused"}, dict.fromkeys(kinds, 1))
    )
    assert found == {**BUNDLE, **without}


def test_every_change_of_a_refused_kind_is_taken_back():
    today = {**defaults(), "find_unused_parameters": True}
    bundle = {"find_unused_parameters": False, "static_graph": True, "precision": "bf16"}
    barred = Barred({1: "refused"}, {ChangeKind.PROMISE: 1})
    found = rest(space_of(bundle, today, Facts("cpu", 2)), today, bundle, barred)
    assert found == {"find_unused_parameters": True, "static_graph": False, "precision": "bf16"}


def test_a_change_that_goes_only_with_a_later_one_stays():
    today = {**TODAY, "loader_workers": 2, "persistent_workers": True}
    fewer = {"loader_workers": 0, "persistent_workers": False}
    assert rest(space_of(fewer, today), today, fewer, Barred()) == fewer
