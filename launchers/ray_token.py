"""A token for a Ray of our own: its ports run code for whoever reaches them: every local user."""

import contextlib
import importlib
import os
import secrets
from collections.abc import Iterator
from typing import Any

MODE = "RAY_AUTH_MODE"
_TOKEN = "RAY_AUTH_TOKEN"
SINCE = (2, 52)
"""The first Ray that heeds them; earlier ones ask nobody."""
_token = secrets.token_hex(32)
"""One for as long as this process lives."""


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """A Ray that is started meanwhile wants a token that only it and this process have.

    Ray itself would make one, from 2.60 on, and leave it in a file that others may be able to read. What
    the user has said in RAY_AUTH_MODE stays.
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
    """Have Ray, which reads these variables as it is imported, read them once more. No Ray may be
    connected."""
    with contextlib.suppress(ImportError, AttributeError):  # of a version without tokens
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")  # first: what still runs then looks for no token that is gone
        raylet.AuthenticationTokenLoader.instance().reset_cache()
