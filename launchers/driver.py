"""The process that talks to Ray, seen from the process that must outlive it.

Sockets and logs of a Ray of our own are in a folder that is removed with it even if processes are
killed.
"""

import contextlib
import fcntl
import itertools
import json
import os
import queue
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.errors import ClusterAway, LauncherError
from autotune.worker.files import make_private
from autotune.worker.processes import without_storage

SILENT_SECONDS = 20.0
"""Timeout after which a silent driver is given up: its head is gone, or it is frozen.

Ray itself waits for a minute, and then ends its process."""
_PING_SECONDS = 3.0
_LISTEN_SECONDS = 0.5
_TELL_SECONDS = 15.0
"""Longest usual time to join a cluster; after that the user is told."""
_START_SECONDS = 120.0
"""Timeout of a Ray of our own: its start takes five seconds, on a busy machine half a minute."""
_LEAVE_SECONDS = 25.0
_LOG = "ray.log"
_ROOT = str(Path(__file__).resolve().parent.parent)
# Our packages first, whatever PYTHONPATH or the working directory hold under their names.
_BOOT = (
    "import sys; root, line = sys.argv[1:]; sys.path.insert(0, root); import autotune, launchers; "
    "sys.path.remove(root); from launchers.ray_driver import main; main(int(line))"
)
_OnWait = Callable[[float], object]
"""Called repeatedly with the seconds that a call has taken; may raise."""
_Answers = queue.SimpleQueue[dict[str, Any] | None]
"""Answer to one call, or None when there will be none."""
_PREFIX = "autotune-ray-"
_MARKER = ".made-by-autotune"
"""File in each folder of ours. The name of a folder does not tell that it may be removed."""
_USUAL = "/tmp"
"""Default parent folder. Names of sockets have to be short, so it is not the folder of temporary
files."""


class DriverLost(ClusterAway):
    """Loss of the Ray driver, of the raylet beside it or of the head of the cluster."""


class Refused(LauncherError):
    """An error with which Ray has answered a call."""


