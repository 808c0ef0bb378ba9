"""torch asks for the name of the address at which ranks meet, whenever one comes there, for its log.

Where the name server does not answer, each of them waits for it, 10 s with a resolver's usual settings.
Since version 2.9 torch asks no more once nobody has answered, and neither do the forks of that process.
An answer that comes late does not stop it.
"""

import contextlib
import datetime
import math
import socket
import threading
import time

SOON_SECONDS = 0.5
"""An answer that takes longer holds up who waits for it."""
_AT_ONCE = datetime.timedelta(seconds=1)
_DISCARD = 9
"""A port at which no store is served."""


def as_torch_asks(address: str) -> str:
    """IPv4 addresses within IPv6: who has only the former in /etc/hosts is not found there."""
    return address if ":" in address else f"::ffff:{address}"


class LookUp(threading.Thread):
    """The same question, under way.

    Attributes:
        seconds: that it took, by its own clock, as whoever waits for it may get to run later; infinite
            until then.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = as_torch_asks(address)
        self.seconds = math.inf
        self.start()

    def run(self) -> None:
        """Ask."""
        began = time.monotonic()
        with contextlib.suppress(OSError):
            socket.getnameinfo((self._address, 0), 0)
        self.seconds = time.monotonic() - began


def settle(address: str) -> None:
    """Have torch find out in this process, if nobody answers soon, for all that are forked from it.

    Args:
        address: at which ranks meet, here or on another node.
    """
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if torch.__version__ < "2.9":
        return  # it would ask again and again
    asking = LookUp(address)
    asking.join(SOON_SECONDS)
    if asking.seconds <= SOON_SECONDS:
        return
    with contextlib.suppress(RuntimeError):  # nobody listens there: it asks before it sees that
        TCPStore(address, _DISCARD, is_master=False, wait_for_workers=False, timeout=_AT_ONCE)
    asking.join()  # no thread may run where ranks are forked
