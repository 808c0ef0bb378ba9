"""A machine of its own, on which nothing runs but what a user has started with defaults: who listens?

    python -m tests.faults.port_scan FOLDER

needs root. Prints as JSON who listens where while a trial runs and the dashboard is open, and which
ports answer at an address that others reach.
"""

import contextlib
import errno
import fcntl
import json
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.support.isolation import leave_the_network
from tests.support.steering import quick_measurement, study_folder
from tests.support.waiting import wait_for

OUTSIDE = "192.0.2.1"
"""Of the machine, as others would reach it; kept for examples."""
_SIOCSIFADDR = 0x8916
_KINDS = {socket.SOCK_STREAM: "tcp", socket.SOCK_DGRAM: "udp"}


def have_an_address() -> None:
    """Besides loopback: as every machine on a network has."""
    address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(OUTSIDE))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))


def listening() -> list[dict[str, Any]]:
    """All sockets of this network that wait for others."""
    return [
        {
            "kind": _KINDS[found.type],
            "address": found.laddr.ip,
            "port": found.laddr.port,
            "pid": found.pid,
        }
        for found in psutil.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
        or (found.type == socket.SOCK_DGRAM and not found.raddr)
    ]


def answering(address: str) -> list[int]:
    """All ports that can be connected to there."""
    found = []
    for port in range(1, 2**16):
        with socket.socket() as probe:
            refused = probe.connect_ex((address, port)) == errno.ECONNREFUSED
            # A socket may have that very port itself, and then connects to itself.
            if not refused and probe.getsockname() != (address, port):
                found.append(port)
    return found


def main(folder: Path) -> None:
    """Start, look, end."""
    assert leave_the_network(), "root can"
    have_an_address()
    with socket.create_server((OUTSIDE, 0)) as known, contextlib.ExitStack() as until_seen:
        tiny = until_seen.enter_context(study_folder(folder))
        until_seen.callback(tiny.kill_everything)
        lasting = quick_measurement(block_seconds=30.0, max_measure_time=300.0)
        tiny.write(measurement=lasting)
        assert tiny.ask("start", "study.yaml", "--detach").returncode == 0
        shown = tiny.spawn("dashboard", tiny.name, "--no-browser")
        until_seen.callback(shown.send, signal.SIGKILL)
        wait_for(lambda: "?token=" in shown.output(), "the dashboard is there")
        # Two ranks, their store and the dashboard; and this process.
        wait_for(lambda: len({found["pid"] for found in listening()}) >= 5, "all of them listen")
        seen = {"listening": listening(), "answering": answering(OUTSIDE)}
        print(json.dumps({**seen, "known": known.getsockname()[1], "dashboard": shown.pid}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
