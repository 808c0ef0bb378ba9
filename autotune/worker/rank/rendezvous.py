"""Rendezvous of ranks: stores, and the variables by which a script finds them."""

import datetime
import socket

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from autotune.worker.protocol import Placement
from autotune.worker.rank.context import RankContext

_TIMEOUT = datetime.timedelta(minutes=30)
_kept: list[TCPStore] = []
"""Stores that must live as long as the process."""


def variables(placement: Placement, context: RankContext, store: Store) -> dict[str, str]:
    """Return variables that lead a script's ranks to a store of their trial alone.

    Older torch writes the ranks' keys under the number of the restart, newer torch under no prefix:
    in a store that trials share, keys of an earlier one would be taken for theirs.

    Args:
        placement: of this node, with the agent's store, which announces the new one.
        context: of this rank.
        store: part of the agent's store that belongs to the trial.
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
    """Return a store served by this process, on a free port of this address alone."""
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
