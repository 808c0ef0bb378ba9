"""Clocks by which leases expire: the database's, and for SQLite the time since boot.

All users of a SQLite file are on one machine. Its wall clock may be set back or forwards while a
lease is held, which would then last for hours or end at once. The time since boot only increases.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from storage.models import LeaseRow

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Moment:
    """A reading of the clocks.

    Attributes:
        wall: seconds since the epoch, by the database's clock.
        boot: identifier of the machine's boot; None where the database is on a server.
        ticks: seconds since boot, time asleep included.
    """

    wall: float
    boot: str | None = None
    ticks: float = 0.0

    def left(self, row: LeaseRow) -> float:
        """Return the seconds until a lease expires; negative once it has."""
        if self.boot is None or row.boot is None or row.boot_expires is None:
            return row.expires - self.wall
        if row.boot != self.boot:
            return min(0.0, row.expires - self.wall)  # its holder ended when the machine went down
        return row.boot_expires - self.ticks

    def until(self, seconds: float) -> dict[str, float | str | None]:
        """Return the columns of a lease that expires in this many seconds."""
        ticks = None if self.boot is None else self.ticks + seconds
        return {"expires": self.wall + seconds, "boot": self.boot, "boot_expires": ticks}


def on_this_machine(wall: float) -> Moment:
    """Return the present moment for a database whose users are all on this machine."""
    ticks = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Moment(wall, _BOOT_ID.read_text().strip(), ticks)
