"""Queues of studies: one per user, Python, visible devices and processors.

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
_FIRST_PROCESS = 1


def owned(place: str) -> str:
    """Return this process's queue at a place (`host:NAME` or `LAUNCHER:ADDRESS`).

    It depends on the user, Python, devices, and on the processors where these are fewer than the
    machine has, as under taskset.

    Returns:
        The place, the user's name and a digest of the rest, with spaces between them.
    """
    own = json.dumps([sys.prefix, os.environ.get(VISIBLE_DEVICES), *_processors()])
    return f"{place} {user_name()} {hashlib.sha256(own.encode()).hexdigest()[:_DIGITS]}"


def place_of(cluster: str) -> str:
    """Return the place at which the studies of a queue run."""
    return cluster.split(" ")[0]


def owner_of(cluster: str) -> str:
    """Return a description of a queue's owner."""
    _, *own = cluster.split(" ")
    if not own:
        return "an earlier version of autotune"
    if own[0] != user_name():
        return f"the user {own[0]}"
    return "another Python, or of other CUDA_VISIBLE_DEVICES or processors (taskset)"


def _processors() -> list[list[int]]:
    """Return the processors that this process may use; nothing where it may use all.

    All are those of process 1: a container that is made anew may have others each time.
    """
    own = os.sched_getaffinity(0)
    try:
        everything = os.sched_getaffinity(_FIRST_PROCESS)
    except OSError:  # another user's, under a security module
        return []
    return [] if own == everything else [sorted(own)]


def user_name() -> str:
    """Return the name of this process's account, whatever the environment says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name.replace(" ", "_")
    except KeyError:  # an account without a name, as in containers
        return str(os.geteuid())
