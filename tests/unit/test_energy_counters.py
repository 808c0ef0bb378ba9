"""Energy of processors by Intel RAPL, and why energy cannot be read where it cannot."""

import math
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.worker.observers.device import devices_unreadable
from autotune.worker.observers.energy import ProcessorWatch, processors_unreadable
from tests.unit.test_telemetry import NVMLError, library, raising


def counters(root: Path, values: Mapping[str, tuple[str, int]]) -> None:
    """Write counters: folder -> name and microjoules."""
    for folder, (name, micro) in values.items():
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "name").write_text(f"{name}\n")
        (root / folder / "energy_uj").write_text(f"{micro}\n")
        (root / folder / "max_energy_range_uj").write_text("10000000\n")


def test_energy_is_that_of_all_packages_and_counts_through_the_end_of_the_range(
    tmp_path: Path,
) -> None:
    counters(
        tmp_path,
        {
            "intel-rapl:0": ("package-0", 1_000_000),
            "intel-rapl:0:0": ("core", 500_000),
            "intel-rapl:1": ("package-1", 9_000_000),
            "intel-rapl:2": ("psys", 0),
        },
    )
    watch = ProcessorWatch(first=True, alone=True, root=tmp_path)
    counters(
        tmp_path,
        {"intel-rapl:0": ("package-0", 3_000_000), "intel-rapl:1": ("package-1", 1_000_000)},
    )
    assert watch.state().energy_joules == pytest.approx(2.0 + 2.0)
    assert watch.state().energy_joules == 0.0
    assert processors_unreadable(tmp_path) == ""


def test_counter_that_is_missing_or_unreadable_gives_no_energy_and_a_reason(tmp_path: Path) -> None:
    assert math.isnan(ProcessorWatch(first=True, alone=True, root=tmp_path).state().energy_joules)
    assert "no counter of a processor package" in processors_unreadable(tmp_path)
    counters(tmp_path, {"intel-rapl:0": ("package-0", 5)})
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("broken\n")
    assert math.isnan(ProcessorWatch(first=True, alone=True, root=tmp_path).state().energy_joules)
    assert "intel-rapl:0/energy_uj cannot be read" in processors_unreadable(tmp_path)


def test_of_ranks_on_a_node_one_tells_its_energy(tmp_path: Path) -> None:
    counters(tmp_path, {"intel-rapl:0": ("package-0", 1_000_000)})
    ranks = [ProcessorWatch(first=first, alone=True, root=tmp_path) for first in (True, False)]
    counters(tmp_path, {"intel-rapl:0": ("package-0", 2_500_000)})
    assert [rank.state().energy_joules for rank in ranks] == [1.5, 0.0]
    shared = ProcessorWatch(first=True, alone=False, root=tmp_path).state()
    assert math.isnan(shared.energy_joules), "others may run on the node"


def without_counter(handle: str) -> int:
    """Answer for all devices but one as NVML does."""
    if handle == "GPU-old":
        raise NVMLError("Not Supported")
    return 5000


@pytest.mark.parametrize(
    ("nvml", "uuids", "reason"),
    [
        (library(), ["new"], ""),
        (library(nvmlDeviceGetTotalEnergyConsumption=without_counter), ["new", "newer"], ""),
        (
            library(nvmlDeviceGetTotalEnergyConsumption=without_counter),
            ["new", "old"],
            "NVMLError: Not Supported",
        ),
        (library(nvmlInit=raising(NVMLError)), ["new"], "NVMLError: library 550.54"),
        (None, ["new"], "pip install nvidia-ml-py"),
    ],
    ids=["told", "another device of the node", "own device", "driver", "missing"],
)
def test_devices_that_do_not_tell_their_energy_give_a_reason(
    monkeypatch: pytest.MonkeyPatch,
    nvml: types.SimpleNamespace | None,
    uuids: list[str],
    reason: str,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = devices_unreadable(uuids)
    assert reason in found and bool(found) == bool(reason)
