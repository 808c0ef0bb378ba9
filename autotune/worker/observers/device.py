"""Devices during a block, read between blocks only.

An NVIDIA device tells by NVML its clock, throttling, power, energy and other processes; without
nvidia-ml-py nothing is observed.
"""

import contextlib
import importlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from autotune.worker import processes

_NAN = float("nan")
_THROTTLED = 0x08 | 0x20 | 0x40 | 0x80
"""Hardware slow-down, software and hardware thermal slow-down, power brake.

The power cap is not among them: devices run at that all the time.
"""
_UNREADABLE = (Exception,)
"""Errors of pynvml, which do not end a trial.

Not all of them are NVMLErrors: a library of another version than the driver, or one that lacks a
function, raises others.
"""


class DeviceState(NamedTuple):
    """State of one device or of several; NaN where it could not be observed."""

    clock_mhz: float = _NAN
    throttled: float = _NAN
    power_watts: float = _NAN
    energy_joules: float = _NAN
    """0 on a rank that shares the device with one that reports it."""
    foreign_processes: float = _NAN


def together(states: Sequence[DeviceState]) -> DeviceState:
    """Combine several devices.

    The result has the slowest clock and the highest power, as far as they were observed; whether any
    is throttled or shared, which no device is only if all were observed; and the sum of the energy.
    """
    clocks, throttled, watts, joules, others = zip(*states, strict=True)
    return DeviceState(
        min(_observed(clocks), default=_NAN),
        _highest(throttled),
        max(_observed(watts), default=_NAN),
        sum(joules),
        _highest(others),
    )


def _observed(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]


def _highest(values: Sequence[float]) -> float:
    """Return the highest value; NaN if that is 0 and not all were observed."""
    observed = _observed(values)
    highest = max(observed, default=0.0)
    return highest if highest or len(observed) == len(values) else _NAN


class DeviceWatch:
    """Observer of one device."""

    def __init__(self, device: torch.device, *, first: bool = True, alone: bool = True) -> None:
        """Open a device.

        Args:
            device: CUDA device of this rank.
            first: whether this rank, of those that share the device, reports its energy.
            alone: whether no other trial may be on it; otherwise its energy cannot be attributed.
        """
        self._first, self._alone = first, alone
        self._energy = _NAN
        self._nvml: Any = None
        self._handle: Any = None
        self._open(device)

    def _open(self, device: torch.device) -> None:
        with contextlib.suppress(*_UNREADABLE):
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._energy = self._joules()

    def restart(self, *, known: bool = True) -> None:
        """Start the energy anew, as others have had the device; `known`: that of the next block is."""
        if self._handle is not None:
            self._energy = self._joules() if known else _NAN

    def state(self) -> DeviceState:
        """Return the energy since the last call, and clock, power and throttling as they are now."""
        if self._handle is None:
            return DeviceState()
        before, self._energy = self._energy, self._joules()
        reasons = self._read("nvmlDeviceGetCurrentClocksThrottleReasons")
        return DeviceState(
            clock_mhz=self._read("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            throttled=float(bool(int(reasons) & _THROTTLED)) if reasons == reasons else _NAN,
            power_watts=self._read("nvmlDeviceGetPowerUsage") / 1e3,
            energy_joules=self._share(self._energy - before),
            foreign_processes=self._foreign(),
        )

    def _share(self, joules: float) -> float:
        if not self._alone:
            return _NAN
        return joules if self._first else 0.0

    def _joules(self) -> float:
        return self._read("nvmlDeviceGetTotalEnergyConsumption") / 1e3

    def _foreign(self) -> float:
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except _UNREADABLE:
            return _NAN
        pids = {process.pid for process in found}
        if os.getpid() not in pids:
            return _NAN  # in a container the device knows this process by another number
        # Other trials may share the device: a process below an agent is not foreign.
        ours = [processes.is_ours(pid) for pid in pids - {os.getpid()}]
        foreign = ours.count(False)
        return _NAN if None in ours and not foreign else float(foreign)

    def _read(self, question: str, *arguments: Any) -> float:
        try:
            return float(getattr(self._nvml, question)(self._handle, *arguments))
        except _UNREADABLE:
            return _NAN  # not every device answers every question


def devices_unreadable(uuids: Sequence[str]) -> str:
    """Return why the energy of CUDA devices cannot be read; empty if it can.

    Args:
        uuids: of the devices, see autotune.worker.node.environment.cuda_devices.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed in the Python of the trials: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        for uuid in uuids:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except _UNREADABLE as error:
        return f"a device does not tell its energy by NVML ({type(error).__name__}: {error})"
    return ""
