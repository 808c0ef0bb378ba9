"""A Ray cluster of three nodes on one machine: network, process and mount namespaces over a bridge.

Each node is a container in all but its files: it has an address and a host name of its own, sees its own
processes only, and keeps Ray's files to itself. Its first process starts Ray, and starts it again when
it has ended, as an operator's service would.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.support.waiting import wait_for

_NET = "10.77.0"
_NUMBERS = {"head": 9, "near": 1, "far": 2}
"""Of each node's address. The daemon of a study works on `near`, its trials there and on `far`."""
ADDRESS = f"{_NET}.9:6379"
_LOSES = "4,32 0 0 4294963256,53 0 1 {share},6 0 0 0,6 0 0 2"
"""A classic BPF program: a random word below the share of 2**32 has the packet dropped."""
_STORE_BYTES = 80_000_000
_NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_ENTER = ("--net", "--mount", "--pid", "--uts")
_BLOCKING = "This command will now block"
"""What `ray start --block` prints once it is up."""
_LIFE = """
hostname {name}
mount -t tmpfs tmpfs /tmp/ray
until ip link show eth > /dev/null 2>&1; do sleep 0.05; done
ip link set lo up; ip addr add {address}/24 dev eth; ip link set eth up
while :; do
  [ -e {down} ] || {ray} start {role} --node-ip-address={address} --num-cpus=1 \
    --object-store-memory={store} --disable-usage-stats --block >> {log} 2>&1
  sleep 0.5
done
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


class RayNode:
    """One node: its processes and its link can be struck."""

    def __init__(self, name: str, number: int, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.address = f"{_NET}.{number}"
        self.link = f"to-{name}"
        self._down = folder / f"{name}.down"
        self._log = folder / f"{name}.log"
        self._env = dict(env)
        is_head = name == "head"
        role = "--head --port=6379 --include-dashboard=false" if is_head else f"--address={ADDRESS}"
        life = _LIFE.format(
            name=name,
            address=self.address,
            down=self._down,
            ray=Path(sys.executable).with_name("ray"),
            role=role,
            store=_STORE_BYTES,
            log=self._log,
        )
        self._outside = subprocess.Popen(
            [*_WITH_US, "unshare", *_NAMESPACES, "sh", "-c", life],
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

    @property
    def starts(self) -> int:
        """How often Ray has come up here, by what it prints."""
        return self._log.read_text(errors="replace").count(_BLOCKING)

    def rays(self) -> list[psutil.Process]:
        """Ray's own, with all that it has started; not a study's daemon and its driver."""
        found: list[psutil.Process] = []
        for start in self.processes("ray start"):
            with contextlib.suppress(psutil.Error):
                found += [start, *start.children(recursive=True)]
        for part in ("/raylet/raylet", "gcs_server", "ray::"):
            found += self.processes(part)
        return found

    def kill(self, *parts: str) -> None:
        """SIGKILL everything with one of these in its command line; without any, all of Ray."""
        struck = [p for part in parts for p in self.processes(part)] if parts else self.rays()
        assert struck, f"nothing like {parts} runs on {self.name}"
        _signal(struck, signal.SIGKILL)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes are stopped."""
        struck = self.processes()
        _signal(struck, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(struck, signal.SIGCONT)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Ray is killed, and not started again before the end."""
        self._down.touch()
        try:
            self.kill()
            yield
        finally:
            self._down.unlink()

    def end(self) -> None:
        """Everything of it."""
        self._outside.kill()
        self._outside.wait()


class RayNodes:
    """The cluster."""

    def __init__(self, folder: Path) -> None:
        Path("/tmp/ray").mkdir(exist_ok=True)
        self.env = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        self._hub = subprocess.Popen([*_WITH_US, "unshare", "--net", "sleep", "infinity"])
        wait_for(lambda: _is_elsewhere(self._hub.pid), "the hub has a network of its own")
        self._ip("link", "add", "bridge", "type", "bridge")
        self._ip("link", "set", "bridge", "up")
        self._folder = folder
        self.nodes: list[RayNode] = []
        for name, number in _NUMBERS.items():
            self._add(name, number)
        self.head, self.near, self.far = self.nodes

    def _add(self, name: str, number: int) -> RayNode:
        node = RayNode(name, number, self._folder, self.env)
        self.nodes.append(node)
        peer = ["peer", "name", "eth", "netns", str(node.first.pid)]
        self._ip("link", "add", node.link, "type", "veth", *peer)
        self._ip("link", "set", node.link, "master", "bridge", "up")
        return node

    @contextlib.contextmanager
    def another(self) -> Iterator[RayNode]:
        """A fourth node, for a while."""
        node = self._add("late", 3)
        try:
            yield node
        finally:
            self.nodes.remove(node)
            node.end()

    def _ip(self, *arguments: str) -> None:
        subprocess.run(
            ["nsenter", f"--target={self._hub.pid}", "--net", "ip", *arguments], check=True
        )

    @contextlib.contextmanager
    def cut(self, node: RayNode) -> Iterator[None]:
        """Nothing reaches a node, nor leaves it."""
        self._ip("link", "set", node.link, "down")
        try:
            yield
        finally:
            self._ip("link", "set", node.link, "up")

    @contextlib.contextmanager
    def losing(self, node: RayNode, share: float) -> Iterator[None]:
        """Of what reaches a node, and of what leaves it, such a share is lost."""
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

    def ask(self, code: str) -> str:
        """What a program prints that has joined the cluster; empty while there is none."""
        joined = (
            "import ray; ray.init(address='auto', logging_level='ERROR', log_to_driver=False)\n"
        )
        try:
            found = self.near.run(
                sys.executable, "-P", "-c", joined + code, cwd=Path("/tmp"), timeout=60
            )
        except subprocess.TimeoutExpired:
            return ""
        return found.stdout.strip()

    def wait_all_free(self, timeout: float = 180) -> None:
        """All nodes have joined, and nobody holds anything."""
        code = "print(sum(n['Alive'] for n in ray.nodes()), ray.available_resources().get('CPU'))"
        count = len(self.nodes)
        wait_for(lambda: self.ask(code) == f"{count} {count}.0", "all are up, and free", timeout)

    def groups(self) -> str:
        """States of all placement groups."""
        code = (
            "from ray.util.placement_group import placement_group_table\n"
            "print(sorted(group['state'] for group in placement_group_table().values()))"
        )
        return self.ask(code)

    def end(self) -> None:
        """Nothing of it is left."""
        for node in self.nodes:
            node.end()
        self._hub.kill()
        self._hub.wait()


def _signal(struck: list[psutil.Process], number: signal.Signals) -> None:
    for process in struck:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _is_elsewhere(pid: int) -> bool:
    own, other = Path("/proc/self/ns/net"), Path(f"/proc/{pid}/ns/net")
    return own.readlink() != other.readlink()


@contextlib.contextmanager
def ray_nodes(folder: Path) -> Iterator[RayNodes]:
    """The cluster, up."""
    nodes = RayNodes(folder)
    try:
        nodes.wait_all_free()
        yield nodes
    finally:
        nodes.end()


if __name__ == "__main__":
    # By hand: it stays up, and says how to get into each node.
    with ray_nodes(Path(sys.argv[1])) as up:
        print(f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN={up.env['RAY_AUTH_TOKEN']}")
        for one in up.nodes:
            print(one.name, " ".join(one.entering("bash")), flush=True)
        while True:
            time.sleep(60)
