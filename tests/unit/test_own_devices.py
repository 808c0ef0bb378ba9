"""A script that chooses its CUDA devices in its code is refused."""

import os

import pytest

from autotune.standalone.survey import one_device
from autotune.worker.protocol import PYTHON, SPAWN, TORCHRUN
from autotune.worker.rank.own_devices import GivenDevices


@pytest.mark.parametrize(
    ("given", "own", "refused"),
    [("1", "0", True), ("", "0", True), ("0", "0", False), (None, "0", False)],
)
def test_script_that_sets_other_devices_than_it_was_given_is_refused(
    given: str | None, own: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    devices = GivenDevices()
    assert devices.problem() == ""
    os.environ["CUDA_VISIBLE_DEVICES"] = own  # as scripts do
    assert bool(devices.problem()) == refused
    if refused:
        assert f"sets CUDA_VISIBLE_DEVICES to '{own}', and this trial was given '{given}'" in (
            devices.problem()
        )


@pytest.mark.parametrize(
    ("launch", "device", "slots", "told"),
    [
        (PYTHON, "cuda", 8, True),
        (SPAWN, "cuda", 2, True),
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
