"""Options of the interpreter that runs a script, as far as a trial can have them."""

from collections.abc import Sequence

from autotune.config import mistakes
from autotune.worker.python_command import letters_of, parsed

OF_LAUNCHERS = ("-u",)
"""Options with which torchrun and deepspeed start python."""
_SCRIPT = "script.py"
_REFUSED = {
    "i": "waits for a terminal when the script ends",
    "x": "leaves out a line of the script",
    "S": "hides the libraries, torch among them",
    "h": "runs nothing",
    "?": "runs nothing",
    "V": "runs nothing",
}


def refused(options: Sequence[str]) -> str:
    """Return why a trial cannot have these options; empty: it can."""
    command = parsed([*options, _SCRIPT])
    if command is None or (command.target, command.args) != (_SCRIPT, ()):
        return f"must be options of python alone, got {mistakes.in_yaml(list(options))}"
    for letter in letters_of(options):
        if letter in _REFUSED:
            return f"must not have -{letter}, which {_REFUSED[letter]}; take it out"
    return ""
