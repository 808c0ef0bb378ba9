"""Standard input of a script or a command in a trial: a terminal without a user."""

import contextlib
import fcntl
import os
import struct
import sys
import termios

_ROWS, _COLUMNS = 24, 80
"""Size of a terminal that does not say another."""
_LOCAL_MODES, _CHARACTERS = 3, 6
"""Places in what termios.tcgetattr returns."""


def begin() -> None:
    """Make a terminal the standard input of this process, on which every read is at its end.

    Scripts ask it for its size, as where their command is typed; so a study finds the same whether
    its daemon has a terminal or not. Where none can be had, standard input stays as it is.
    """
    with contextlib.suppress(OSError, termios.error):
        # The other end stays open as long as this process: without it the terminal has no size.
        _, terminal = os.openpty()
        modes = termios.tcgetattr(terminal)
        modes[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
        modes[_CHARACTERS][termios.VMIN] = modes[_CHARACTERS][termios.VTIME] = 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        os.dup2(terminal, 0)
        os.close(terminal)
        # multiprocessing has put an empty file here.
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (a descriptor)
