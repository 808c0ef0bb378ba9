"""Keys of the leases on studies, and of those of processes that wait for a study."""

import hashlib

_WAITS = " #"
"""Mark between queue and study in the key of a process that waits for the study."""
_LONGEST_KEY = 255
"""Length of the key's column, see `LeaseRow`."""
_DIGITS = 16


def key_of(study_id: int) -> str:
    """Return the key of a study's lease."""
    return f"study:{study_id}"


def waiting_key(queue: str, study_id: int) -> str:
    """Return the key of the lease of a process that waits for a single study of a queue.

    Such a process runs the study as long as that is in this queue. Where the key would be too long, a
    digest takes the place of the cluster or machine: by its second word roles tell the owner.
    """
    key = f"{queue}{_WAITS}{study_id}"
    if len(key) <= _LONGEST_KEY:
        return key
    place, _, rest = queue.partition(" ")
    digest = hashlib.sha256(place.encode()).hexdigest()[:_DIGITS]
    return f"{digest} {rest}{_WAITS}{study_id}"


def is_waiting(key: str) -> bool:
    """Return whether a lease is one of a process that waits for a single study."""
    return _WAITS in key
