"""Which nodes of a cluster a slot takes."""

import pytest

from launchers.layout import Layout
from launchers.placement import (
    FIRST_SECONDS,
    MOST_SECONDS,
    AvoidedNodes,
    ClusterNode,
    choose,
    room,
)

ONE = Layout(nodes=1, ranks_per_node=1, gpus_per_worker=0, bundle={"CPU": 1.0}, slots=3)
TWO = Layout(nodes=2, ranks_per_node=1, gpus_per_worker=0, bundle={"CPU": 1.0}, slots=1)
ON_GPU = Layout(
    nodes=1, ranks_per_node=1, gpus_per_worker=1, bundle={"CPU": 1.0, "GPU": 1.0}, slots=8
)


def node(name: str, free: float = 1.0, has: float = 1.0, gpus: float = 0.0) -> ClusterNode:
    return ClusterNode(name, name, name, {"CPU": has, "GPU": gpus}, {"CPU": free, "GPU": gpus})


def names(layout: Layout, *nodes: ClusterNode, avoided: str = "", **taken: int) -> str:
    return "".join(chosen.id for chosen in choose(layout, nodes, avoided, taken))


@pytest.mark.fault(25)
def test_all_bundles_of_a_slot_or_none() -> None:
    assert names(TWO, node("a"), node("b"), node("c")) == "ab"
    assert names(TWO, node("a", free=0), node("b"), node("c")) == "bc"
    assert names(TWO, node("a", free=0), node("b"), node("c", free=0)) == ""


@pytest.mark.fault(23)
def test_avoided_nodes_are_taken_only_where_the_cluster_is_too_small_without() -> None:
    assert names(TWO, node("a"), node("b"), node("c"), avoided="a") == "bc"
    assert names(TWO, node("a"), node("b"), avoided="a") == "ab"
    assert names(TWO, node("a"), node("b"), node("c", free=0), avoided="a") == "", "it waits for c"


def test_on_the_cpu_slots_lie_apart_as_they_disturb_each_other() -> None:
    wide = [node("a", free=3, has=4), node("b", free=4, has=4)]
    assert names(ONE, *wide, a=1) == "b"
    gpus = [node("a", free=3, has=4, gpus=3), node("b", free=4, has=4, gpus=4)]
    assert names(ON_GPU, *gpus, a=1) == "a"


@pytest.mark.parametrize(
    ("free", "own", "expected"),
    [((1, 1, 1), {}, 3), ((0, 0, 1), {"a": 1}, 2), ((0, 0, 0), {"a": 1, "b": 1, "gone": 1}, 2)],
)
def test_what_other_jobs_hold_is_no_room(
    free: tuple[float, ...], own: dict[str, int], expected: int
) -> None:
    nodes = [node(name, free=amount) for name, amount in zip("abc", free, strict=True)]
    assert room(ONE, nodes, own) == expected
    assert room(TWO, nodes, own) == expected // 2


def test_bundles_of_a_slot_have_room_on_nodes_of_their_own() -> None:
    assert room(TWO, [node("a", free=4), node("b", free=1)], {}) == 1


def test_room_on_devices_is_what_all_of_a_bundle_fits_into() -> None:
    assert room(ON_GPU, [node("a", free=64, gpus=2)], {"a": 1}) == 3


def test_a_node_is_avoided_for_longer_each_time_and_forgotten_at_last() -> None:
    now = 0.0
    avoided = AvoidedNodes(lambda: now)
    avoided.add("a")
    avoided.add("a")  # the same incident, seen by another agent
    assert avoided.now() == {"a"}
    now = FIRST_SECONDS + 1
    assert avoided.now() == set()
    avoided.add("a")
    now += 2 * FIRST_SECONDS - 1
    assert avoided.now() == {"a"}
    now += MOST_SECONDS + 2
    avoided.add("a")
    now += FIRST_SECONDS + 1
    assert avoided.now() == set()
