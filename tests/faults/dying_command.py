"""Runs the autotune command, and kills it with SIGKILL at one call of one of its methods.

    python dying_command.py before|after CLASS.METHOD CALL argument...

`before` dies instead of the call, `after` when the call has returned: its transaction is committed.
"""

import functools
import itertools
import os
import signal
import sys

from optuna.storages._cached_storage import _CachedStorage

from autotune.__main__ import main
from storage import TrialLedger
from storage.attempt_records import AttemptRecords
from storage.claims import Claims
from storage.repository import Environments, Messages, NoiseRecords, Recommendations

OWNERS = {
    owner.__name__: owner
    for owner in (
        *(Claims, AttemptRecords, Messages, Environments, NoiseRecords, Recommendations),
        TrialLedger,
    )
} | {"Optuna": _CachedStorage}


def plant_death(when: str, target: str, fatal_call: int) -> None:
    """Have the method kill this process when it is called for that time."""
    owner_name, _, method_name = target.partition(".")
    owner = OWNERS[owner_name]
    original = getattr(owner, method_name)
    calls = itertools.count(1)

    @functools.wraps(original)
    def deadly(*arguments, **options):
        fatal = next(calls) == fatal_call
        if fatal and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if fatal and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method_name, deadly)


if __name__ == "__main__":
    _, when, target, call, *command = sys.argv
    assert when in ("before", "after")
    plant_death(when, target, int(call))
    sys.argv = ["autotune", *command]
    main()
