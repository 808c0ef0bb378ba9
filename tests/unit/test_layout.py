"""How ranks spread over nodes, and which CUDA devices this machine offers."""

import dataclasses
import math
import re
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autotune.errors import LauncherError, NotHere
from autotune.worker.rank_devices import device_of
from launchers import Resources, layout
from launchers.layout import (
    Layout,
    NodeCapacity,
    demand_of,
    on_devices,
    plan,
    refuse_lost_devices,
    visible_devices,
)

THOROUGH = settings(max_examples=300)

nodes = st.builds(NodeCapacity, cpus=st.integers(0, 32), gpus=st.integers(0, 8))
clusters = st.lists(nodes, min_size=1, max_size=6)
wishes = st.builds(
    Resources,
    workers=st.one_of(st.none(), st.integers(1, 16)),
    gpus_per_worker=st.sampled_from([None, 0, 0.1, 0.25, 0.3, 0.4, 0.5, 0.75, 1]),
    cpus_per_worker=st.integers(1, 8),
    slots=st.one_of(st.none(), st.integers(1, 6)),
)
sharing = st.builds(
    Resources,
    workers=st.integers(1, 16),
    gpus_per_worker=st.sampled_from([0, 0.5, 1]),
    cpus_per_worker=st.just(1),
    slots=st.one_of(st.none(), st.integers(1, 6)),
    shares_cpus=st.just(True),
)


def planned(wish: Resources, cluster: list[NodeCapacity]) -> Layout | None:
    try:
        return plan(wish, cluster)
    except LauncherError:
        return None


def bundles_on(capacity: NodeCapacity, layout: Layout) -> int:
    """How many a node holds. A share of a device lies on one device; more than one are whole."""
    by_cpu = int(capacity.cpus / layout.bundle["CPU"])
    share = layout.bundle.get("GPU", 0)
    if not share:
        return by_cpu
    per_device = 1 / math.ceil(share) if share >= 1 else int(1 / share + 1e-9)
    return min(by_cpu, int(capacity.gpus * per_device + 1e-9))


def fits(layout: Layout, cluster: list[NodeCapacity]) -> bool:
    """Whether all slots can be had at once, each on different nodes: fill the emptiest first."""
    bundles = [bundles_on(capacity, layout) for capacity in cluster]
    for _ in range(layout.slots):
        emptiest = sorted(range(len(bundles)), key=lambda node: -bundles[node])[: layout.nodes]
        if any(bundles[node] < 1 for node in emptiest) or len(emptiest) < layout.nodes:
            return False
        for node in emptiest:
            bundles[node] -= 1
    return True


@THOROUGH
@given(st.one_of(wishes, sharing), clusters)
@pytest.mark.long
def test_a_layout_never_takes_more_than_the_cluster_has(wish, cluster):
    layout = planned(wish, cluster)
    assume(layout is not None)
    assert fits(layout, cluster)


@THOROUGH
@given(wishes, clusters)
def test_a_layout_is_what_was_asked_for(wish, cluster):
    layout = planned(wish, cluster)
    assume(layout is not None)
    ranks = layout.nodes * layout.ranks_per_node
    assert ranks == (wish.workers or ranks)
    assert layout.slots == (wish.slots or layout.slots) >= 1
    assert layout.bundle["CPU"] == layout.ranks_per_node * wish.cpus_per_worker
    share, devices = layout.gpus_per_worker, layout.bundle.get("GPU", 0)
    assert devices >= layout.ranks_per_node * share - 1e-9
    if devices >= 1:
        places = [device_of(r, layout.ranks_per_node, share) for r in range(layout.ranks_per_node)]
        assert {*places} == {*range(int(devices))}, "no device is taken for nothing"
        assert max(map(places.count, places)) * share <= 1 + 1e-5, "nor has one more than it holds"
    if wish.gpus_per_worker is not None:
        assert layout.gpus_per_worker == wish.gpus_per_worker


@THOROUGH
@given(wishes, clusters)
def test_a_refusal_is_justified(wish, cluster):
    """One trial that fits one node is never refused; nor is anything without advice."""
    try:
        plan(wish, cluster)
    except LauncherError as error:
        assert "lower resources." in str(error)
        gpus = wish.gpus_per_worker
        one = (wish.workers or 1) * wish.cpus_per_worker
        if gpus == 0 and (wish.slots or 1) == 1:
            assert all(node.cpus < one for node in cluster)


@THOROUGH
@given(wishes, clusters, nodes)
def test_another_node_never_makes_a_trial_impossible(wish, cluster, more):
    assume(wish.workers is not None and wish.gpus_per_worker is not None)
    if planned(wish, cluster):
        assert planned(wish, [*cluster, more])


