"""Owner of an agent on a node that another process reaches by this one's standard streams.

The first line of the input says which agent to start, later ones are commands to it. The agent's
reports are the output. When the input ends, or the agent does, nothing of the agent is left.
"""

import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import NoReturn

from autotune.worker.node.agent_process import AgentProcess
from autotune.worker.processes import VISIBLE_DEVICES

AGENT_ENDED = 3
"""Exit status where the agent has ended by itself, and its node is well."""
_BATCH_SYSTEM = "SLURM"
"""Beginning of the variables that a batch system sets for each process of a step."""


@dataclasses.dataclass(frozen=True)
class AgentOrder:
    """What a relay is to start.

    Attributes:
        host: address of the node, as for AgentProcess.
        env: variables of the study, and those of the batch job in the place of the step's.
        devices: indices of the agent's CUDA devices among those of the step.
    """

    host: str
    env: dict[str, str]
    devices: list[int]

    def to_line(self) -> bytes:
        """Return the first line of the input."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


def main() -> NoReturn:
    """Serve until the input or the agent ends."""
    if not (line := sys.stdin.buffer.readline()):
        sys.exit(0)
    order = AgentOrder(**json.loads(line))
    devices = selected(order.devices, os.environ)
    for name in [name for name in os.environ if name.startswith(_BATCH_SYSTEM)]:
        del os.environ[name]
    agent = AgentProcess(order.host, None, order.env, devices)
    closing = threading.Event()
    threading.Thread(target=_report, args=(agent, closing), daemon=True).start()
    for line in sys.stdin.buffer:
        agent.send(line)
    closing.set()
    if left := agent.close():
        print(f"left behind: {left}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(bool(left))  # the other thread may be reading


def selected(indices: list[int], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that select these of the CUDA devices of a step; none hides all."""
    visible = [name for name in environment.get(VISIBLE_DEVICES, "").split(",") if name]
    names = [visible[index] for index in indices] if visible else map(str, indices)
    return {VISIBLE_DEVICES: ",".join(names)}


def _report(agent: AgentProcess, closing: threading.Event) -> None:
    with contextlib.suppress(OSError):  # the reader has gone, so the input ends
        while line := agent.read():
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        if not closing.is_set():
            os._exit(AGENT_ENDED)


if __name__ == "__main__":
    main()
