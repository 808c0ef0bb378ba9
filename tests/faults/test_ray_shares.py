"""Owners share a Ray cluster by their weights, and no trial pays for it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.ray_nodes import ray_nodes
from tests.faults.ray_shares import CPUS, SharedCluster
from tests.support.nodes import refusal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.fault(25)]
_WINDOW_SECONDS = 60.0


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"ann": 1.0, "bob": 1.0}, [2, 2, 2, 2]),
        ({"ann": 3.0, "bob": 1.0}, [3, 3, 1, 1]),
    ],
)
def test_two_owners_with_two_studies_each_share_device_time_by_weight(
    weights: Mapping[str, float], expected: list[int], tmp_path: Path
) -> None:
    if why := refusal():
        pytest.skip(why)
    (tmp_path / "nodes").mkdir()
    with ray_nodes(tmp_path / "nodes", CPUS) as nodes:
        shared = SharedCluster(nodes, tmp_path / "project", weights)
        shared.start()
        slots = {f"tiny-{number}": count for number, count in enumerate(expected)}
        found = shared.measure(slots, _WINDOW_SECONDS)
        print(found, found.ratio)
        shared.stop()
    assert found.ratio == pytest.approx(weights["ann"] / weights["bob"], rel=0.1)
    assert (found.lost, found.repeated) == (0, 0)
