"""Token of a Ray of our own.

Its ports run code for every process that reaches them: for every local user.
"""

import contextlib
import importlib
import os
import secrets
from collections.abc import Iterator
from typing import Any

MODE = "RAY_AUTH_MODE"
_TOKEN = "RAY_AUTH_TOKEN"
SINCE = (2, 52)
"""The first version of Ray that checks tokens; earlier ones let every client in."""
_token = secrets.token_hex(32)
"""One token for the lifetime of this process."""


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """Give a Ray that is started meanwhile a token that only it and this process have.

    Ray itself would make one, from 2.60 on, and leave it in a file that others may be able to read.
    A value of RAY_AUTH_MODE that the user has set stays.
    """
    if MODE in os.environ:
        yield
        return
    before = os.environ.get(_TOKEN)
    os.environ.update({MODE: "token", _TOKEN: _token})
    try:
        read_again()
        yield
    finally:
        del os.environ[MODE]
        if before is None:
            del os.environ[_TOKEN]
        else:
            os.environ[_TOKEN] = before


def read_again() -> None:
    """Have Ray read these variables once more; it reads them as it is imported.

    No Ray may be connected.
    """
    with contextlib.suppress(ImportError, AttributeError):  # a version without tokens
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")  # first, so that nothing looks for a token that is gone
        raylet.AuthenticationTokenLoader.instance().reset_cache()
