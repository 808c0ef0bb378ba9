"""A name server that reads what it is asked and says nothing, and a machine that asks it."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = """
import socket
import sys
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
with open(sys.argv[1], "wb", buffering=0) as asked:
    while True:
        server.recv(512)
        asked.write(b"?")
"""
"""Its argument: a file that gets a byte for each question."""
_RESOLVER = "nameserver 127.0.0.1\noptions timeout:{seconds} attempts:1\n"
_MACHINE = """
ip link set lo up && mount --bind "$1/resolv.conf" /etc/resolv.conf || exit 99
"$2" "$1/server.py" "$1/asked" &
until [ -e "$1/asked" ]; do sleep 0.05; done
shift
exec "$@"
"""
_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def run(folder: Path, *arguments: str, seconds: int) -> str:
    """What this Python prints on such a machine; `asked` in the folder has a byte for each question.

    Args:
        folder: empty.
        seconds: that whoever asks waits.
    """
    if why := refusal():
        pytest.skip(why)
    (folder / "resolv.conf").write_text(_RESOLVER.format(seconds=seconds))
    (folder / "server.py").write_text(SERVER)
    machine = ["unshare", *_NAMESPACES, "sh", "-c", _MACHINE, "sh", str(folder)]
    found = subprocess.run(
        [*machine, sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@functools.cache
def refusal() -> str:
    """Why there can be no such machine here; empty: there can."""
    tried = "ip link set lo up && mount --bind /dev/null /etc/resolv.conf"
    command = ["unshare", *_NAMESPACES, "sh", "-c", tried]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"namespaces are not permitted: {found.stderr.strip()}" if found.returncode else ""