def test_the_fewest_nodes_are_taken():
    cluster = [NodeCapacity(8, 4), NodeCapacity(8, 4)]
    assert plan(Resources(4, 1, 1, 1), cluster).nodes == 1
    assert plan(Resources(8, 1, 1, 1), cluster).nodes == 2


@pytest.mark.parametrize(
    ("ranks", "share", "devices"),
    [
        (2, 0.75, [0, 1]),
        (4, 0.3, [0, 0, 1, 1]),
        (4, 0.5, [0, 0, 1, 1]),
        (7, 0.4, [0, 0, 1, 1, 2, 2, 3]),
        (3, 1, [0, 1, 2]),
    ],
)
def test_ranks_are_on_the_devices_that_were_taken_for_them(ranks, share, devices):
    assert [device_of(rank, ranks, share) for rank in range(ranks)] == devices
    (bundle,) = (plan(Resources(ranks, share, 1, 1), [NodeCapacity(16, 8)]).bundle,)
    assert bundle["GPU"] == len(set(devices))


@THOROUGH
@given(sharing, clusters)
def test_cpus_are_shared_only_where_ranks_fit_nowhere_else(wish, cluster):
    alone = planned(dataclasses.replace(wish, shares_cpus=False), cluster)
    layout = planned(wish, cluster)
    if alone:
        assert layout == alone
        assert not layout.notice()
    elif layout:
        assert layout.notice()
        assert layout.nodes * layout.ranks_per_node == wish.workers


@pytest.mark.parametrize(("ranks", "cpus"), [(2, 1), (4, 2), (3, 2)])
def test_ranks_of_a_script_beyond_the_cpus_share_them(ranks, cpus):
    wish = Resources(ranks, None, 1, None, shares_cpus=True)
    assert plan(wish, [NodeCapacity(cpus, 0)]) == Layout(1, ranks, 0, {"CPU": cpus}, 1)
    with pytest.raises(LauncherError):
        plan(dataclasses.replace(wish, slots=2), [NodeCapacity(cpus, 0)])


def test_ranks_with_devices_share_the_cpus_of_the_nodes_that_have_these():
    wish = Resources(4, 1, 1, None, shares_cpus=True)
    cluster = [NodeCapacity(64, 0), NodeCapacity(2, 4)]
    assert plan(wish, cluster) == Layout(1, 4, 1, {"CPU": 2, "GPU": 4}, 1)


def test_ranks_spread_evenly_or_not_at_all():
    cluster = [NodeCapacity(8, 2), NodeCapacity(8, 4)]
    with pytest.raises(LauncherError):
        plan(Resources(6, 1, 1, None), cluster)
    assert plan(Resources(4, 1, 1, None), cluster) == Layout(1, 4, 1, {"CPU": 4, "GPU": 4}, 1)


def test_on_devices_as_many_trials_as_fit():
    assert plan(Resources(2, 1, 1, None), [NodeCapacity(64, 8)]).slots == 4
    assert plan(Resources(2, 1, 1, None), [NodeCapacity(64, 8)] * 2).slots == 8
    assert plan(Resources(2, 1, 4, None), [NodeCapacity(16, 8)]).slots == 2


def test_on_the_cpu_one_trial_per_node():
    assert plan(Resources(2, 0, 1, None), [NodeCapacity(64, 0)]).slots == 1
    assert plan(Resources(2, 0, 1, None), [NodeCapacity(64, 0)] * 3).slots == 3
    assert plan(Resources(2, 0, 1, 4), [NodeCapacity(64, 0)]).slots == 4


@pytest.mark.parametrize(
    ("workers", "share", "devices", "fitting"),
    [
        (1, 0.5, 1, 2),
        (1, 0.25, 1, 4),
        (1, 0.2, 1, 5),
        (1, 0.1, 1, 10),
        (1, 0.1, 2, 20),
        (1, 0.4, 2, 4),
        (3, 0.25, 2, 2),
        (3, 0.1, 3, 9),
        (2, 0.5, 2, 2),
        (3, 0.5, 4, 2),
        (4, 0.75, 4, 1),
    ],
)
def test_a_shared_device_holds_as_many_trials_as_its_shares(workers, share, devices, fitting):
    cluster = [NodeCapacity(640, devices)]
    assert plan(Resources(workers, share, 1, None), cluster).slots == fitting
    assert plan(Resources(workers, share, 1, fitting), cluster).slots == fitting
    with pytest.raises(LauncherError):
        plan(Resources(workers, share, 1, fitting + 1), cluster)


