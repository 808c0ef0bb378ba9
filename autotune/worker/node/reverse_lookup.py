"""Reverse name lookup of the ranks' store, done once per fork server instead of in every rank.

torch looks up the name of the store's address whenever a rank connects, for its log. Where the name
server does not answer, each rank waits for it, 10 s with the usual settings of a resolver. Since
version 2.9 torch stops asking after one failed lookup, in the process and in its forks. A late
answer does not stop it.
"""

import contextlib
import datetime
import math
import socket
import threading
import time

SOON_SECONDS = 0.5
"""A lookup that takes longer delays every rank."""
_AT_ONCE = datetime.timedelta(seconds=1)
_DISCARD = 9
"""A port at which no store is served."""


def as_torch_asks(address: str) -> str:
    """Return the address as torch looks it up: IPv4 mapped into IPv6.

    /etc/hosts often has the IPv4 form alone, so the mapped one is not found there.
    """
    return address if ":" in address else f"::ffff:{address}"


class NameLookup(threading.Thread):
    """A name lookup under way.

    Attributes:
        seconds: duration by the thread's own clock, as a waiting thread may run again later;
            infinite until the lookup has ended.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = as_torch_asks(address)
        self.seconds = math.inf
        self.start()

    def run(self) -> None:
        """Look the name up."""
        began = time.monotonic()
        with contextlib.suppress(OSError):
            socket.getnameinfo((self._address, 0), 0)
        self.seconds = time.monotonic() - began


def settle(address: str) -> None:
    """Let torch notice a slow name server in this process, and thereby in all its forks.

    Args:
        address: of the ranks' store, on this node or another.
    """
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if torch.__version__ < "2.9":
        return  # it would look the name up again and again
    asking = NameLookup(address)
    asking.join(SOON_SECONDS)
    if asking.seconds <= SOON_SECONDS:
        return
    with contextlib.suppress(RuntimeError):  # no server listens there; the lookup comes first
        TCPStore(address, _DISCARD, is_master=False, wait_for_workers=False, timeout=_AT_ONCE)
    asking.join()  # no thread may run where ranks are forked
