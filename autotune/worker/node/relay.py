"""Owner of an agent on a node that another process reaches by this one's standard streams.

The first line of the input says which agent to start, later ones are commands to it. The agent's
reports are the output. When the input ends, or the agent does, nothing of the agent is left.
"""

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Mapping
from typing import NoReturn

from autotune.worker.decoding import AsJson
from autotune.worker.node.agent_process import AgentProcess
from autotune.worker.processes import VISIBLE_DEVICES

AGENT_ENDED = 3
"""Exit status where the agent has ended by itself, and its node is well."""
LEFT_BEHIND = 4
"""Exit status where processes of the agent cannot be ended."""
BEAT = b"\n"
BEAT_SECONDS = 5.0
"""Time between two empty lines, which say that the node is there."""
_BATCH_SYSTEM = ("SLURM", "SRUN_")
"""Beginnings of the variables that a batch system sets for each process of a step."""


@dataclasses.dataclass(frozen=True)
class AgentOrder(AsJson):
    """Description of the agent that a relay is to start.

    Attributes:
        host: address of the node, as for AgentProcess.
        env: variables of the study, and those of the batch job in the place of the step's.
        devices: indices of the agent's CUDA devices among those of the step.
    """

    host: str
    env: dict[str, str]
    devices: list[int]


class Relay:
    """Owner of one agent, which passes its lines on."""

    def __init__(self, agent: AgentProcess) -> None:
        self._agent = agent
        self._writing = threading.Lock()
        self._closing = threading.Event()

    def serve(self) -> str:
        """Serve until the input ends, or end this process with the agent; return what is left of it."""
        for act in (self._report, self._beat):
            threading.Thread(target=act, daemon=True).start()
        for line in sys.stdin.buffer:
            self._agent.send(line)
        self._closing.set()
        return self._agent.close()

    def _report(self) -> None:
        while line := self._agent.read():
            self._write(line)
        if not self._closing.is_set():
            os._exit(AGENT_ENDED)

    def _beat(self) -> None:
        """Write empty lines: srun does not notice that its step was lost with the node."""
        while not self._closing.wait(BEAT_SECONDS):
            self._write(BEAT)

    def _write(self, line: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):  # the reader has gone, so the input ends
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def main() -> NoReturn:
    """Serve until the input or the agent ends."""
    if not (line := sys.stdin.buffer.readline()):
        sys.exit(0)
    order = AgentOrder.from_text(line)
    devices = selected(order.devices, os.environ)
    for name in [name for name in os.environ if name.startswith(_BATCH_SYSTEM)]:
        del os.environ[name]
    left = Relay(AgentProcess(order.host, None, order.env, devices)).serve()
    if left:
        print(f"left behind: {left}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(LEFT_BEHIND if left else 0)  # other threads may be reading


def selected(indices: list[int], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that select these of the CUDA devices of a step; none hides all."""
    visible = [name for name in environment.get(VISIBLE_DEVICES, "").split(",") if name]
    names = [visible[index] for index in indices] if visible else map(str, indices)
    return {VISIBLE_DEVICES: ",".join(names)}


if __name__ == "__main__":
    main()
