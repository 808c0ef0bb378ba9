"""Which nodes of a Ray cluster with CUDA devices a study runs on; answers stand in for the nodes."""

import os
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

import autotune
from autotune.errors import ClusterAway
from launchers import ray_nodes
from launchers.agents import SlotGone
from launchers.base import Resources
from launchers.driver import Driver, Refused
from launchers.layout import demand_of
from launchers.placement import ClusterNode
from launchers.ray_nodes import Cluster, Demand, SlotPlacement, TooSmall

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
PART = f"{H100} MIG 1g.10gb"
CUDA, CPU = "2.13.0+cu130", "2.13.0+cpu"


class Answers:
    """Stand-in for the driver of Ray, with fixed answers about nodes.

    A node is given by its number of devices, their name, and its version of torch.
    """

    address = "10.0.0.1:6379"

    def __init__(self, *nodes: tuple[int, str, str]) -> None:
        self._nodes = nodes

    def call(self, name: str, *_: Any, **__: Any) -> Any:
        numbered = list(enumerate(self._nodes))
        if name == "nodes":
            of_each = [{"CPU": 64.0, "GPU": float(gpus)} for gpus, _, _ in self._nodes]
            return [
                {"id": str(n), "address": f"10.0.0.{n}", "host": f"n{n}", "has": has, "free": has}
                for n, has in enumerate(of_each)
            ]
        assert name == "node_info"
        versions = {"autotune": autotune.__version__, "python": "3.12.1"}
        return {
            str(n): {**versions, "torch": torch, "cpu": "Xeon", "devices": [device] * gpus}
            for n, (gpus, device, torch) in numbered
        }


def cluster(*nodes: tuple[int, str, str], **resources: Any) -> Cluster:
    usual = {"workers": None, "gpus_per_worker": None, "cpus_per_worker": 1, "slots": None}
    asked = Resources(**{**usual, **resources})
    return Cluster(asked, cast(Driver, Answers(*nodes)), "10.0.0.1:6379")


def told(device: str, count: int = 1) -> dict[str, Any]:
    """Return the environment that an agent reports."""
    versions = {"autotune": autotune.__version__, "python": "3.12.1", "torch": CUDA}
    return {**versions, "cpu": "Xeon", "devices": [{"name": device}] * count}


def test_study_waits_for_devices_that_are_away_instead_of_training_on_processors() -> None:
    with pytest.raises(TooSmall, match="16 workers with 1 CPUs and 1 GPUs"):
        cluster((8, H100, CUDA), workers=16)
    with pytest.raises(TooSmall, match="16 workers with 1 CPUs and 1 GPUs"):
        cluster((0, "", CUDA), (8, H100, CUDA), workers=16, nodes=2)


def test_autoscaler_is_asked_for_the_devices_that_are_away() -> None:
    with pytest.raises(TooSmall) as raised:
        cluster((8, H100, CUDA), workers=16)
    bundles, _ = demand_of(raised.value.resources)
    assert bundles == [{"CPU": 1.0, "GPU": 1.0}] * 16


def test_node_on_which_ray_hides_no_device_is_left_out() -> None:
    found = cluster((8, H100, CUDA), (8, H100, CUDA), workers=2)
    first, second = found.nodes()
    assert found.are_fit([first], told(H100, 2))
    assert not found.are_fit([second], told(H100, 8))
    assert "its agent sees 8 CUDA devices, and Ray has given it 2" in found.notices.get_nowait()


def test_study_that_asks_for_no_device_runs_on_processors() -> None:
    assert "GPU" not in cluster((8, H100, CUDA), workers=16, gpus_per_worker=0.0).layout.bundle


def test_nodes_without_devices_do_not_vote_on_the_software() -> None:
    found = cluster((0, "", CPU), (0, "", CPU), (8, H100, CUDA))
    assert [node.id for node in found.nodes()] == ["2"]
    assert found.layout.bundle["GPU"] == 8
    assert "2.13.0+cpu is installed there and 2.13.0+cu130 on others" in found.notices.get_nowait()


