"""Forms for a shell: variables that act on any job, and arguments of the user's own script."""

import shlex
from collections.abc import Mapping
from typing import Any

from autotune.config import arguments, commands
from autotune.errors import BadInput
from autotune.export import config_copies
from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, arguments_of, nccl, own_words, told
from search_spaces import CATALOGUE, defaults
from search_spaces.knob import VARIABLES, Fields, Knobs, Words

ACTING = tuple(
    name for name, knob in CATALOGUE.items() if knob.inject and knob.inject.through == VARIABLES
)
"""Knobs that libraries read from the environment."""
HERE = "."
"""Folder that replaces a trial's folder outside a study."""


def env(best: BestConfig) -> Said:
    """Return lines `export NAME=value`; of a script also the variables that it reads a knob from."""
    of_ranks = nccl(best)  # where this runs there may be none
    acting = {name: _variables_of(name, of_ranks) for name in ACTING}
    own = _of_script(best)
    both = {name: _both(own[name], acting[name]) for name in own if name in acting}
    fields, unsaid = told(best, {**acting, **own, **both})
    lines = [f"export {name}={_in_shell(name, value)}\n" for name, value in fields.items()]
    return Said("".join(lines), unsaid)


def _in_shell(name: str, value: str) -> str:
    """Return a value for a shell; the allocator keeps its other settings there, as trials did."""
    if "expandable_segments" not in value:
        return shlex.quote(value)
    from autotune.worker.effects import process  # with it comes torch

    if (name, value) != (process.ALLOCATOR[0], process.EXPANDABLE):
        return shlex.quote(value)
    others = "".join(f"${{{one}:+${one},}}" for one in process.ALLOCATOR)
    return f'"{others}{value}"'


def _variables_of(name: str, version: tuple[int, ...] | None) -> Words:
    def say(value: Any, _: Knobs) -> Fields | None:
        if name == "cpu_threads":
            return {"OMP_NUM_THREADS": str(value)} if value else None
        from autotune.worker.effects import process  # with it comes torch

        # None of them: a variable cannot be exported away.
        return dict(process.environment({**defaults(), name: value}, version)) or None

    return Words(say)


def _of_script(best: BestConfig) -> dict[str, Words]:
    if best.script is None:
        return {}
    flags, turned = best.script["flags"], best.script["turned"]
    return own_words(
        best.script, lambda name: dict(arguments.variables(flags, {name: turned[name]}))
    )


def _both(first: Words, second: Words) -> Words:
    """Return variables of the script and of a library, as trials have both."""

    def say(value: Any, knobs: Knobs) -> Fields | None:
        return {**(first.say(value, knobs) or {}), **(second.say(value, knobs) or {})} or None

    return Words(say)


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
    if best.is_of_command:
        return Said(f"{shlex.join(recommended(best))}\n", {})
    script = best.script
    found, unsaid = told(best, own_words(script, lambda name: _argument(name, script)))
    words = [word for some in found.values() for word in some]
    return Said(f"{shlex.join(words)}\n" if words else "", unsaid)


def recommended(best: BestConfig) -> tuple[str, ...]:
    """Return the command of a study with the recommended values; `{folder}` is the present one.

    Copies of the settings files that it is given are written below .autotune.

    Raises:
        BadInput: the file is not of a command, or a settings file has no such field.
    """
    if best.script is None or not best.is_of_command:
        raise BadInput("best.yaml is of no command of its own: give your launch command after `--`")
    flags: dict[str, str] = best.script["flags"]
    words = commands.argv(best.script["command"], best.knobs, HERE)
    turned = {name: value for name, value in best.script["turned"].items() if name in flags}
    return config_copies.write_and_give(
        words, flags, turned, variables={}, in_process=False
    ).arguments


def _argument(name: str, script: Mapping[str, Any]) -> Fields | None:
    # None of them: a variable, or a switch that is to be taken away.
    words = arguments_of(name, script)
    return {name: words} if words else None
