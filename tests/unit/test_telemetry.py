"""A trial never fails for want of telemetry. pynvml is a stand-in that raises what the real one may."""

import math
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from autotune.worker.observers.device import DeviceState, DeviceWatch, together
from autotune.worker.processes import MARKER, new_agent_id
from tests.support.waiting import wait_for


class NVMLError(Exception):
    """As pynvml's own."""


class NVMLLibraryMismatchError(Exception):
    """pynvml raises it where library and driver differ: no NVMLError."""


QUESTIONS = {
    "nvmlDeviceGetTotalEnergyConsumption": lambda _: 5000,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0,
    "nvmlDeviceGetClockInfo": lambda *_: 1410,
    "nvmlDeviceGetPowerUsage": lambda _: 300_000,
    "nvmlDeviceGetComputeRunningProcesses": lambda _: [],
}


def library(**changes: Callable[..., object]) -> types.SimpleNamespace:
    answers = {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": str, **QUESTIONS, **changes}
    return types.SimpleNamespace(NVMLError=NVMLError, NVML_CLOCK_SM=1, **answers)


def state(monkeypatch: pytest.MonkeyPatch, pynvml: object, **sharing: bool) -> DeviceState:
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid="1234")
    )
    return DeviceWatch(torch.device("cuda", 0), **sharing).state()


def raising(error: type[Exception]) -> Callable[..., object]:
    def ask(*_: object) -> object:
        raise error("library 550.54, driver 535.161")

    return ask


def test_what_the_library_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = state(monkeypatch, library())
    assert seen[:4] == (1410, 0, 300, 0)
    assert math.isnan(seen.foreign_processes), "this process does not use the device"


@pytest.mark.parametrize("error", [NVMLError, NVMLLibraryMismatchError, OSError, AttributeError])
@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_library_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], where: str
) -> None:
    assert all(map(math.isnan, state(monkeypatch, library(**{where: raising(error)}))))


@pytest.mark.parametrize("error", [NVMLError, NVMLLibraryMismatchError, OSError, AttributeError])
@pytest.mark.parametrize("where", QUESTIONS)
def test_a_question_that_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], where: str
) -> None:
    seen = state(monkeypatch, library(**{where: raising(error)}))
    assert sum(map(math.isnan, seen)) == (1 if "Processes" in where else 2)


def test_a_library_that_lacks_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    old = library()
    del old.nvmlDeviceGetCurrentClocksThrottleReasons
    assert state(monkeypatch, old).power_watts == 300


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(math.isnan, state(monkeypatch, None)))


@contextmanager
def process(**variables: str) -> Iterator[int]:
    """The id of a process with such an environment."""
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, env=variables)
    environment = Path(f"/proc/{sleeper.pid}/environ")
    try:
        # For a moment of its start a process has none.
        wait_for(lambda: bool(environment.read_bytes()), "the process has its environment")
        yield sleeper.pid
    finally:
        sleeper.kill()
        sleeper.wait()


def on_device(*pids: int) -> types.SimpleNamespace:
    found = [types.SimpleNamespace(pid=pid) for pid in pids]
    return library(nvmlDeviceGetComputeRunningProcesses=lambda _: found)


def test_ranks_of_another_slot_on_the_device_are_not_foreign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with process(**{MARKER: "of another slot"}) as neighbour, process(HOME="/") as stranger:
        ours = state(monkeypatch, on_device(os.getpid(), neighbour))
        assert ours.foreign_processes == 0
        shared = state(monkeypatch, on_device(os.getpid(), neighbour, stranger))
        assert shared.foreign_processes == 1


IN_A_NAMESPACE = """
import os, sys
from pathlib import Path
from autotune.worker.sandbox import kernel

user, group = os.geteuid(), os.getegid()
try:
    kernel.unshare(kernel.NEW_USERS | kernel.NEW_MOUNTS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
except OSError as refusal:
    sys.exit(f"no user namespaces: {refusal}")
"""
RANK = "print(os.getpid(), flush=True); input()"
OBSERVER = """
import pytest
from tests.unit.test_telemetry import on_device, state

neighbour = int(sys.argv[1])
try:
    Path(f"/proc/{neighbour}/environ").read_bytes()
except PermissionError:
    print("denied", state(pytest.MonkeyPatch(), on_device(os.getpid(), neighbour)).foreign_processes)
"""


@contextmanager
def rank_in_a_namespace(mark: str) -> Iterator[int]:
    """The id of a process in user and mount namespaces of its own, as ranks of sandboxes are."""
    command = [sys.executable, "-c", IN_A_NAMESPACE + RANK]
    env = {**os.environ, MARKER: mark}
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=env, text=True) as rank:
        assert rank.stdout and rank.stderr
        try:
            told = rank.stdout.readline()
            if not told and "no user namespaces" in (refusal := rank.stderr.read()):
                pytest.skip(refusal)
            yield int(told)
        finally:
            rank.kill()


def seen_from_a_namespace(neighbour: int, mark: str) -> str:
    """Number of foreign processes where the device has the neighbour and a rank that asks."""
    command = [sys.executable, "-c", IN_A_NAMESPACE + OBSERVER, str(neighbour)]
    env = {**os.environ, MARKER: mark}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
def test_interleaved_trials_whose_environment_the_kernel_denies_are_not_foreign() -> None:
    mark = new_agent_id()
    with rank_in_a_namespace(mark) as neighbour:
        assert seen_from_a_namespace(neighbour, mark) == "denied 0.0\n"


@pytest.mark.long
def test_a_process_that_the_kernel_tells_nothing_of_may_be_foreign_or_not() -> None:
    with rank_in_a_namespace(new_agent_id()) as neighbour:
        assert seen_from_a_namespace(neighbour, "of an agent elsewhere") == "denied nan\n"


def test_the_energy_of_a_device_that_other_trials_may_use_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = state(monkeypatch, library(), alone=False)
    assert seen.clock_mhz == 1410
    assert math.isnan(seen.energy_joules)


def test_of_ranks_that_share_a_device_one_tells_its_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> Callable[..., int]:
        spent = iter((5_000, 8_000))
        return lambda _: next(spent)

    ranks = [
        state(
            monkeypatch,
            library(nvmlDeviceGetTotalEnergyConsumption=asked()),
            first=first,
        )
        for first in (True, False)
    ]
    assert together(ranks).energy_joules == 3


def test_that_no_device_is_shared_is_known_only_if_all_were_observed() -> None:
    free, shared, unknown = (
        DeviceState(clock_mhz=1410, throttled=used, foreign_processes=used)
        for used in (0.0, 2.0, math.nan)
    )
    assert together([free, free])[1::3] == (0, 0), "throttled, foreign processes"
    assert together([free, shared, unknown])[1::3] == (2, 2)
    assert all(map(math.isnan, together([free, unknown])[1::3]))
    assert together([free, unknown]).clock_mhz == 1410