@THOROUGH
@given(wishes, clusters)
def test_a_bundle_of_more_than_one_device_is_of_whole_devices(wish, cluster):
    """Ray refuses others, and a process cannot be shown half a device."""
    layout = planned(wish, cluster)
    assume(layout is not None)
    devices = layout.bundle.get("GPU", 0)
    assert devices < 1 or devices == pytest.approx(round(devices))


def test_unasked_a_worker_gets_a_device_if_there_are_enough():
    assert plan(Resources(4, None, 1, None), [NodeCapacity(8, 4)]).gpus_per_worker == 1
    assert plan(Resources(4, None, 1, None), [NodeCapacity(8, 3)]).gpus_per_worker == 0
    assert plan(Resources(2, None, 1, None), [NodeCapacity(8, 0)]).gpus_per_worker == 0


def test_unasked_there_is_a_worker_per_device_or_two_on_the_cpu():
    def ranks(cpus: int, gpus: int, gpus_per_worker: float | None = None) -> int:
        return plan(
            Resources(None, gpus_per_worker, 1, None), [NodeCapacity(cpus, gpus)]
        ).ranks_per_node

    assert ranks(8, 4) == 4
    assert ranks(8, 0) == 2
    assert ranks(1, 0) == 1
    assert ranks(8, 4, gpus_per_worker=0) == 2
    assert ranks(8, 4, gpus_per_worker=0.5) == 4


def test_unasked_there_are_no_more_workers_than_the_nodes_have_room_for():
    cluster = [NodeCapacity(1, 0), NodeCapacity(13, 0)]
    # 14 CPUs, but on two nodes.
    assert plan(Resources(None, 0, 7, None), cluster).ranks_per_node == 1


@pytest.mark.parametrize(
    "wish",
    [
        Resources(3, 0, 1, None),
        Resources(1, 0, 3, None),
        Resources(1, 0, 1, 5),
        Resources(2, 1, 1, None),
        Resources(1, 0.6, 1, 2),
    ],
)
def test_a_refusal_says_what_was_asked_what_there_is_and_what_to_do(wish):
    with pytest.raises(LauncherError) as refused:
        plan(wish, [NodeCapacity(2, 1), NodeCapacity(2, 0)])
    text = str(refused.value)
    assert f"{wish.workers} workers" in text
    assert "2 CPUs + 1 GPUs, 2 CPUs + 0 GPUs" in text
    assert re.search(r"lower resources\.workers", text)


def test_no_node_at_all():
    with pytest.raises(LauncherError):
        plan(Resources(1, 0, 1, None), [])


# CUDA devices of this machine


@pytest.fixture
def four_devices(tmp_path: Path) -> Path:
    names = ["nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "null"]
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / "nvidia-caps").mkdir()
    return tmp_path


def test_devices_are_numbered_as_cuda_numbers_them(four_devices):
    assert visible_devices({}, four_devices) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("asked", [None, "0"])
def test_the_only_device_of_a_container_is_number_0_whatever_its_file_is_called(asked, tmp_path):
    (tmp_path / "nvidia3").write_text("")
    assert visible_devices({} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}, tmp_path) == [
        "0"
    ]


