"""Runs a study over a PostgreSQL to which the network leads nowhere for a while.

    python -m tests.faults.black_hole FOLDER SOCKET DATABASE SECONDS

Nothing refuses a connection, nothing closes one: what is sent is lost, in a network of this process's
own. The server's socket is reached through an address that goes away and comes back.
"""

import contextlib
import fcntl
import logging
import socket
import struct
import sys
import threading
from pathlib import Path

from launchers.replay import Answer, Launch
from storage import Database
from tests.control.replayed import PLAIN, Replayed
from tests.support.isolation import leave_the_network

TRIALS = 6
ADDRESS = "10.213.7.1"
_ALIAS = b"lo:1"
_SIOCSIFADDR, _SIOCSIFFLAGS = 0x8916, 0x8914


def show() -> None:
    """The address is there."""
    _tell(_SIOCSIFADDR, struct.pack("16sHH4s8x", _ALIAS, socket.AF_INET, 0, _packed()))


def hide() -> None:
    """It is gone, and nobody who is connected over it is told."""
    _tell(_SIOCSIFFLAGS, struct.pack("16sh14x", _ALIAS, 0))


def _packed() -> bytes:
    return socket.inet_aton(ADDRESS)


def _tell(request: int, structure: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, request, structure)


def forward(target: str) -> int:
    """Pass on what comes to a port of the address to a Unix socket; which port."""
    listener = socket.create_server((ADDRESS, 0))
    threading.Thread(target=_accept, args=(listener, target), daemon=True).start()
    return int(listener.getsockname()[1])


def _accept(listener: socket.socket, target: str) -> None:
    while True:
        outer, _ = listener.accept()
        inner = socket.socket(socket.AF_UNIX)
        inner.connect(target)
        for source, sink in ((outer, inner), (inner, outer)):
            threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while some := source.recv(1 << 16):
            sink.sendall(some)
        sink.shutdown(socket.SHUT_WR)


def main(folder: Path, target: str, name: str, seconds: float) -> None:
    """Run the study, and say how it ended."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    assert leave_the_network()
    show()
    url = f"postgresql://postgres@{ADDRESS}:{forward(target)}/{name}"
    played = Replayed(folder, Database(url))
    launches = []

    def vanishing(launch: Launch) -> Answer:
        launches.append(launch)
        if len(launches) == 3:
            hide()
            threading.Timer(seconds, show).start()
        return PLAIN(launch)

    played.submit(budget={"trials": TRIALS, "min_improvement": 0})
    played.on(vanishing).serve()
    played.assert_complete(trials=TRIALS)
    print("complete, lost and duplicated:", *played.losses(TRIALS))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