class Wire:
    """Reports of one agent, as the driver passes them on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.node_lost = False
        """True if the agent ended because its node did."""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(self, line: bytes) -> None:
        """Take in a line; an empty one is the last."""
        self._lines.put(line)

    def read(self) -> bytes:
        """Return the next line; blocks until there is one."""
        return self._lines.get()


class Driver:
    """A child process with a Ray driver. When it ends, all pending calls fail."""

    def __init__(
        self, address: str | None, log_dir: str, waits: Callable[[str], object] | None = None
    ) -> None:
        """Start the driver and have it join a cluster.

        Args:
            address: address of the cluster; None: the driver starts a Ray of its own on this
                machine.
            log_dir: folder for Ray's messages.
            waits: called repeatedly with what the driver waits for, empty while the wait is short;
                may raise.

        Raises:
            ClusterAway: the cluster cannot be reached.
        """
        self._where = address or "this machine"
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Answers] = {}
        self._wires: dict[int, Wire] = {}
        self.lost = ""
        """Reason why no more answers come; empty as long as all is well."""
        self.address = ""
        """Address of the cluster, once the driver has joined it."""
        self._closing = False
        self._folder = None if address else OwnFolder()
        self._process, self._line = _started(log_dir)
        threading.Thread(target=self._listen, name="driver", daemon=True).start()
        try:
            own = str(self._folder.path) if self._folder else None
            joined = self._ask("connect", address=address, folder=own)
            on_wait = self._telling(waits) if waits else None
            self.address = str(self._answer_of(joined, _START_SECONDS, on_wait))
        except LauncherError as error:
            self.close()
            raise ClusterAway(
                f"no Ray cluster at {self._where}: {error}; check "
                "`ray status`, and RAY_AUTH_MODE and the token where the cluster wants them"
            ) from None
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="driver watch", daemon=True).start()

    @property
    def pid(self) -> int:
        """Id of the driver's process."""
        return self._process.pid

    def call(
        self,
        name: str,
        seconds: float = SILENT_SECONDS,
        on_wait: Callable[[], object] | None = None,
        **arguments: Any,
    ) -> Any:
        """Return Ray's answer to a call.

        Args:
            on_wait: called repeatedly until the answer comes; may raise.

        Raises:
            DriverLost: no answer will come.
            Refused: Ray has answered with an error.
        """
        answers = self._ask(name, **arguments)
        return self._answer_of(answers, seconds, (lambda _: on_wait()) if on_wait else None)

    def _telling(self, waits: Callable[[str], object]) -> _OnWait:
        since = time.strftime("%H:%M:%S")
        text = (
            f"since {since}: the Ray cluster at {self._where} has not accepted the connection yet"
        )
        return lambda seconds: waits(text if seconds > _TELL_SECONDS else "")

    def _ask(self, name: str, **arguments: Any) -> _Answers:
        number, answers = next(self._numbers), _Answers()
        with self._lock:
            if self.lost or self._closing:
                raise DriverLost(self.lost or "the Ray driver has been closed")
            self._waiting[number] = answers
        self._say({"id": number, "call": name, **arguments})
        return answers

    def _answer_of(self, answers: _Answers, seconds: float, on_wait: _OnWait | None = None) -> Any:
        answer = self._awaited(answers, seconds, on_wait)
        if answer is None:
            self.give_up(f"the Ray cluster at {self._where} has not answered for {seconds:g} s")
            raise DriverLost(self.lost)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    def wire(self) -> Wire:
        """Return a new line to an agent that is yet to be started."""
        wire = Wire(next(self._numbers))
        with self._lock:
            self._wires[wire.number] = wire
            if self.lost:
                wire.put(b"")
        return wire

    def close(self) -> None:
        """Have the driver give everything back and leave."""
        with self._lock:
            self._closing = True
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        if self.address:  # otherwise it waits for Ray, holds nothing yet, and does not listen
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_SECONDS)
        self._kill()
        self._line.close()

    def give_up(self, why: str) -> None:
        """Fail all pending calls and kill the driver."""
        self._end(why)
        self._kill()

    def _awaited(
        self, answers: _Answers, seconds: float, on_wait: _OnWait | None
    ) -> dict[str, Any] | None:
        """Return the answer; None if none came while this process listened for this long."""
        listened = 0.0
        while listened < seconds:
            if on_wait:
                on_wait(listened)
            began = time.monotonic()
            with contextlib.suppress(queue.Empty):
                answer = answers.get(timeout=_LISTEN_SECONDS)
                if answer is None:
                    raise DriverLost(self.lost)
                return answer
            # If this process itself was suspended, the driver may have been, too.
            listened += min(time.monotonic() - began, 2 * _LISTEN_SECONDS)
        return None

    def _say(self, message: dict[str, Any]) -> None:
        with (
            contextlib.suppress(OSError),
            self._lock,
        ):  # the listening thread notices that it is gone
            self._line.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for text in self._line.makefile("rb"):
                self._take(json.loads(text))
        code = self._process.poll()
        self._end(
            f"the Ray driver of {self._where} has ended"
            + (f" by itself, status {code}" if code is not None else "")
            + ": the raylet beside it, or the head, is gone"
        )

    def _take(self, message: dict[str, Any]) -> None:
        with self._lock:
            wire = self._wires.get(message.get("link", 0))
            answers = self._waiting.pop(message.get("id", 0), None)
        if wire:
            wire.node_lost = message.get("node_lost", False)
            wire.put(message["line"].encode())
        elif answers:
            answers.put(message)

    def _watch(self) -> None:
        while not self.lost and not self._closing:
            time.sleep(_PING_SECONDS)
            with contextlib.suppress(Refused, DriverLost):
                if why := self.call("ping"):
                    self.give_up(f"the Ray cluster at {self._where}: {why}")

    def _end(self, why: str) -> None:
        """Fail all pending calls and end all lines."""
        with self._lock:
            self.lost = self.lost or why
            for answers in self._waiting.values():
                answers.put(None)
            for wire in self._wires.values():
                wire.put(b"")

    def _kill(self) -> None:
        # The process group: a Ray that the driver has started goes with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._folder:
            self._folder.remove()


def _started(log_dir: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    make_private(Path(log_dir))
    with theirs, (Path(log_dir) / _LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, _ROOT, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=without_storage(os.environ),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return process, ours


class OwnFolder:
    """A folder held as long as this process lives, or until it is removed."""

    def __init__(self) -> None:
        """Make a folder, and remove those of dead processes."""
        base = Path(os.environ.get("RAY_TMPDIR") or _USUAL)
        sweep_folders(base)
        self._lock: int | None = None
        while self._lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            self._lock = _lock_of(
                self.path
            )  # unless another process took it for that of a dead one
        (self.path / _MARKER).touch()

    def remove(self) -> None:
        """Remove the folder with its content; nothing of Ray runs any more."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def sweep_folders(base: Path) -> None:
    """Remove the folders of ours below this one that no process holds."""
    for folder in filter(_is_ours, base.glob(f"{_PREFIX}*")):
        lock = _lock_of(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_ours(folder: Path) -> bool:
    """Return whether a process of this user has made this folder for a Ray of its own."""
    with contextlib.suppress(OSError):
        its = folder.lstat()
        private = stat.S_ISDIR(its.st_mode) and not its.st_mode & 0o077
        return private and its.st_uid == os.geteuid() and (folder / _MARKER).is_file()
    return False


def _lock_of(folder: Path) -> int | None:
    """Return the descriptor of the locked folder; None if it is held, another user's or gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            os.close(descriptor)
    return None
