"""The command of a study with the recommended values."""

from collections.abc import Mapping
from typing import Any

from autotune.errors import BadInput
from autotune.export.best import BestConfig
from autotune.spec import StudySpec, commands

HERE = "."
"""What stands for the folder of a trial outside a study."""


def command_of(spec: StudySpec, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """What best.yaml says, under `script`, of the command of a study.

    Args:
        spec: over a command.
        knobs: that are recommended.
    """
    assert spec.workload.command is not None
    command, baseline = spec.workload.command, spec.full_baseline()
    turned = {name: value for name, value in knobs.items() if value != baseline[name]}
    nothing: dict[str, Any] = {"flags": {}, "changes": []}
    return {"command": list(command), "turned": turned, **nothing}


def is_of_command(best: BestConfig) -> bool:
    """Whether the study was one over a command."""
    return best.script is not None and "command" in best.script


def recommended(best: BestConfig) -> tuple[str, ...]:
    """The command with the recommended values; `{folder}` is the present one.

    Raises:
        BadInput: the file is not of a command.
    """
    if best.script is None or not is_of_command(best):
        raise BadInput("best.yaml is of no command of its own: give your launch command after `--`")
    return commands.argv(best.script["command"], best.knobs, HERE)
