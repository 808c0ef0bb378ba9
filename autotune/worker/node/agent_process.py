"""Start an agent on this node and talk to it. Needs the standard library only."""

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from autotune.worker import interpreter, processes
from autotune.worker.files import TrialFiles, make_private
from autotune.worker.processes import MARKER, kill_marked
from autotune.worker.sandbox import scratch

_GOODBYE_SECONDS = 10.0
_KILLING_SECONDS = 8.0
"""Timeout for processes that do not die at once.

Together with the time to leave it is shorter than the timeout of a call to an actor.
"""
SEND_SECONDS = 20.0
"""An agent that reads nothing of a command for so long is frozen.

The time is shorter than the timeout of a call to an actor.
"""
_POLL_SECONDS = 0.5
_BOOT = "from autotune.worker.node.agent import main; main()"


class AgentProcess:
    """An agent in a clean interpreter of its own, with pipes to it.

    It is also the class of the Ray actor, so its methods take and return plain lines.
    """

    def __init__(
        self,
        host: str,
        log: str,
        env: Mapping[str, str] | None = None,
        devices: Mapping[str, str] | None = None,
    ) -> None:
        """Start the agent.

        Args:
            host: address of this node that ranks on other nodes can reach; loopback if there are
                none.
            log: file that the agent's own messages go to.
            env: the study's changes to the environment; variables that autotune sets itself are
                left out.
            devices: variables that select the agent's devices; None keeps those of this process.
        """
        processes.sweep()
        scratch.sweep()
        self.id = processes.new_agent_id()
        make_private(Path(log).parent)
        with Path(log).open("ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, "--host", host],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=interpreter.quiet(
                    {
                        **processes.inherited(os.environ),
                        **processes.study_variables(env or {}),
                        **(devices or {}),
                        MARKER: self.id,
                    }
                ),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._write_lock = threading.Lock()
        self._mute = False
        """Nothing more may be sent: the agent is being closed, or has read half a command."""

    def pid(self) -> int:
        """Return the agent's process id."""
        return self._process.pid

    def send(self, line: bytes) -> bool:
        """Pass a command on.

        Returns:
            False if the agent is gone or frozen; no later command is passed on then.
        """
        try:
            with self._write_lock:
                self._mute = self._mute or not self._is_taken(line)
                return not self._mute
        except (BrokenPipeError, ValueError):
            return False

    def _is_taken(self, line: bytes) -> bool:
        """Write a line; return False if the agent does not read it. A pipe buffers 64 KiB."""
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        unsent, patience = memoryview(line), SEND_SECONDS
        while unsent:
            if room.poll(1000 * _POLL_SECONDS):
                unsent, patience = unsent[os.write(pipe, unsent) :], SEND_SECONDS
            # Not by the clock: where this process was suspended, the agent may have been suspended, too.
            elif self._mute or (patience := patience - _POLL_SECONDS) <= 0:
                return False
        return True

    def read(self) -> bytes:
        """Return the next report; block until there is one.

        Returns:
            Empty once the agent is gone. No process of it is left then, except those that `close`
                names.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            self._process.wait()
            kill_marked(self.id)
            return b""
        return line

    def taken(self, folder: str, token: str) -> dict[str, bytes]:
        """Return what a trial has left on this node, for a caller on another node; see TrialFiles."""
        return TrialFiles(Path(folder)).taken(token)

    def close(self, patience: float = _GOODBYE_SECONDS) -> str:
        """End the agent and everything it started.

        Args:
            patience: seconds that the agent may take to leave by itself.

        Returns:
            Processes of the agent that cannot be killed, in words; empty if none is left.
        """
        assert self._process.stdin is not None
        self._mute = True
        with self._write_lock:  # a write after the close could reach another file
            self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if processes.living_of(self.id):
            kill_marked(self.id, _KILLING_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILLING_SECONDS)
        return processes.described(processes.living_of(self.id))
