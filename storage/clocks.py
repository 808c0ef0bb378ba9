"""The clock of a database, and beside that of SQLite one that nobody sets.

All who use a SQLite file are on one machine. Its wall clock may be set back or forwards under a lease,
which would then hold for hours, or end at once; the time since the machine was booted only goes on.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from storage.models import LeaseRow

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Moment:
    """Now.

    Attributes:
        wall: seconds since the epoch, by the database's clock.
        boot: which start of the machine; None where the database is on a server.
        ticks: seconds since then, those asleep among them.
    """

    wall: float
    boot: str | None = None
    ticks: float = 0.0

    def left(self, row: LeaseRow) -> float:
        """Seconds until a lease runs out; negative once it has."""
        if self.boot is None or row.boot is None or row.boot_expires is None:
            return row.expires - self.wall
        if row.boot != self.boot:
            return min(0.0, row.expires - self.wall)  # its holder has gone down with the machine
        return row.boot_expires - self.ticks

    def until(self, seconds: float) -> dict[str, float | str | None]:
        """What the row of a lease is to hold, so that so many are left of it."""
        ticks = None if self.boot is None else self.ticks + seconds
        return {"expires": self.wall + seconds, "boot": self.boot, "boot_expires": ticks}


def on_this_machine(wall: float) -> Moment:
    """Now, of a database that all use from here."""
    ticks = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Moment(wall, _BOOT_ID.read_text().strip(), ticks)
