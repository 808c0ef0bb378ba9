"""The arguments of the user's own script, as the study maps knobs to them."""

import shlex
from typing import Any

from autotune.config import arguments
from autotune.errors import BadInput
from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, told
from autotune.export.recommended_command import is_of_command, recommended
from search_spaces.words import Fields, Knobs, Words


def argv(best: BestConfig) -> Said:
    """Return one line for a shell, to follow the arguments that the script has today.

    Parsers take the last of two values. For a study over a command it is the whole command.

    Raises:
        BadInput: there is no script.
    """
    if best.script is None:
        raise BadInput(
            "argv is for studies over a script, whose workload.flags name its arguments; this one is "
            "over a workload"
        )
    if is_of_command(best):
        return Said(f"{shlex.join(recommended(best))}\n", {})
    flags: dict[str, str] = best.script["flags"]
    found, unsaid = told(best, {name: _argument(name, best.script) for name in flags})
    words = [word for some in found.values() for word in some]
    return Said(f"{shlex.join(words)}\n" if words else "", unsaid)


def _argument(name: str, script: dict[str, Any]) -> Words:
    def say(value: Any, _: Knobs) -> Fields | None:
        # None of them: a variable, or a switch that is to be taken away.
        words = arguments.changed((), script["flags"], {name: script["turned"].get(name, value)})
        return {name: words} if words else None

    return Words(say)
