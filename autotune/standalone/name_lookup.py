"""Time that this machine takes to look up the name of an address, as torch does for each rank."""

from autotune.worker.node.reverse_lookup import SOON_SECONDS, NameLookup, as_torch_asks

MOST_SECONDS = 3.0
"""Longest wait for the lookup: beyond it, the result is the same."""


def judged(address: str) -> tuple[bool, str]:
    """Return whether the lookup is fast enough, and a description with advice.

    Args:
        address: of a node.
    """
    asking = NameLookup(address)
    asking.join(MOST_SECONDS)
    seconds = min(asking.seconds, MOST_SECONDS)
    more = " or more" if seconds >= MOST_SECONDS else ""
    text = f"the name of {address} is looked up in {seconds:.2f} s{more}"
    if seconds < SOON_SECONDS:
        return True, text
    return False, (
        f"{text}: torch asks for it as ranks meet, so that every launch of them waits for the name "
        "server; with PyTorch 2.9 or newer only agents that start do, if it never answers. "
        f"Have the line `{as_torch_asks(address)} NAME` in /etc/hosts for each node on all of them "
        "(torch asks for IPv4 addresses within IPv6, which lines without `::ffff:` do not answer), or "
        "`options timeout:1 attempts:1` in /etc/resolv.conf"
    )
