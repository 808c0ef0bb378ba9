"""An agent: the interface of its address, and what it leaves behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.errors import LauncherError
from autotune.worker.node.agent_process import AgentProcess
from autotune.worker.protocol import Hello, Preload
from launchers.agents import Node
from launchers.local import LocalLink
from launchers.slot import AgentSlot
from tests.support.trials import heard

NETWORK = """
ip link set lo up && ip address add 10.77.0.1/32 dev lo && ip address add 10.77.0.2/32 dev lo label lo:x
"""
LOOK = """
from autotune.worker.node.agent import interface_of
print(interface_of("10.77.0.1"), interface_of("10.77.0.2"))
"""


def of_a_network(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a network where loopback has three addresses."""
    words = ["unshare", "--net", "sh", "-c", f'{NETWORK.strip()} && exec "$@"', "sh", *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)


def test_interface_is_found_by_any_of_its_addresses() -> None:
    if of_a_network("true").returncode:
        pytest.skip("no right to make a network, or no iproute2")
    found = of_a_network(sys.executable, "-c", LOOK)
    assert found.stdout.split() == ["lo", "lo"], found.stderr


class LinkTo(LocalLink):
    """Connection to an agent with an address of another machine."""

    host = "192.0.2.1"

    def __init__(self, folder: Path) -> None:
        self._agent = AgentProcess(self.host, str(folder / "agent.log"))


def test_address_that_no_interface_has_is_the_reason_that_is_told(tmp_path: Path) -> None:
    why = r"agent of node 0 cannot start: no network interface .* has the address 192\.0\.2\.1"
    with pytest.raises(LauncherError, match=why):
        AgentSlot("s", [Node(lambda: LinkTo(tmp_path), 1)], gpus_per_worker=0)


def test_agent_that_ends_leaves_no_folder_of_sockets(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # paths of sockets have to be short
        agent = AgentProcess("127.0.0.1", str(tmp_path / "agent.log"), env={"TMPDIR": folder})
        assert agent.send(Preload().to_line())
        heard(agent, Hello)
        assert list(Path(folder).glob("pymp-*"))
        assert agent.close() == ""
        assert not list(Path(folder).glob("pymp-*"))
