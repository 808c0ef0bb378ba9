"""Queues of studies: one per machine, user, Python, visible devices and processors.

On a database that several people share, a daemon runs the studies that its own user has submitted,
in their virtual environment and on their devices. Other studies are for other daemons. The queue of
a machine is named after it.
"""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Collection
from pathlib import Path

from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.worker.processes import VISIBLE_DEVICES
from launchers.sections import CLUSTER, PLACES, wrong_address
from storage import StoredStudy
from storage.owner import user_name

_HOST = "host"
_RAY = "ray"
_DIGITS = 8
_FIRST_PROCESS = 1
VARIABLE = "AUTOTUNE_MACHINE"
"""Variable with a name that the user gives, and that stays when a container is made anew."""
_LONGEST = 200
_OF_MANY = ("localhost", "localhost.localdomain", "localhost6", "(none)", "")
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))
_ID_LETTERS = 8


def queue_for(spec: StudySpec) -> str:
    """Return the queue that a study belongs to.

    There is one per cluster and one per machine, for each owner (see `owned`).
    """
    place = spec.launcher.place
    return owned(place) if place else this_queue()


def this_queue() -> str:
    """Return the queue of this machine."""
    return owned(f"{_HOST}:{this_machine()}")


def owned(place: str) -> str:
    """Return this process's queue at a place (`host:NAME` or `LAUNCHER:ADDRESS`).

    It depends on the user, Python, devices, and on the processors where these are fewer than the
    machine has, as under taskset.

    Returns:
        The place, the user's name and a digest of the rest, with spaces between them.
    """
    own = json.dumps([sys.prefix, os.environ.get(VISIBLE_DEVICES), *_processors()])
    return f"{place} {user_name()} {hashlib.sha256(own.encode()).hexdigest()[:_DIGITS]}"


def checked(place: str, known: Collection[str]) -> str:
    """Return a place where studies may run.

    Args:
        known: places of the studies in the storage, which are right whatever they look like.

    Raises:
        BadInput: no study is ever in a queue of that place.
    """
    kind, _, name = place.partition(":")
    if kind not in (_HOST, *PLACES) or not name or not name.isprintable() or " " in name:
        raise BadInput(
            f"no study runs at {place!r}: say host:NAME, ray:HOST:PORT as in the study file, or "
            "slurm:CLUSTER; without --cluster the daemon serves this machine"
        )
    if place in known:
        return place
    if kind == _RAY:
        if wrong := wrong_address(name):
            raise BadInput(f"no study runs at {place!r}: {wrong}")
    elif place not in _here():
        there = ", ".join(sorted(known)) or "none yet"
        raise BadInput(
            f"no study runs at {place!r}: this is {' and '.join(_here())}, and the storage has studies "
            f"for {there}. Another name for this machine: {VARIABLE}={name}, here and for autotune start"
        )
    return place


def _here() -> list[str]:
    """Return the places that are here: this machine, and the Slurm cluster of this job."""
    cluster = os.environ.get(CLUSTER)
    return [f"{_HOST}:{this_machine()}", *([f"slurm:{cluster}"] if cluster else [])]


def place_of(queue: str) -> str:
    """Return the place at which the studies of a queue run."""
    return queue.split(" ")[0]


def is_of_job(study: StoredStudy) -> bool:
    """Return whether a study's queue is that of batch jobs: only a job, once it begins, serves it.

    Jobs that `submit` writes name their machine after the cluster of Slurm, or after the study.
    """
    place = place_of(study.queue)
    return place.startswith(("slurm:", f"{_HOST}:slurm-")) or place == f"{_HOST}:{study.name}"


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


def this_machine() -> str:
    """Return the name that the user gives this machine, else the host's.

    Host names that many machines share are extended by an identifier.

    Raises:
        BadInput: the given name is not allowed.
    """
    given = os.environ.get(VARIABLE, "")
    if len(given) > _LONGEST or not given.isprintable() or " " in given:
        raise BadInput(
            f"{VARIABLE} must be at most {_LONGEST} printable characters without spaces, got {given!r}"
        )
    return given or _told_apart(socket.gethostname())


def _told_apart(host: str) -> str:
    if host not in _OF_MANY:
        return host
    found = (path.read_text().strip() for path in _MACHINE_IDS if path.exists())
    return "-".join(
        filter(None, (host or "localhost", next(filter(None, found), "")[:_ID_LETTERS]))
    )
