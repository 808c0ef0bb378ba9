"""A Ray cluster of three nodes on one machine, see tests/support/nodes.py.

A node keeps Ray's files to itself. Its first process starts Ray, and starts it again when it has ended,
as an operator's service would.
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

from tests.support.nodes import Network, Node, strike
from tests.support.waiting import wait_for

_NET = "10.77.0"
_NUMBERS = {"head": 9, "near": 1, "far": 2}
"""Of each node's address. The daemon of a study works on `near`, its trials there and on `far`."""
ADDRESS = f"{_NET}.9:6379"
_STORE_BYTES = 80_000_000
_BLOCKING = "This command will now block"
"""What `ray start --block` prints once it is up."""
_LIFE = """
mount -t tmpfs tmpfs /tmp/ray
while :; do
  [ -e {down} ] || {ray} start {role} --node-ip-address={address} --num-cpus={cpus} \
    --object-store-memory={store} --disable-usage-stats --block >> {log} 2>&1
  sleep 0.5
done
"""


class RayNode(Node):
    """One node: its processes and its link can be struck."""

    def __init__(
        self, name: str, number: int, folder: Path, env: Mapping[str, str], cpus: int = 1
    ) -> None:
        address = f"{_NET}.{number}"
        self._down = folder / f"{name}.down"
        self._log = folder / f"{name}.log"
        is_head = name == "head"
        role = "--head --port=6379 --include-dashboard=false" if is_head else f"--address={ADDRESS}"
        life = _LIFE.format(
            address=address,
            cpus=cpus,
            down=self._down,
            ray=Path(sys.executable).with_name("ray"),
            role=role,
            store=_STORE_BYTES,
            log=self._log,
        )
        super().__init__(name, address, life, env)

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
        strike(struck, signal.SIGKILL)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Ray is killed, and not started again before the end."""
        self._down.touch()
        try:
            self.kill()
            yield
        finally:
            self._down.unlink()


class RayNodes(Network):
    """The cluster."""

    def __init__(self, folder: Path, cpus: Mapping[str, int] | None = None) -> None:
        """Start it.

        Args:
            cpus: of each node, by its name; one without.
        """
        Path("/tmp/ray").mkdir(exist_ok=True)
        self.env = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        super().__init__()
        self._folder = folder
        self._cpus = cpus or {}
        self.nodes: list[RayNode] = []
        for name, number in _NUMBERS.items():
            self._add(name, number)
        self.head, self.near, self.far = self.nodes

    def _add(self, name: str, number: int) -> RayNode:
        node = RayNode(name, number, self._folder, self.env, self._cpus.get(name, 1))
        self.nodes.append(node)
        self.join(node)
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
        cpus = sum(self._cpus.get(node.name, 1) for node in self.nodes)
        wanted = f"{len(self.nodes)} {cpus}.0"
        wait_for(lambda: self.ask(code) == wanted, "all are up, and free", timeout)

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
        super().end()


@contextlib.contextmanager
def ray_nodes(folder: Path, cpus: Mapping[str, int] | None = None) -> Iterator[RayNodes]:
    """The cluster, up."""
    nodes = RayNodes(folder, cpus)
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
