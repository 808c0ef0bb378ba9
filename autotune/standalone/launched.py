"""Result of parsing a launch command: a script, and the processes that run it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.errors import BadInput
from autotune.worker.protocol import PYTHON
from autotune.worker.python_command import Program

COMMAND_FIELD = (
    "workload.command (a list of its words, {knob} where a value goes: `autotune schema`)"
)
"""Field of a study file for what is no script, in words."""


class NoScript(BadInput):
    """Error for a command in which no script of torch is found."""


@dataclass(frozen=True)
class Launched(Program):
    """Parsed launch command of a script.

    Attributes:
        workers: ranks on all nodes; None where the launcher takes as many as there are devices.
        env: variables that the command sets for the script.
        launch: launcher whose rules its processes follow, as under workload.launch.
        options: of the interpreter that runs the script.
        interpreter: words that start the command's python; empty: it is not known.
    """

    workers: int | None = 1
    env: dict[str, str] = field(default_factory=dict)
    launch: str = PYTHON
    options: tuple[str, ...] = ()
    nodes: int = 1
    interpreter: tuple[str, ...] = ()

    @property
    def workers_per_node(self) -> int | None:
        """Return the ranks on each node; None where the launcher takes as many as there are devices."""
        return None if self.workers is None else self.workers // self.nodes


def by_torchrun(script: Sequence[str], ranks: str, nodes: str = "1") -> str:
    """Return the torchrun command for a script.

    Args:
        ranks: number on each node.
    """
    several = ["--nnodes", nodes] if nodes != "1" else []
    return shlex.join(["torchrun", *several, "--nproc-per-node", ranks, *script])
