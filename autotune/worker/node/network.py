"""Network interface that carries an address of this node."""

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16


def interface_of(address: str) -> str:
    """Return the name of the interface with this IPv4 address, e.g. 'eth0'.

    gloo and NCCL would go by the host's name, which may resolve to loopback.

    Raises:
        OSError: no interface of this node has it.
    """
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # no IPv4 address on this one
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise OSError(f"no network interface of this node has the address {address}")
