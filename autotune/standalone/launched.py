"""What a launch command comes to: a script, and how the processes that run it are started."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.errors import BadInput
from autotune.worker.protocol import PYTHON


class NoScript(BadInput):
    """A command runs no script of torch, as far as it can be taken apart."""


@dataclass(frozen=True)
class Launched:
    """A launch command taken apart.

    Attributes:
        target: the script's file, or the module behind -m.
        is_module: which of them.
        args: of the script.
        workers: ranks on all nodes; None where the launcher takes as many as there are devices.
        env: variables that the command sets for the script.
        launch: whose rules its processes follow, as under workload.launch.
        options: of the interpreter that runs the script.
        nodes: that the ranks are spread over.
        interpreter: words that start the command's python; none: it is not known.
    """

    target: str
    is_module: bool
    args: tuple[str, ...]
    workers: int | None = 1
    env: dict[str, str] = field(default_factory=dict)
    launch: str = PYTHON
    options: tuple[str, ...] = ()
    nodes: int = 1
    interpreter: tuple[str, ...] = ()

    @property
    def workers_per_node(self) -> int | None:
        """Ranks on each node; None where the launcher takes as many as there are devices."""
        return None if self.workers is None else self.workers // self.nodes

    @property
    def script(self) -> tuple[str, ...]:
        """The script with its arguments, as words that a launcher takes."""
        return (*(("-m",) if self.is_module else ()), self.target, *self.args)


def by_torchrun(script: Sequence[str], ranks: str, nodes: str = "1") -> str:
    """Return the command that has torchrun start a script.

    Args:
        script: with its arguments.
        ranks: on each node.
        nodes: their number.
    """
    several = ["--nnodes", nodes] if nodes != "1" else []
    return shlex.join(["torchrun", *several, "--nproc-per-node", ranks, *script])
