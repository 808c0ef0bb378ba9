"""Which nodes of a cluster may make slots."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import launchers
from autotune.errors import NotHere
from autotune.worker.node import environment
from launchers.node_compat import (
    CommonKind,
    check_device,
    describe_kinds,
    device_kind,
    kind_with_most_ranks,
    most_common_software,
    of_other_kinds,
    other_devices,
)
from launchers.node_info import node_info
from launchers.replay import ENVIRONMENT
from launchers.site import Site

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def node(**changes: Any) -> dict[str, Any]:
    usual = {"autotune": "0.1.0", "python": "3.12.1", "torch": "2.11.0", "cpu": "EPYC"}
    return {**usual, "devices": [H100] * 8, **changes}


def test_a_look_says_what_an_agent_says() -> None:
    found, told = node_info(), environment.describe()
    assert [found[name] for name in ("autotune", "python", "torch", "cpu")] == [
        told[name] for name in ("autotune", "python", "torch", "cpu")
    ]


def test_look_tells_the_build_of_torch_which_its_metadata_lack(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('it is not to be imported')")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.99.0+cu999'")
    (tmp_path / "torch-2.99.0.dist-info").mkdir()
    (tmp_path / "torch-2.99.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.99.0")
    look = "from launchers.node_info import node_info; print(node_info()['torch'])"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(launchers.__file__).parents[1]}"}
    found = subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, text=True)
    assert found.stdout.strip() == "2.99.0+cu999", found.stderr


@pytest.mark.sample
@pytest.mark.fault(29)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"autotune": "0.0.9"}, "autotune 0.0.9 is installed there and 0.1.0 here"),
        ({"autotune": ""}, "autotune is not installed there"),
        ({"python": "3.11.4"}, "Python 3.11.4 is installed there and 3.12.1 on others"),
        ({"torch": ""}, "torch (none) is installed there and 2.11.0 on others"),
        ({"devices": [A100] * 8}, f"it has {A100}, and this study runs on {H100}"),
        ({"devices": [H100] * 7 + [A100]}, f"it has {A100} + {H100}, and this study runs on"),
        ({}, ""),
        ({"cpu": "another"}, ""),
    ],
)
def test_one_that_differs_is_left_out_with_the_reason(changes: dict[str, Any], why: str) -> None:
    odd = node(**changes)
    same = most_common_software("0.1.0", [odd, node(), node(), {}])
    assert (same.python, same.torch) == ("3.12.1", "2.11.0")
    found = CommonKind(same.autotune, same.python, same.torch, H100, on_gpu=True).mismatch(odd)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_one_that_does_not_answer_is_judged_by_its_agent() -> None:
    assert CommonKind("0.1.0", "3.12.1", "2.11.0", H100, on_gpu=True).mismatch({}) == ""


def test_what_the_driver_does_not_tell_is_not_held_against_a_node() -> None:
    assert CommonKind("0.1.0", kind=H100, on_gpu=True).mismatch(node(devices=[])) == ""


def test_the_kind_on_which_most_ranks_run_is_taken() -> None:
    ranks = {"one big": 8, "small": 4}
    assert kind_with_most_ranks(["small", "small", "one big", ""], ranks.__getitem__) == "one big"
    assert kind_with_most_ranks(["b", "a", "a", "b", "b"], lambda _: 2) == "b"
    assert kind_with_most_ranks([""], lambda _: 2) == ""
    assert describe_kinds(["a", "b", "a", ""]) == "a on 2 nodes, b on 1, unknown devices on 1"


def site(device: str) -> Site:
    there = {**ENVIRONMENT, "devices": [{"name": H100}]}
    return Site(device, 1, 1, float(device == "cuda"), there)


def test_machine_of_another_kind_is_refused() -> None:
    check_device(H100, site("cuda"))
    check_device(ENVIRONMENT["cpu"], site("cpu"))
    check_device(None, site("cuda"))
    with pytest.raises(NotHere, match=f"resources.device: {A100} is asked for, and here is {H100}"):
        check_device(A100, site("cuda"))


def test_devices_are_named_by_the_driver(tmp_path: Path) -> None:
    for number, name in enumerate([H100, A100]):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 1\n")
    assert environment.driver_devices(tmp_path) == [H100, A100]
    assert environment.driver_devices(tmp_path / "none") == []
    assert device_kind({"devices": [A100, H100, H100]}, on_gpu=True) == f"{A100} + {H100}"


DISPLAY = "NVIDIA T400"


@pytest.mark.parametrize(
    ("devices", "wanted", "left_out"),
    [
        ([(DISPLAY, 2), (H100, 80)], None, [0]),
        ([(H100, 80), (DISPLAY, 2)], None, [1]),
        ([(A100, 80), (H100, 80)], None, [1]),
        ([(DISPLAY, 2), (H100, 80), (DISPLAY, 2)], None, [1]),
        ([(DISPLAY, 2), (H100, 80), (DISPLAY, 2)], H100, [0, 2]),
        ([(DISPLAY, 2), (H100, 80)], A100, []),
        ([(H100, 80), (H100, 80)], None, []),
    ],
)
def test_slots_of_one_machine_are_of_one_kind(
    devices: list[tuple[str, int]], wanted: str | None, left_out: list[int]
) -> None:
    told = [{"devices": [{"name": name, "memory_bytes": size}]} for name, size in devices]
    assert list(of_other_kinds(told, wanted, on_gpu=True)) == left_out


@pytest.mark.parametrize(
    ("name", "memory", "differs"),
    [
        (A100, 80.0, ""),
        (A100, 79.2, ""),
        (A100, 40.0, f"{A100} (80 GiB), and here is {A100} (40 GiB)"),
        (H100, 80.0, f"{A100} (80 GiB), and here is {H100} (80 GiB)"),
    ],
)
def test_devices_are_told_apart_by_name_and_memory(name: str, memory: float, differs: str) -> None:
    def environment_with(name: str, memory: float) -> dict[str, Any]:
        return {**ENVIRONMENT, "devices": [{"name": name, "memory_bytes": int(memory * 2**30)}] * 2}

    assert other_devices(environment_with(A100, 80.0), environment_with(name, memory)) == differs
