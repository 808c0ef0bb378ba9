"""Whose queue a study waits in: that of one user, with one Python and the devices that they may see.

On a database that several people share, a daemon runs what its own user has asked for, in the virtual
environment and on the devices that it was asked for with; everything else is another daemon's.
"""

import hashlib
import json
import os
import pwd
import sys

from autotune.worker.processes import VISIBLE_DEVICES

_DIGITS = 8


def owned(place: str) -> str:
    """Return the queue at a place (`host:NAME` or `ray:ADDRESS`) of this process's user, Python and
    devices.

    Returns:
        The place, the user's name and a digest of the rest, with spaces between them.
    """
    own = json.dumps([sys.prefix, os.environ.get(VISIBLE_DEVICES)])
    return f"{place} {_user()} {hashlib.sha256(own.encode()).hexdigest()[:_DIGITS]}"


def place_of(cluster: str) -> str:
    """Where the studies of a queue run."""
    return cluster.split(" ")[0]


def owner_of(cluster: str) -> str:
    """Return the owner of a queue, in words."""
    _, *own = cluster.split(" ")
    if not own:
        return "an earlier version of autotune"
    if own[0] != _user():
        return f"the user {own[0]}"
    return "another Python, or of other CUDA_VISIBLE_DEVICES"


def _user() -> str:
    """By the account of this process, whatever the environment says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name.replace(" ", "_")
    except KeyError:  # as in containers
        return str(os.geteuid())
