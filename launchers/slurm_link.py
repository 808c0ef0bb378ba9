"""Connection to an agent through the step of a Slurm job that it is in."""

import os
import sys
import threading
import time
from pathlib import Path

from autotune.worker import processes, starters
from autotune.worker.files import make_private
from autotune.worker.node.agent_process import LinePipe
from autotune.worker.node.relay import AGENT_ENDED, BEAT, BEAT_SECONDS, AgentOrder
from launchers.base import Link
from launchers.placement import ClusterNode
from launchers.slurm_allocation import Allocation

OF_SLURM = "SLURM_"
"""Beginning of the variables of a job and of a step."""
_KEPT = "SLURM_CONF"
_BOOT = "from autotune.worker.node.relay import main; main()"
_SRUN = (
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none"),
    "--immediate=30",
)
"""Step with all that the job has on its node, beside other steps. Seconds: a step that does not start
by then waits for a node that is away."""
_GOODBYE_SECONDS = 20.0
"""Time for the relay to end an agent that does not leave; together with the grace of srun it is less
than the half minute that a link may take."""
_SILENT_SECONDS = 4 * BEAT_SECONDS
"""Silence of a relay after which its node is lost."""
_TICK_SECONDS = 1.0


class SrunLink(Link):
    """Connection to an agent through the step that it is in."""

    def __init__(
        self, allocation: Allocation, node: ClusterNode, order: AgentOrder, log: Path
    ) -> None:
        """Start the step; what it prints goes to the log."""
        self.host, self.where = order.host, node.host
        self._avoided = allocation.avoided
        self._closed = False
        command = [*_SRUN, f"--jobid={allocation.job}", f"--nodelist={node.id}"]
        inherited = processes.inherited(os.environ)
        # The options of the job are in its variables, and srun would take them for this step.
        env = {n: v for n, v in inherited.items() if not n.startswith(OF_SLURM) or n == _KEPT}
        make_private(log.parent)
        with log.open("ab") as file:
            self._pipe = LinePipe(
                [*starters.named(command), sys.executable, "-P", "-c", _BOOT], env, file
            )
        self._pipe.send(order.to_line())
        self._silence = 0.0
        """Seconds since the relay was heard last, as far as this process has run."""
        self._heard = False

    def send(self, line: bytes) -> bool:
        return self._pipe.send(line)

    def read(self) -> bytes:
        while (line := self._pipe.read()) == BEAT:
            self._hear()
        self._hear()
        if not line and not self._closed:
            self.mark_suspect()
        return line

    def _hear(self) -> None:
        self._silence = 0.0
        if not self._heard:
            self._heard = True
            threading.Thread(target=self._watch, name="relay", daemon=True).start()

    def _watch(self) -> None:
        """End srun once its step is silent: it does not notice that the node is lost."""
        while not self._closed and self._pipe.status() is None:
            time.sleep(_TICK_SECONDS)
            self._silence += _TICK_SECONDS  # not by the clock: this process may be suspended
            if self._silence > _SILENT_SECONDS:
                starters.end([self._pipe.pid()])
                return

    def loss_reason(self) -> str:
        if self._closed or self._pipe.status() in (None, AGENT_ENDED):
            return ""
        return f"node {self.where} was lost (status {self._pipe.status()} of srun, see agent.log)"

    def mark_suspect(self) -> None:
        self._avoided.add(self.where)

    def close(self) -> str:
        self._closed = True
        if not self._pipe.leave(_GOODBYE_SECONDS):
            starters.end([self._pipe.pid()])
        return ""
