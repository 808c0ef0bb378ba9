"""Devices of a rank, which a script must not choose by itself."""

import os
from pathlib import Path

from autotune.worker.processes import NO_DEVICES, VISIBLE_DEVICES


class GivenDevices:
    """Devices that a rank was given, as its environment names them before the script begins.

    A script that sets the variable in its code trains on that device in every slot, beside the trials
    that were given it, and none of the figures is true.
    """

    def __init__(self, driver: Path = Path("/proc/driver/nvidia")) -> None:
        """Take in the devices, and the driver's folder: without it the node has none to choose."""
        self._given = os.environ.get(VISIBLE_DEVICES)
        self._there = driver.exists()

    def problem(self) -> str:
        """Return why the script may train on other devices; empty if it may not."""
        now = os.environ.get(VISIBLE_DEVICES)
        if not self._there or self._given is None or _names(now) == _names(self._given):
            return ""
        does = f"removes {VISIBLE_DEVICES}" if now is None else f"sets {VISIBLE_DEVICES} to {now!r}"
        return (
            f"the script {does}, and this trial was given {self._given!r}; take that line out of the "
            "script, and set the variable for `autotune` instead"
        )


def _names(value: str | None) -> list[str] | None:
    """Return the devices that a value names; None: all of the node."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    return [] if names[0] in NO_DEVICES else names
