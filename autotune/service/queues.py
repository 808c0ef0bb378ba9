"""Queues of studies: one per user, Python and visible devices.

On a database that several people share, a daemon runs the studies that its own user has submitted,
in their virtual environment and on their devices. Other studies are for other daemons.
"""

import hashlib
import json
import os
import pwd
import sys

from autotune.worker.processes import VISIBLE_DEVICES

_DIGITS = 8


def owned(place: str) -> str:
    """Return this process's queue at a place (`host:NAME` or `LAUNCHER:ADDRESS`).

    It depends on the user, Python and devices.

    Returns:
        The place, the user's name and a digest of the rest, with spaces between them.
    """
    own = json.dumps([sys.prefix, os.environ.get(VISIBLE_DEVICES)])
    return f"{place} {_user()} {hashlib.sha256(own.encode()).hexdigest()[:_DIGITS]}"


def place_of(cluster: str) -> str:
    """Return the place at which the studies of a queue run."""
    return cluster.split(" ")[0]


def owner_of(cluster: str) -> str:
    """Return a description of a queue's owner."""
    _, *own = cluster.split(" ")
    if not own:
        return "an earlier version of autotune"
    if own[0] != _user():
        return f"the user {own[0]}"
    return "another Python, or of other CUDA_VISIBLE_DEVICES"


def _user() -> str:
    """Return the name of this process's account, whatever the environment says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name.replace(" ", "_")
    except KeyError:  # an account without a name, as in containers
        return str(os.geteuid())
