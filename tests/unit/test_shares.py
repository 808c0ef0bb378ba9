"""Shares of a cluster: which study gives slots back, for which, and when none does."""

import pytest

from launchers.shares import (
    Group,
    Holding,
    Tenant,
    gifts,
    group_of,
    holdings,
    is_owed,
    may_take,
    name_of,
    size_of,
)

_SLOT = 1 / 8


def having(job: str, slots: int, *, waits: bool = False, weight: float = 1.0) -> Holding:
    """A study of the owner whose letter its job begins with."""
    tenant = Tenant(job[0], job, weight)
    return Holding(tenant, job, slots, slots * _SLOT, _SLOT if waits else 0.0)


def given(*studies: Holding) -> list[tuple[str, int, str]]:
    found = gifts({one.job: one for one in studies})
    return [(one.giver, one.slots, one.taker.job) for one in found]


def settled(*studies: Holding) -> dict[str, int]:
    """Slots once all that can be used is wanted, and every gift has been made."""
    known = {one.job: one for one in studies}
    for _ in range(100):
        asking = [job for job in known if is_owed(job, _SLOT, known)]
        if not asking:
            return {job: one.slots for job, one in known.items()}
        taker = known[asking[0]]
        asked = {**known, taker.job: having(taker.job, taker.slots, waits=True, weight=_of(taker))}
        (gift,) = gifts(asked)
        giver = known[gift.giver]
        known[giver.job] = having(giver.job, giver.slots - gift.slots, weight=_of(giver))
        known[taker.job] = having(taker.job, taker.slots + 1, weight=_of(taker))
    raise AssertionError(f"slots go back and forth: {known}")


def _of(study: Holding) -> float:
    return study.tenant.weight


def test_name_of_a_group_tells_owner_study_weight_and_job() -> None:
    tenant = Tenant("corp/ann b", "gpt-2.1", 2.5)
    assert group_of(name_of(tenant, "0a", 7), waits=True, size=0.5) == Group(
        tenant, "0a", True, 0.5
    )


@pytest.mark.parametrize(
    "name",
    ["", "mine", "autotune/a/b", "autotune/a/b/heavy/01/1", "autotune/a/b/0/01/1", "x/a/b/1/01/1"],
)
def test_name_of_another_program_is_no_study(name: str) -> None:
    assert group_of(name) is None


def test_size_of_a_slot_is_its_largest_share_of_any_resource() -> None:
    bundles = [{"CPU": 2.0, "GPU": 1.0, "node:10.0.0.1": 0.001}] * 2
    assert size_of(bundles, {"CPU": 64.0, "GPU": 8.0}) == 0.25
    assert size_of([{"CPU": 2.0}], {"CPU": 8.0, "GPU": 0.0}) == 0.25


def test_groups_of_one_process_are_one_study() -> None:
    ann = Tenant("ann", "one")
    groups = [Group(ann, "01", False, 0.25)] * 2 + [Group(ann, "01", True, 0.25)]
    assert holdings([*groups, Group(ann, "02", True, 0.5)]) == {
        "01": Holding(ann, "01", 2, 0.5, 0.25),
        "02": Holding(ann, "02", 0, 0.0, 0.5),
    }


def test_study_with_the_whole_cluster_gives_a_slot_to_one_that_waits() -> None:
    assert given(having("a1", 8), having("b1", 0, waits=True)) == [("a1", 1, "b1")]


def test_study_at_its_share_keeps_its_slots() -> None:
    assert given(having("a1", 4), having("b1", 4, waits=True)) == []


def test_study_keeps_its_last_slot() -> None:
    assert given(having("a1", 1), having("a2", 1), having("b1", 0, waits=True)) == []


def test_owner_of_greater_weight_is_given_more() -> None:
    shares = settled(having("a1", 8, weight=3.0), having("b1", 0))
    assert shares == {"a1": 6, "b1": 2}


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (1.0, {"a1": 2, "a2": 2, "b1": 2, "b2": 2}),
        (3.0, {"a1": 3, "a2": 3, "b1": 1, "b2": 1}),
    ],
)
@pytest.mark.parametrize("first", ["a1", "b1"])
def test_owners_share_by_weight_and_their_studies_alike_whichever_comes_first(
    weight: float, expected: dict[str, int], first: str
) -> None:
    studies = [
        having(job, 8 if job == first else 0, weight=weight if job[0] == "a" else 1.0)
        for job in expected
    ]
    assert settled(*studies) == expected


def test_three_slots_of_two_owners_go_to_none_back_and_forth() -> None:
    assert sorted(settled(having("a1", 3), having("b1", 0)).values()) == [1, 2]


def test_study_that_wants_a_larger_slot_is_given_several_smaller_ones() -> None:
    larger = Holding(Tenant("b", "b1"), "b1", wanted=4 * _SLOT)
    assert given(having("a1", 8), larger) == [("a1", 4, "b1")]
    whole = Holding(Tenant("b", "b1"), "b1", wanted=1.0)
    assert given(having("a1", 8), whole) == []


def test_study_takes_no_slot_before_one_that_needs_it_more() -> None:
    known = {one.job: one for one in (having("a1", 4), having("b1", 2, waits=True))}
    assert not may_take("a1", _SLOT, known)
    assert may_take("b1", _SLOT, known)


def test_study_that_is_alone_may_take_every_slot() -> None:
    known = {"a1": having("a1", 7)}
    assert may_take("a1", _SLOT, known)
    assert not is_owed("a1", _SLOT, known)
