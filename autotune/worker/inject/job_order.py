"""Configuration in a user's own job, passed by `autotune run` to the processes of a command.

It imports nothing of torch before it is known that this process is the one to be changed.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.worker.decoding import AsJson
from autotune.worker.inject import speed_report
from autotune.worker.inject.settings_copies import SettingsCopies
from autotune.worker.protocol import FileCopy, Script
from autotune.worker.python_command import Program, parsed

VARIABLE = "AUTOTUNE_RUN"
"""Environment variable that holds an Order as JSON."""
IN_RANK = "AUTOTUNE_SPAWNED"
"""Environment variable of a process that the script starts as a rank by torch.multiprocessing."""
_TRACKER = "multiprocessing.resource_tracker"
"""Module of a helper that inherits that variable with the first rank."""


@dataclass(frozen=True)
class Order(AsJson):
    """Changes for a job, and the script whose processes they are meant for.

    Attributes:
        knobs: a value for every knob.
        copies: of settings files that the script reads; their texts are written already.
    """

    script: Script
    knobs: dict[str, Any]
    copies: tuple[FileCopy, ...] = ()


def begin(command: Sequence[str]) -> None:
    """Change this process if its command runs the script; launchers and helpers stay as they are.

    Args:
        command: of this process, as sys.orig_argv has it.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return
    order = Order.from_text(text)
    script = order.script
    # Not for what the rank starts in turn.
    in_rank = os.environ.pop(IN_RANK, None) and not any(_TRACKER in word for word in command)
    if not in_rank and not runs(command, script):
        return
    from autotune.worker.effects import process
    from autotune.worker.inject import spawning
    from autotune.worker.inject.changes import Changes
    from autotune.worker.inject.constructed import Constructed

    if not in_rank:
        spawning.pass_on(IN_RANK)

    copies = SettingsCopies(order.copies)
    copies.begin()
    constructed = Constructed(script.constructed)
    if script.constructed:
        constructed.watch()
    changes = Changes(order.knobs, script.changes, script.baseline, in_job=True)
    changes.begin()
    if "cpu_affinity" in script.changes and process.share_of_job(order.knobs):
        changes.met("cpu_affinity")
    _say_what_is_idle(changes, copies, constructed)
    if address := os.environ.get(speed_report.ADDRESS):
        from autotune.worker.inject import meter

        meter.begin(address, changes.built, samples=script.samples, always=script.fixed_samples)


def runs(command: Sequence[str], script: Program) -> bool:
    """Return whether a command of python runs a script, in whichever folder its file is."""
    run = parsed(command[1:])
    return run is not None and (run.name, run.is_module) == (script.name, script.is_module)


def _say_what_is_idle(changes: Any, copies: SettingsCopies, constructed: Any) -> None:
    from autotune.worker.inject.place import is_first
    from autotune.worker.inject.steps import after_steps

    checked = False

    def look(*_: Any) -> None:
        nonlocal checked
        # The hook stays: torch iterates over the hooks meanwhile, and the script may have its own.
        if checked:
            return
        checked = True
        if not is_first():
            return
        if idle := sorted({*changes.idle(), *changes.set_back(), *constructed.unmet()}):
            print(
                f"autotune: {', '.join(idle)}: has found nothing to act on in this script, or was set "
                "back by it; the speed-up of the study is not to be expected",
                file=sys.stderr,
            )
        if unread := copies.unread():
            print(
                f"autotune: {', '.join(unread)}: has not been read, so what the study recommends in it "
                "has no effect",
                file=sys.stderr,
            )

    after_steps(look)
