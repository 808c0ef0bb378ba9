"""How long this machine takes to find the name of an address: torch asks for it as ranks meet."""

from autotune.worker.node.reverse_lookup import SOON_SECONDS, NameLookup, as_torch_asks

MOST_SECONDS = 3.0
"""Nobody waits for longer to be told that it takes too long."""


def judged(address: str) -> tuple[bool, str]:
    """(whether that is soon enough, what to do if not).

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
