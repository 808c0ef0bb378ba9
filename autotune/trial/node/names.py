"""torch asks for the name of the address at which ranks meet, whenever one comes there, for its log.

Where the name server does not answer, each of them waits for it, 10 s with a resolver's usual settings.
Since version 2.9 torch asks no more once it was not answered, and neither do the forks of that process.
"""

import contextlib
import datetime
import socket
import threading

HOST = "AUTOTUNE_HOST"
"""Environment variable that tells a fork server the address of this node at which ranks meet."""
SOON_SECONDS = 0.5
"""An answer that takes longer holds up who waits for it."""
_TIMEOUT = datetime.timedelta(seconds=60)


def as_torch_asks(address: str) -> str:
    """IPv4 addresses within IPv6: who has only the former in /etc/hosts is not found there."""
    return address if ":" in address else f"::ffff:{address}"


def look_up(address: str) -> threading.Thread:
    """The same question, under way."""

    def ask() -> None:
        with contextlib.suppress(OSError):
            socket.getnameinfo((as_torch_asks(address), 0), 0)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    return asking


def settle(address: str) -> None:
    """Have torch find out in this process, if nobody answers soon, for all that are forked from it.

    Args:
        address: of this node.
    """
    from autotune.trial.rank.meeting import open_store

    asking = look_up(address)
    asking.join(SOON_SECONDS)
    if asking.is_alive():
        open_store(address, _TIMEOUT)
        asking.join()  # no thread may run where ranks are forked