@pytest.mark.parametrize("device", [None, H100])
def test_devices_of_one_kind_are_taken_where_there_are_several(device: str | None) -> None:
    found = cluster((8, H100, CUDA), (8, H100, CUDA), (4, A100, CUDA), device=device)
    assert [node.id for node in found.nodes()] == ["0", "1"]
    assert (found.layout.nodes, found.layout.bundle["GPU"]) == (2, 8)


def test_device_that_no_node_has_is_refused() -> None:
    with pytest.raises(ClusterAway, match=f"no node .* has resources.device: {A100}"):
        cluster((8, H100, CUDA), device=A100)


@pytest.mark.parametrize("device", [None, PART])
def test_agents_that_name_parts_of_a_device_are_compared_with_agents(device: str | None) -> None:
    found = cluster((7, H100, CUDA), (7, H100, CUDA), workers=1, device=device)
    first, second = found.nodes()
    assert found.are_fit([first], told(PART))
    assert not found.are_fit([second], told(f"{H100} MIG 3g.40gb"))
    assert [node.id for node in found.nodes()] == [first.id]


def test_kind_that_no_look_has_told_is_that_of_the_first_agent() -> None:
    found = cluster((8, "", CUDA), (8, "", CUDA), workers=8)
    first, second = found.nodes()
    assert found.are_fit([first], told(H100, 8))
    assert not found.are_fit([second], told(A100, 8))


def test_node_that_lacks_the_software_is_named_in_the_reason_for_waiting() -> None:
    found = cluster((8, H100, CUDA), (8, H100, CUDA), (8, H100, CPU), workers=8)
    odd: ClusterNode = found.living()[2]
    assert odd.id not in {node.id for node in found.nodes()}

    def others(name: str, *_: Any, **__: Any) -> Any:
        assert name == "others"
        return []

    found.driver.call = others  # type: ignore[method-assign]
    assert "running there: no job that Ray knows of; left out: node n2" in found.busy("12:00")


class Refusing:
    """Stand-in for the driver of Ray; the head does not answer the first call of one name."""

    lost = ""

    def __init__(self, refused: str) -> None:
        self._refused = refused
        self.groups: set[int] = set()

    def call(self, name: str, *_: Any, group: int = 0, **__: Any) -> Any:
        if name == self._refused:
            self._refused = ""
            raise Refused("the head does not answer")
        if name in ("ask", "reserve"):
            self.groups.add(group)
        if name == "release":
            self.groups.discard(group)
        if name == "stands" and group not in self.groups:
            raise Refused(f"KeyError: {group}")
        return {"nodes": [], "where": ["0"], "stands": "PENDING"}.get(name, True)


def test_slot_is_asked_for_again_where_the_first_call_was_refused() -> None:
    driver = Refusing("ask")
    demand = Demand(cast(Driver, driver), None)
    with pytest.raises(Refused):
        demand.ask([{"CPU": 1.0}], "PACK")
    assert not demand.withdraw_if_granted()
    demand.ask([{"CPU": 1.0}], "PACK")
    assert demand.is_pending
    assert len(driver.groups) == 1


def test_place_of_which_ray_does_not_tell_the_node_is_given_back() -> None:
    found = cluster((8, H100, CUDA), workers=1)
    nodes = found.nodes()
    driver = Refusing("where")
    placement = SlotPlacement(found, None, lambda: None)
    found.driver, found.nodes = cast(Driver, driver), lambda: nodes  # type: ignore[method-assign]
    with pytest.raises(Refused):
        placement.reserve()
    assert driver.groups == set()
    assert found.taken == {}
    assert placement.reserve()
    assert found.taken == {"0": 1}