@pytest.mark.parametrize("asked", ["3", "10", "nonsense"])
def test_a_device_that_is_not_there_is_no_reason_to_train_on_the_cpu(asked, tmp_path):
    (tmp_path / "nvidia3").write_text("")
    with pytest.raises(LauncherError, match=f"CUDA_VISIBLE_DEVICES={asked} names no device"):
        visible_devices({"CUDA_VISIBLE_DEVICES": asked}, tmp_path)


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("0", ["0"]),
        ("2,0", ["2", "0"]),
        (" 1 , 2 ", ["1", "2"]),
        ("GPU-8932f937,GPU-1", ["GPU-8932f937", "GPU-1"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),  # CUDA: what follows an invalid index is invisible
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(asked, seen, four_devices):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": asked}, four_devices) == seen


def test_no_devices(tmp_path):
    assert visible_devices({}, tmp_path) == []
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == []


def test_slots_that_share_devices_are_dealt_out_over_them():
    def devices(resources: Resources, gpus: int) -> list[list[int]]:
        layout = plan(resources, [NodeCapacity(cpus=16, gpus=gpus)])
        return [list(layout.devices_of(slot, gpus)) for slot in range(layout.slots)]

    assert devices(Resources(1, 0.5, 1, None), 2) == [[0], [1], [0], [1]]
    assert devices(Resources(1, 0.5, 1, 2), 2) == [[0], [1]]
    assert devices(Resources(2, 0.5, 1, None), 2) == [[0], [1]]
    assert devices(Resources(2, 1.0, 1, None), 4) == [[0, 1], [2, 3]]
    assert devices(Resources(2, 0.0, 1, 1), 2) == [[]]


@pytest.mark.parametrize(
    ("wish", "bundles", "strategy"),
    [
        (Resources(None, None, 2, None), [{"CPU": 2.0, "GPU": 1.0}], "PACK"),
        (Resources(3, 0, 1, None), [{"CPU": 1.0}] * 3, "PACK"),
        (Resources(8, 1, 2, None, nodes=2), [{"CPU": 8.0, "GPU": 4.0}] * 2, "STRICT_SPREAD"),
    ],
)
def test_what_is_asked_of_a_cluster_without_nodes(
    wish: Resources, bundles: list[dict[str, float]], strategy: str
) -> None:
    assert demand_of(wish) == (bundles, strategy)


def test_ranks_get_devices_where_any_node_has_one_unless_they_were_told() -> None:
    asked = Resources(16, None, 1, None)
    nodes = [NodeCapacity(64, 0), NodeCapacity(64, 8)]
    assert on_devices(asked, nodes).gpus_per_worker == 1.0
    assert on_devices(asked, nodes[:1]) == asked
    told = Resources(16, 0.0, 1, None)
    assert on_devices(told, nodes) == told


ANY_DEVICES = Resources(workers=None, gpus_per_worker=None, cpus_per_worker=1, slots=None)
DRIVER = "libc.so.6"
"""Library that is installed, in the place of that of the driver."""


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PCI bus with a GPU of NVIDIA, its sound device, and the display of another vendor."""
    monkeypatch.setattr(layout, "lacks_cuda", lambda: False)
    folder = tmp_path / "bus"
    for address, vendor, kind in (
        ("0000:17:00.0", "0x10de", "0x030200"),
        ("0000:17:00.1", "0x10de", "0x040300"),
        ("0000:03:00.0", "0x1a03", "0x030000"),
    ):
        (folder / address).mkdir(parents=True)
        (folder / address / "vendor").write_text(f"{vendor}\n")
        (folder / address / "class").write_text(f"{kind}\n")
    return folder


@pytest.mark.parametrize("share", [None, 1, 0.5])
@pytest.mark.parametrize("asked", [None, "0", "GPU-1"])
def test_machine_whose_driver_shows_no_gpu_is_refused_for_now(bus, tmp_path, asked, share):
    wish = dataclasses.replace(ANY_DEVICES, gpus_per_worker=share)
    environment = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
    with pytest.raises(LauncherError, match=r"0000:17:00\.0 on the PCI bus") as refused:
        refuse_lost_devices(wish, environment, tmp_path, bus, DRIVER)
    assert not isinstance(refused.value, NotHere), "it is tried again"
    assert "resources.gpus_per_worker: 0, or set CUDA_VISIBLE_DEVICES= " in str(refused.value)
    assert "17:00.1" not in str(refused.value)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_machine_without_its_gpus_trains_on_the_cpu_where_that_is_asked_for(bus, tmp_path, hidden):
    refuse_lost_devices(ANY_DEVICES, {"CUDA_VISIBLE_DEVICES": hidden}, tmp_path, bus, DRIVER)
    on_cpu = dataclasses.replace(ANY_DEVICES, gpus_per_worker=0)
    refuse_lost_devices(on_cpu, {}, tmp_path, bus, DRIVER)


def test_machine_without_gpus_or_without_their_driver_trains_on_the_cpu(bus, tmp_path):
    """Such machines are laptops, and containers without the GPUs of their host."""
    refuse_lost_devices(ANY_DEVICES, {}, tmp_path, bus, "libabsent.so.1")
    refuse_lost_devices(ANY_DEVICES, {}, tmp_path, tmp_path / "none", DRIVER)


def test_machine_whose_torch_has_no_cuda_trains_on_the_cpu(bus, tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "lacks_cuda", lambda: True)
    refuse_lost_devices(ANY_DEVICES, {}, tmp_path, bus, DRIVER)


@pytest.mark.parametrize(
    ("line", "lacks"), [("cuda: Optional[str] = None", True), ("cuda = '12.8'", False)]
)
def test_torch_built_without_cuda_is_known_by_its_file(tmp_path, monkeypatch, line, lacks):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(f"debug = False\n{line}\nhip = None\n")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert layout.lacks_cuda() is lacks


def test_machine_that_shows_a_gpu_is_taken(bus, tmp_path):
    (tmp_path / "nvidia0").touch()
    refuse_lost_devices(ANY_DEVICES, {}, tmp_path, bus, DRIVER)
