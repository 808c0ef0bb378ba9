"""Queues of studies: one per user, Python, visible devices and processors.

On a database that several people share, a daemon runs the studies that its own user has submitted,
in their virtual environment and on their devices. Other studies are for other daemons.
"""

import hashlib
import json
import os
import sys

from autotune.errors import BadInput
from autotune.worker.processes import VISIBLE_DEVICES
from storage import StoredStudy
from storage.holders import user_name

PLACES = ("host", "ray", "slurm")
"""Kinds of places that have queues: machines, and the clusters of launchers."""
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


def checked(place: str) -> str:
    """Return a place where studies may run.

    Raises:
        BadInput: no study is ever in a queue of that place.
    """
    kind, _, name = place.partition(":")
    if kind not in PLACES or not name or not name.isprintable() or " " in name:
        raise BadInput(
            f"no study runs at {place!r}: say host:NAME, ray:HOST:PORT as in the study file, or "
            "slurm:CLUSTER; without --cluster the daemon serves this machine"
        )
    return place


def place_of(queue: str) -> str:
    """Return the place at which the studies of a queue run."""
    return queue.split(" ")[0]


def owner_of(queue: str) -> str:
    """Return a description of a queue's owner."""
    _, *own = queue.split(" ")
    if not own:
        return "an earlier version of autotune"
    if own[0] != user_name():
        return f"the user {own[0]}"
    return "another Python, or of other CUDA_VISIBLE_DEVICES or processors (taskset)"


def refuse_others(study: StoredStudy, *, force: bool) -> None:
    """Refuse to stop or delete a study of another owner, unless that is meant.

    This keeps accidents off. The border is what the database permits a role.

    Raises:
        BadInput: the study is another owner's.
    """
    if force or study.owner in ("", user_name()):
        return
    raise BadInput(
        f"{study.name} is a study of {study.owner}; with --force it is done all the same, and the "
        f"history tells that it was {user_name()}"
    )


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
