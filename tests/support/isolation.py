"""A network of its own for each worker of the test run.

On one machine, a study waits for another that measures on the same processors; so would the studies
of two workers that test side by side. Whom autotune waits for is known by names in the network
namespace, so a worker that has one of its own meets nobody.
"""

import ctypes
import fcntl
import os
import socket
import struct

_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def leave_the_network() -> bool:
    """Give this process and all that it will start a network with nothing but loopback.

    Returns:
        False where that is not allowed: then this process stays where it was.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return True
