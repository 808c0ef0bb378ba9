"""Store through which the ranks of all trials rendezvous, in a process beside the agent."""

import contextlib
import ctypes
import datetime
import json
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

NAME = "autotune-store"
"""Name of the process, as `top` shows it; at most 15 characters."""
_PR_SET_NAME = 15
_TIMEOUT = datetime.timedelta(seconds=60)


class StoreProcess:
    """A `TCPStore` that lives as long as the process that has started it.

    Attributes:
        pid: process that serves it.
        port: free port, bound to the host's address alone.
    """

    def __init__(self, context: ForkServerContext, host: str) -> None:
        """Start the store.

        Args:
            context: forks processes that have torch imported.
            host: address to listen on.

        Raises:
            EOFError: it could not listen there; the log has the cause.
        """
        self._line, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, host), daemon=True)
        process.start()
        theirs.close()
        self.port = int.from_bytes(self._line.recv_bytes())
        assert process.pid is not None
        self.pid = process.pid

    def forget_all_but(self, trials: Sequence[str]) -> None:
        """Delete what the ranks of other trials have left, if this PyTorch can list keys.

        Args:
            trials: names to keep. Another node may have started ranks of these already.
        """
        with contextlib.suppress(OSError):  # it has died, which the agent notices
            self._line.send_bytes(json.dumps(trials).encode())


def _serve(line: Connection, host: str) -> None:
    from autotune.worker.rank.rendezvous import open_store

    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME.encode(), 0, 0, 0)
    store = open_store(host, _TIMEOUT)
    line.send_bytes(store.port.to_bytes(2))
    with contextlib.suppress(EOFError, OSError):
        while True:  # until the owner's end closes the pipe
            _forget_all_but(json.loads(line.recv_bytes()), store)


def _forget_all_but(trials: Sequence[str], store: Any) -> None:
    own = tuple(f"{trial}/" for trial in trials)
    if hasattr(store, "list_keys"):
        for key in store.list_keys():
            if not key.startswith(own):
                store.delete_key(key)
