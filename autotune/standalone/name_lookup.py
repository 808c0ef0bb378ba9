"""How long this machine takes to find the name of an address: torch asks for it as ranks meet."""

import contextlib
import socket
import threading
import time

MOST_SECONDS = 3.0
"""Nobody waits for longer to be told that it takes too long."""
_SLOW_SECONDS = 0.5


def seconds_to_name(address: str) -> float:
    """Seconds until there is a name, or word that there is none; MOST_SECONDS if that takes longer."""

    def look_up() -> None:
        with contextlib.suppress(OSError):
            socket.getnameinfo((address, 0), 0)

    began = time.monotonic()
    asking = threading.Thread(target=look_up, daemon=True)
    asking.start()
    asking.join(MOST_SECONDS)
    return min(time.monotonic() - began, MOST_SECONDS)


def judged(address: str) -> tuple[bool, str]:
    """(whether that is soon enough, what to do if not).

    Args:
        address: of a node.
    """
    seconds = seconds_to_name(address)
    more = " or more" if seconds >= MOST_SECONDS else ""
    text = f"the name of {address} is looked up in {seconds:.2f} s{more}"
    if seconds < _SLOW_SECONDS:
        return True, text
    return False, (
        f"{text}: torch asks for it as ranks meet, so that every trial across nodes waits for the name "
        "server; name the nodes' addresses in /etc/hosts on each of them, or have `options timeout:1 "
        "attempts:1` in /etc/resolv.conf"
    )
