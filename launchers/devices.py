"""Devices of this machine, counted without importing torch or touching the driver."""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path

from launchers.layout import NodeCapacity

VISIBLE = "CUDA_VISIBLE_DEVICES"
_BY_ID = ("GPU-", "MIG-")
_DEVICE_NODE = re.compile(r"nvidia[0-9]+")


def visible(environment: Mapping[str, str] = os.environ, folder: Path = Path("/dev")) -> list[str]:
    """Names of the CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES takes them.

    As CUDA reads it: what follows an invalid name is invisible.
    """
    present = sorted(
        (entry.name.removeprefix("nvidia") for entry in folder.iterdir() if _is_device(entry)),
        key=int,
    )
    asked = environment.get(VISIBLE)
    if asked is None:
        return present
    named = [name.strip() for name in asked.split(",")]
    valid = itertools.takewhile(lambda name: name in present or name.startswith(_BY_ID), named)
    return list(valid) if present else []


def this_machine() -> NodeCapacity:
    """What this process may use."""
    return NodeCapacity(cpus=len(os.sched_getaffinity(0)), gpus=len(visible()))


def processors() -> list[str]:
    """Names of those that this process may use; two studies can only share them."""
    return [f"processor {number}" for number in sorted(os.sched_getaffinity(0))]


def _is_device(entry: Path) -> bool:
    return _DEVICE_NODE.fullmatch(entry.name) is not None
