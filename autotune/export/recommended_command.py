"""Command of a study with the recommended values."""

from pathlib import Path

from autotune.config import commands, fields
from autotune.errors import BadInput
from autotune.export import config_copies
from autotune.export.best import BestConfig
from autotune.paths import tuned_files

HERE = "."
"""Folder that replaces a trial's folder outside a study."""


def is_of_command(best: BestConfig) -> bool:
    """Return whether the study was one over a command."""
    return best.script is not None and "command" in best.script


def recommended(best: BestConfig) -> tuple[str, ...]:
    """Return the command with the recommended values; `{folder}` is the present one.

    Copies of the settings files that it is given are written below .autotune.

    Raises:
        BadInput: the file is not of a command, or a settings file has no such field.
    """
    if best.script is None or not is_of_command(best):
        raise BadInput("best.yaml is of no command of its own: give your launch command after `--`")
    flags: dict[str, str] = best.script["flags"]
    given = fields.given(
        commands.argv(best.script["command"], best.knobs, HERE),
        flags,
        {name: value for name, value in best.script["turned"].items() if name in flags},
        variables={},
        workdir=Path.cwd(),
        folder=tuned_files(Path.cwd()),
        in_process=False,
    )
    for copy in given.copies:
        config_copies.write(copy)
    return given.arguments
