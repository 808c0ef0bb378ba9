"""Start an agent on this node and talk to it. Needs the standard library only."""

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from autotune.worker import interpreter, proc, processes
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
_THREADS = "OMP_NUM_THREADS"


class LinePipe:
    """Child process that takes commands and gives reports, as lines."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: BinaryIO | None
    ) -> None:
        """Start the child in a session of its own.

        Args:
            log: file of its messages; None: that of this process.
        """
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._write_lock = threading.Lock()
        self._mute = False
        """Nothing more may be sent: the pipe is being closed, or half a command was read."""
        self._leaving = False

    def pid(self) -> int:
        """Return the child's process id."""
        return self._process.pid

    def send(self, line: bytes) -> bool:
        """Pass a command on.

        Returns:
            False if the child is gone or frozen; no later command is passed on then.
        """
        try:
            with self._write_lock:
                self._mute = self._mute or not self._is_taken(line)
                return not self._mute
        except (BrokenPipeError, ValueError):
            return False

    def _is_taken(self, line: bytes) -> bool:
        """Write a line; return False if the child does not read it. A pipe buffers 64 KiB."""
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        unsent, patience = memoryview(line), SEND_SECONDS
        while unsent:
            if room.poll(1000 * _POLL_SECONDS):
                unsent, patience = unsent[os.write(pipe, unsent) :], SEND_SECONDS
            # Not by the clock: where this process was suspended, the child may have been suspended, too.
            elif self._mute or (patience := patience - _POLL_SECONDS) <= 0:
                return False
        return True

    def read(self) -> bytes:
        """Return the next report; block until there is one. Empty once the child has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            return line
        self._process.wait()
        return b""

    def status(self) -> int | None:
        """Return the exit status of the child, negative for a signal; None as long as it lives."""
        return self._process.poll()

    def leave(self, patience: float) -> bool:
        """End the child's input; return whether it ends in so many seconds."""
        assert self._process.stdin is not None
        self._leaving = self._mute = True
        with self._write_lock:  # a write after the close could reach another file
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return self._process.returncode is not None


class AgentProcess(LinePipe):
    """An agent in a clean interpreter of its own, with pipes to it.

    Its methods take and return plain lines, so that a Ray actor can have them.
    """

    def __init__(
        self,
        host: str,
        log: str | None,
        env: Mapping[str, str] | None = None,
        devices: Mapping[str, str] | None = None,
    ) -> None:
        """Start the agent.

        Args:
            host: address of this node that ranks on other nodes can reach; loopback if there are
                none.
            log: file that the agent's own messages go to; None: that of this process's messages.
            env: the study's changes to the environment; variables that autotune sets itself are
                left out.
            devices: variables that select the agent's devices; None keeps those of this process.
        """
        processes.sweep()
        scratch.sweep()
        self.id = processes.new_agent_id()
        settings = interpreter.quiet(
            {
                **processes.inherited(os.environ),
                **processes.study_variables(env or {}),
                **(devices or {}),
                MARKER: self.id,
            }
        )
        with _opened(log) as log_file:
            super().__init__(
                [sys.executable, "-P", "-c", _BOOT, "--host", host], settings, log_file
            )

    def send(self, line: bytes) -> bool:
        """Pass a command on.

        Returns:
            False if the agent is gone or frozen. A frozen one is killed: should it go on, it would wait
                for the rest of the command for ever, and report meanwhile that it is well.
        """
        taken = super().send(line)
        if not taken and not self._leaving:
            self._process.kill()
        return taken

    def read(self) -> bytes:
        """Return the next report; block until there is one.

        Returns:
            Empty once the agent is gone. No process of it is left then, except those that `close`
                names.
        """
        line = super().read()
        if not line:
            kill_marked(self.id)
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
        if not self.leave(patience):
            self._process.kill()
        if processes.living_of(self.id):
            kill_marked(self.id, _KILLING_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILLING_SECONDS)
        return processes.described(processes.living_of(self.id))


class ActorAgent(AgentProcess):
    """An agent in a Ray actor, with the number of threads that its node's Ray was started with.

    Ray sets the number to the CPUs of the actor where it is not set.
    """

    def __init__(self, *arguments: Any) -> None:
        """Start the agent; the arguments are those of AgentProcess."""
        raylet = proc.variables_of(os.getppid())
        if not any(variable.startswith(f"{_THREADS}=".encode()) for variable in raylet):
            os.environ.pop(_THREADS, None)
        super().__init__(*arguments)


@contextlib.contextmanager
def _opened(log: str | None) -> Iterator[BinaryIO | None]:
    """Open a log in a folder of this user's alone; None stays None."""
    if log is None:
        yield None
        return
    make_private(Path(log).parent)
    with Path(log).open("ab") as file:
        yield file
