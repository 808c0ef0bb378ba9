"""Devices of this machine, counted without importing torch or touching the driver."""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import NotHere
from autotune.worker.processes import VISIBLE_DEVICES
from launchers.layout import NodeCapacity

VISIBLE = VISIBLE_DEVICES
_BY_ID = ("GPU-", "MIG-")
_NONE_WANTED = ("", "-1", "none", "NoDevFiles")
"""Usual values that hide all devices on purpose."""
_DEVICE_NODE = re.compile(r"nvidia[0-9]+")


def visible(environment: Mapping[str, str] = os.environ, folder: Path = Path("/dev")) -> list[str]:
    """Return names of the CUDA devices that this process may use, as for CUDA_VISIBLE_DEVICES.

    CUDA numbers the devices that it can open from 0, whatever the numbers in the file names are: a
    container that holds /dev/nvidia3 alone has device 0. Names after an invalid one are ignored.

    Raises:
        NotHere: CUDA_VISIBLE_DEVICES names a device that this machine does not have.
    """
    present = [str(number) for number in range(sum(map(_is_device, folder.iterdir())))]
    asked = environment.get(VISIBLE)
    if asked is None or not present:
        return present
    named = [name.strip() for name in asked.split(",")]
    valid = itertools.takewhile(lambda name: name in present or name.startswith(_BY_ID), named)
    usable = list(valid)
    if not usable and named[0] not in _NONE_WANTED:
        raise NotHere(
            f"{VISIBLE}={asked} names no device of this machine, which has {len(present)}, numbered "
            "from 0: mend it, or set it to -1 to train on the CPU"
        )
    return usable


def this_machine() -> NodeCapacity:
    """Return the processors and devices that this process may use."""
    return NodeCapacity(cpus=len(os.sched_getaffinity(0)), gpus=len(visible()))


def processors() -> list[str]:
    """Return names of the processors that this process may use; studies can only share them."""
    return [f"processor {number}" for number in sorted(os.sched_getaffinity(0))]


def _is_device(entry: Path) -> bool:
    return _DEVICE_NODE.fullmatch(entry.name) is not None
