"""A stand-in for Slurm: real programs srun, squeue and scancel, and a thread that is slurmd.

Like Slurm's, its ranks descend from slurmd and not from srun: they outlive an srun that is killed.
"""

import contextlib
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.worker.processes import MARKER

_SOCKET = "STAND_IN_SLURM"
_DEAF = "STAND_IN_SLURM_IS_DEAF"
"""Variable with which srun ignores SIGTERM."""

_PROGRAM = """#!{python} -S
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["{socket}"])
answers = line.makefile()
def ask(**what):
    line.sendall(json.dumps(what).encode() + b"\\n")
{body}
"""
_BODIES = {
    "srun": """
words, name = sys.argv[1:], "plain"
while words[0].startswith("-"):
    option = words.pop(0)
    name = option.removeprefix("--job-name=") if option.startswith("--job-name=") else name
deaf = os.environ.get("{deaf}")
signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: ask(end=True))
ask(run=words, name=name, env=dict(os.environ), cwd=os.getcwd())
sys.exit(json.loads(answers.readline())["status"] % 256)
""",
    "squeue": """
ask(list="--steps" in sys.argv)
print("\\n".join(json.loads(answers.readline())["rows"]))
""",
    "scancel": """
ask(cancel=[word for word in sys.argv[1:] if not word.startswith("-")])
answers.readline()
""",
}


class StandInSlurm:
    """One node of a cluster: its steps, and the folder of the programs."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self.socket = folder / "slurmd"
        self.steps: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        """Name and process of each step that was ever started, by its number."""
        self.cancelled: list[str] = []
        """Numbers of the steps that scancel has ended."""
        for name, body in _BODIES.items():
            text = _PROGRAM.format(python=sys.executable, socket=_SOCKET, body=body)
            path = self.programs / name
            path.write_text(text.replace("{deaf}", _DEAF))
            path.chmod(0o755)

    def environment(self, *, deaf: bool = False) -> dict[str, str]:
        """Return the variables with which the programs are found, and find the node."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        found = {"PATH": path, _SOCKET: str(self.socket)}
        return found | ({_DEAF: "1"} if deaf else {})

    def running(self) -> list[str]:
        """Return the names of the steps that run."""
        return [name for name, process in [*self.steps.values()] if process.poll() is None]

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer squeue and scancel."""
        if "cancel" in asked:
            self.cancelled += [n for n in asked["cancel"] if n not in self.cancelled]
            for number in asked["cancel"]:
                _kill(self.steps[number][1])
            return {}
        rows = [f"{n} {name}" for n, (name, p) in [*self.steps.items()] if p.poll() is None]
        return {"rows": rows if asked["list"] else []}

    def start(self, asked: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Start a step in a session of its own, without the marks of this node."""
        env = {name: value for name, value in asked["env"].items() if name != MARKER}
        process = subprocess.Popen(
            asked["run"], env=env, cwd=asked["cwd"], start_new_session=True, stdout=2
        )
        self.steps[f"1.{len(self.steps)}"] = (asked["name"], process)
        return process


@contextlib.contextmanager
def stand_in_slurm(folder: Path) -> Iterator[StandInSlurm]:
    """Run a stand-in until the end of the block; kill its steps then."""
    slurm = StandInSlurm(folder)

    class Conversation(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = json.loads(self.rfile.readline())
            if "run" not in asked:
                self._tell(slurm.answer(asked))
                return
            process = slurm.start(asked)
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()
            self._tell({"status": process.wait()})

        def _listen(self, process: subprocess.Popen[bytes]) -> None:
            if self.rfile.readline():  # and not the end of a killed srun
                _kill(process)

        def _tell(self, what: dict[str, Any]) -> None:
            with contextlib.suppress(OSError):
                self.wfile.write(json.dumps(what).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Server(str(slurm.socket), Conversation) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield slurm
        finally:
            server.shutdown()
            for _, process in slurm.steps.values():
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
