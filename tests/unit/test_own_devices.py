"""A script that chooses its CUDA devices in its code is refused."""

from pathlib import Path

import pytest

from autotune.standalone.survey import one_device
from autotune.worker.protocol import PYTHON, SPAWN, TORCHRUN
from autotune.worker.rank.script_process import GivenDevices


@pytest.mark.parametrize(
    ("given", "own", "does"),
    [
        ("1", "0", "sets CUDA_VISIBLE_DEVICES to '0'"),
        ("", "0", "sets CUDA_VISIBLE_DEVICES to '0'"),
        ("1", None, "removes CUDA_VISIBLE_DEVICES"),
        ("0", "0", ""),
        ("0,1", "0, 1", ""),
        ("", "-1", ""),
        (None, "0", ""),
    ],
)
def test_script_that_sets_other_devices_than_it_was_given_is_refused(
    given: str | None, own: str | None, does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    devices, none_here = GivenDevices(tmp_path), GivenDevices(tmp_path / "no driver")
    assert devices.problem() == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if own is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    found = devices.problem()
    assert bool(found) == bool(does)
    assert not does or found.startswith(f"the script {does}, and this trial was given {given!r}")
    assert none_here.problem() == "", "there is no device that it could choose"


@pytest.mark.parametrize(
    ("launch", "device", "slots", "told"),
    [
        (PYTHON, "cuda", 8, True),
        (SPAWN, "cuda", 2, False),
        (PYTHON, "cuda", 1, False),
        (PYTHON, "cpu", 4, False),
        (TORCHRUN, "cuda", 4, False),
    ],
)
def test_script_that_may_take_all_devices_is_told_that_it_gets_one(
    launch: str, device: str, slots: int, told: bool
) -> None:
    notice = "".join(one_device(launch, device, slots))
    assert bool(notice) == told
    assert not told or f"torchrun --nproc-per-node {slots}" in notice
