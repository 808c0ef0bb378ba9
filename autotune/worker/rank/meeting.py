"""Where ranks meet: stores, and what a launcher tells a script of them."""

import datetime
import socket

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from autotune.worker.protocol import Placement
from autotune.worker.rank.context import RankContext

_TIMEOUT = datetime.timedelta(minutes=30)
_kept: list[TCPStore] = []
"""For as long as the process lives."""


def variables(placement: Placement, context: RankContext, store: Store) -> dict[str, str]:
    """Return what tells the ranks of a script where they meet: at a store of their trial alone.

    Older torch puts what ranks write there under the number of the restart, newer ones put it under
    nothing: in a store that trials share, what an earlier one has left would be taken for theirs.

    Args:
        placement: of this node; its agent's store is where the new one is told of.
        context: of this rank.
        store: of the trial alone, in the agent's.
    """
    if context.rank == 0:
        _kept.append(open_store(placement.store_host, _TIMEOUT))
        store.set("port", str(_kept[-1].port))
    return {
        "MASTER_ADDR": placement.store_host,
        "MASTER_PORT": store.get("port").decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def open_store(host: str, timeout: datetime.timedelta) -> TCPStore:
    """Served by this process, on a free port of this address alone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listener.detach(),
    )
