"""Name of this machine, after which the queue of its studies is named."""

import os
import socket
from pathlib import Path

from autotune.errors import BadInput

VARIABLE = "AUTOTUNE_MACHINE"
"""Variable with a name that the user gives, and that stays when a container is made anew."""
_LONGEST = 200
_OF_MANY = ("localhost", "localhost.localdomain", "localhost6", "(none)", "")
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))
_ID_LETTERS = 8


def this_machine() -> str:
    """Return the name that the user gives this machine, else the host's.

    Host names that many machines share are extended by an identifier.

    Raises:
        BadInput: the given name is not allowed.
    """
    given = os.environ.get(VARIABLE, "")
    if len(given) > _LONGEST or not given.isprintable() or " " in given:
        raise BadInput(
            f"{VARIABLE} must be at most {_LONGEST} printable characters without spaces, got {given!r}"
        )
    return given or _told_apart(socket.gethostname())


def _told_apart(host: str) -> str:
    if host not in _OF_MANY:
        return host
    found = (path.read_text().strip() for path in _MACHINE_IDS if path.exists())
    return "-".join(
        filter(None, (host or "localhost", next(filter(None, found), "")[:_ID_LETTERS]))
    )
