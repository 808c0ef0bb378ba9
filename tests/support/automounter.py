"""Automounter of a folder, in a process of its own: `python -m tests.support.automounter FOLDER`.

At the first use of each name in the folder it mounts a file system in memory there, with a file
`before`. It prints a line once it is ready. The protocol is that of linux/auto_fs.h, version 5.
"""

import fcntl
import os
import struct
import sys
from pathlib import Path

from autotune.worker.sandbox import kernel

_PACKET = struct.Struct("=iiIIQIIIII")
"""Begin of a packet: version, type, token, device, inode, user, group, two processes, length."""
_PACKET_BYTES = 304
_READY = 0x9360
"""AUTOFS_IOC_READY."""


def serve(folder: Path) -> None:
    """Mount what is asked for, until the process is killed."""
    requests, ends = os.pipe()
    os.setsid()
    version = {"minproto": "5", "maxproto": "5", "indirect": None}
    kernel.mount(
        "t", str(folder), "autofs", {"fd": str(ends), "pgrp": str(os.getpgrp()), **version}
    )
    root = os.open(folder, os.O_RDONLY)
    print("ready", flush=True)
    while packet := os.read(requests, _PACKET_BYTES):
        *_, length = begin = _PACKET.unpack_from(packet)
        name = packet[_PACKET.size : _PACKET.size + length].decode()
        if not (folder / name).exists():  # asked for again where what is mounted does not appear
            (folder / name).mkdir()
            kernel.mount("t", str(folder / name), "tmpfs", {})
            (folder / name / "before").touch()
        fcntl.ioctl(root, _READY, begin[2])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
