"""A command as in a container of Docker, whose default profile refuses namespaces and mounts: the kernel
answers both with EPERM. Run as a module: `python -m tests.support.without_namespaces COMMAND ...`,
behind it `--without-landlock` for an older kernel.
"""

import ctypes
import os
import platform
import struct
import sys

_REFUSED = {"x86_64": (272, 165, 308), "aarch64": (97, 40, 268)}
"""Numbers of unshare, mount and setns."""
_LANDLOCK = 444
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
"""Instructions of a filter; see seccomp(2)."""
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2


def refuse(*, landlock: bool) -> None:
    """Have the kernel refuse them to this process and all that it starts, and Landlock if wanted."""
    numbers = (*_REFUSED[platform.machine()], *([_LANDLOCK] if landlock else []))
    program = [(_LOAD, 0, 0, 0)]
    for place, number in enumerate(numbers):
        program.append((_JUMP_IF_EQUAL, len(numbers) - place, 0, number))
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(code)
    described = struct.pack("@HP", len(program), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, _FILTER, described, 0, 0) == 0


if __name__ == "__main__":
    without = sys.argv[1] == "--without-landlock"
    refuse(landlock=without)
    command = sys.argv[1 + without :]
    os.execvp(command[0], command)
