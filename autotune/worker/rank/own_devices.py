"""Devices of a rank, which a script must not choose by itself."""

import os

from autotune.worker.processes import VISIBLE_DEVICES


class GivenDevices:
    """Devices that a rank was given, as its environment names them before the script begins.

    A script that sets the variable in its code trains on that device in every slot, beside the trials
    that were given it, and none of the figures is true.
    """

    def __init__(self) -> None:
        self._given = os.environ.get(VISIBLE_DEVICES)

    def problem(self) -> str:
        """Return why the script may train on other devices; empty if it may not."""
        now = os.environ.get(VISIBLE_DEVICES)
        if self._given is None or now == self._given:
            return ""
        return (
            f"the script sets {VISIBLE_DEVICES} to {now!r}, and this trial was given {self._given!r}; "
            "take that line out of the script, and set the variable for `autotune` instead"
        )
