"""Another local user, who has an account on this machine and nothing else."""

import os
import pwd
import subprocess
import sys

import pytest

USER = 65534


def _name() -> str:
    try:
        return pwd.getpwuid(USER).pw_name
    except KeyError:
        return str(USER)


NAME = _name()
_BECOME = f"""
import os
os.setgroups([])
os.setgid({USER})
os.setuid({USER})
"""


def spawn(imports: str, body: str, *arguments: str) -> subprocess.Popen[str]:
    """Run Python code as that user, its output in pipes.

    Args:
        imports: what the code needs; done before, as the user may not read this interpreter's folder.
        body: the code.
        arguments: its sys.argv[1:].

    Skips the test where this process cannot become another user.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return subprocess.Popen(
        [sys.executable, "-c", imports + _BECOME + body, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(imports: str, body: str, *arguments: str) -> str:
    """What such code prints, run to its end."""
    process = spawn(imports, body, *arguments)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out
