"""Nodes of a cluster on one machine: network, process and mount namespaces over a bridge.

Each node is a container in all but its files: it has an address and a host name of its own, and sees its
own processes only.
"""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.support.waiting import wait_for

_LOSES = "4,32 0 0 4294963256,53 0 1 {share},6 0 0 0,6 0 0 2"
"""A classic BPF program: a random word below the share of 2**32 has the packet dropped."""
_NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_ENTER = ("--net", "--mount", "--pid", "--uts")
_JOIN = """
hostname {name}
until ip link show eth > /dev/null 2>&1; do sleep 0.05; done
ip link set lo up; ip addr add {address}/24 dev eth; ip link set eth up
"""


def refusal_to_lose() -> str:
    """Why no packets can be lost here; empty: they can."""
    program = _LOSES.format(share=0)
    tried = (
        "ip link set lo up && tc qdisc add dev lo clsact && "
        f"tc filter add dev lo egress bpf da bytecode '{program}'"
    )
    command = ["unshare", "--net", "sh", "-c", tried]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no packets can be dropped: {found.stderr.strip()}" if found.returncode else ""


def refusal() -> str:
    """Why there can be no such cluster here; empty: there can."""
    tried = [
        "unshare",
        *_NAMESPACES,
        "sh",
        "-c",
        "mount -t tmpfs tmpfs /tmp && ip link add bridge type bridge",
    ]
    found = subprocess.run(tried, capture_output=True, text=True, check=False)
    return f"namespaces are not permitted: {found.stderr.strip()}" if found.returncode else ""


class Node:
    """One node: its processes and its link can be struck."""

    def __init__(self, name: str, address: str, life: str, env: Mapping[str, str]) -> None:
        """Start it.

        Args:
            life: shell script of its first process, once it has joined the network.
        """
        self.name = name
        self.address = address
        self.link = f"to-{name}"
        self._env = dict(env)
        joined = _JOIN.format(name=name, address=address)
        self._outside = subprocess.Popen(
            [*_WITH_US, "unshare", *_NAMESPACES, "sh", "-c", joined + life],
            env=self._env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        outside = psutil.Process(self._outside.pid)
        self.first: psutil.Process = wait_for(lambda: outside.children()[:1], f"{name} begins")[0]

    def entering(self, *command: str) -> list[str]:
        """A command line that runs this command on the node."""
        return ["nsenter", f"--target={self.first.pid}", *_ENTER, f"--wd={Path.cwd()}", *command]

    def run(
        self, *command: str, cwd: Path, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end."""
        entering = ["nsenter", f"--target={self.first.pid}", *_ENTER, f"--wd={cwd}", *command]
        return subprocess.run(
            entering, env=self._env, capture_output=True, text=True, timeout=timeout, check=False
        )

    def spawn(self, *command: str, cwd: Path) -> subprocess.Popen[bytes]:
        """Start a command there."""
        entering = ["nsenter", f"--target={self.first.pid}", *_ENTER, f"--wd={cwd}", *command]
        return subprocess.Popen(entering, env=self._env, stdin=subprocess.DEVNULL)

    @contextlib.contextmanager
    def own(self, folder: Path) -> Iterator[None]:
        """It does not share this folder with the others any more: its own is empty."""
        self.must("mount", "-t", "tmpfs", "tmpfs", str(folder))
        try:
            yield
        finally:
            self.must("umount", "--lazy", str(folder))

    @contextlib.contextmanager
    def showing(self, file: Path, other: Path) -> Iterator[None]:
        """It has another file in the place of this one."""
        self.must("mount", "--bind", str(other), str(file))
        try:
            yield
        finally:
            self.must("umount", "--lazy", str(file))

    def must(self, *command: str) -> str:
        """Run a command there, which succeeds; what it prints."""
        found = self.run(*command, cwd=Path("/"))
        assert found.returncode == 0, f"{command}: {found.stdout}{found.stderr}"
        return found.stdout

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Those with this in their command line, but for the first."""
        found = []
        own = Path(f"/proc/{self.first.pid}/ns/pid").readlink()
        for process in psutil.process_iter():
            if process == self.first:
                continue
            with contextlib.suppress(psutil.Error, OSError):
                if Path(f"/proc/{process.pid}/ns/pid").readlink() != own:
                    continue
                if part in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes are stopped."""
        struck = self.processes()
        strike(struck, signal.SIGSTOP)
        try:
            yield
        finally:
            strike(struck, signal.SIGCONT)

    def end(self) -> None:
        """Everything of it."""
        self._outside.kill()
        self._outside.wait()


class Network:
    """A bridge between nodes."""

    def __init__(self) -> None:
        self._hub = subprocess.Popen([*_WITH_US, "unshare", "--net", "sleep", "infinity"])
        wait_for(lambda: _is_elsewhere(self._hub.pid), "the hub has a network of its own")
        self._ip("link", "add", "bridge", "type", "bridge")
        self._ip("link", "set", "bridge", "up")

    def join(self, node: Node) -> None:
        """Connect a node."""
        peer = ["peer", "name", "eth", "netns", str(node.first.pid)]
        self._ip("link", "add", node.link, "type", "veth", *peer)
        self._ip("link", "set", node.link, "master", "bridge", "up")

    def _ip(self, *arguments: str) -> None:
        subprocess.run(
            ["nsenter", f"--target={self._hub.pid}", "--net", "ip", *arguments], check=True
        )

    @contextlib.contextmanager
    def cut(self, node: Node) -> Iterator[None]:
        """Nothing reaches a node, nor leaves it."""
        self._ip("link", "set", node.link, "down")
        try:
            yield
        finally:
            self._ip("link", "set", node.link, "up")

    @contextlib.contextmanager
    def losing(self, node: Node, share: float) -> Iterator[None]:
        """Drop a share of the packets that reach a node, and of those that leave it."""
        program = _LOSES.format(share=round(share * 2**32))
        self._tc("qdisc", "add", "dev", node.link, "clsact")
        try:
            for way in ("ingress", "egress"):
                self._tc("filter", "add", "dev", node.link, way, "bpf", "da", "bytecode", program)
            yield
        finally:
            self._tc("qdisc", "del", "dev", node.link, "clsact")

    def _tc(self, *arguments: str) -> None:
        command = ["nsenter", f"--target={self._hub.pid}", "--net", "tc", *arguments]
        subprocess.run(command, check=True)

    def end(self) -> None:
        """The bridge is gone."""
        self._hub.kill()
        self._hub.wait()


def strike(struck: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to processes, as far as they live."""
    for process in struck:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _is_elsewhere(pid: int) -> bool:
    own, other = Path("/proc/self/ns/net"), Path(f"/proc/{pid}/ns/net")
    return own.readlink() != other.readlink()