class Granting(Answers):
    """Stand-in for the driver of Ray, which grants every group at once."""

    lost = ""

    def __init__(self, *nodes: tuple[int, str, str]) -> None:
        super().__init__(*nodes)
        self.reserved: list[str] = []
        """Address of the node of each group that was granted."""

    def call(self, name: str, *given: Any, **named: Any) -> Any:
        if name == "reserve":
            (place,) = [one for one in named["bundles"][0] if one.startswith("node:")]
            self.reserved.append(place)
            return True
        if name == "where":
            return [self.reserved[-1].rpartition(".")[2]]
        return {"stands": "CREATED", "release": True}.get(name) or super().call(name)


def test_slot_stays_on_a_node_that_has_devices_of_another_kind_as_well() -> None:
    found = cluster((2, "", CUDA), (2, "", CUDA), workers=1)
    found.driver = cast(Driver, driver := Granting((2, "", CUDA), (2, "", CUDA)))
    placement = SlotPlacement(found, None, lambda: None)
    assert placement.reserve()
    assert placement.accepts(told(H100))
    assert not found.are_fit(placement.nodes, told(A100))
    placement.ensure()
    assert driver.reserved == ["node:10.0.0.0"]
    assert placement.accepts(told(H100))
    assert not placement.accepts(told(A100)), "as it came up on the other device"
    placement.ensure()
    assert driver.reserved == ["node:10.0.0.0", "node:10.0.0.1"]
    assert placement.accepts(told(H100))


def test_slot_whose_node_was_refused_for_its_devices_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_nodes, "_RENEW_SECONDS", -1.0)
    found = cluster((1, "", CUDA), workers=1)
    found.driver = cast(Driver, Granting((1, "", CUDA)))
    placement = SlotPlacement(found, None, lambda: None)
    assert placement.reserve()
    assert placement.accepts(told(H100))
    assert not placement.accepts(told(A100))
    with pytest.raises(SlotGone, match=r"n0.* has other devices or software, and there is no room"):
        placement.ensure()


class Groups:
    """Stand-in for the placement groups of Ray, whose head does not answer at first."""

    def __init__(self, patch: pytest.MonkeyPatch, driver: Any) -> None:
        self.made: list[object] = []
        self._answers = False
        patch.setattr(driver, "placement_group", self._make)
        patch.setattr(driver, "remove_placement_group", self._remove)
        patch.setattr(driver, "_answers", lambda _: True)
        patch.setattr(driver.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=str))

    def _make(self, *_: Any, **__: Any) -> object:
        self.made.append(self)
        return self

    def wait(self, _: float) -> bool:
        raise RuntimeError("the head does not answer")

    def _remove(self, group: object) -> None:
        if not self._answers:
            self._answers = True
            raise RuntimeError("the head does not answer")
        self.made.remove(group)


def test_groups_are_given_back_once_the_head_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from launchers import ray_driver  # which imports Ray

    groups = Groups(monkeypatch, ray_driver)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = ray_driver._CallServer(ours)
        with pytest.raises(RuntimeError):
            server.reserve(1, [{"CPU": 1.0}], "PACK", 1.0, None)
        assert len(groups.made) == 1
        assert server.ping() == ""
        assert groups.made == []


def test_cluster_with_an_ipv6_address_is_reached() -> None:
    pytest.importorskip("ray")
    from launchers import ray_driver  # which imports Ray

    with socket.socket(socket.AF_INET6) as head:
        try:
            head.bind(("::1", 0))
        except OSError:
            pytest.skip("this network has no IPv6")
        head.listen()
        ray_driver._knock(f"[::1]:{head.getsockname()[1]}")


def test_own_ray_has_the_processors_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    from launchers import ray_driver  # which imports Ray

    told: dict[str, Any] = {}
    monkeypatch.setattr(ray_driver.ray, "init", lambda **settings: told.update(settings))
    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    monkeypatch.setattr(ray_driver.ray, "get_runtime_context", lambda: context)
    ours, theirs = socket.socketpair()
    before = os.sched_getaffinity(0)
    with ours, theirs:
        os.sched_setaffinity(0, {min(before)})
        try:
            assert ray_driver._CallServer(ours).connect(None, None) == "127.0.0.1:1"
        finally:
            os.sched_setaffinity(0, before)
    assert told["num_cpus"] == 1
