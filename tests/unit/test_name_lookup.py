"""What `doctor` says of a name server."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.standalone.name_lookup import judged
from tests.waiting import wait_for

_SILENT = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 53))
    from autotune.standalone.name_lookup import judged
    print(*judged("10.1.2.3"))
"""
_ALONE = 'ip link set lo up && mount --bind "$1" /etc/resolv.conf && exec "$2" -c "$3"'


def test_a_name_that_is_found_at_once() -> None:
    assert wait_for(lambda: judged("127.0.0.1")[0], "a look-up in no time")


@pytest.mark.fault(33)
def test_a_name_server_that_does_not_answer(tmp_path: Path) -> None:
    servers = tmp_path / "resolv.conf"
    servers.write_text("nameserver 127.0.0.1\n")
    command = ["unshare", "--net", "--mount", "sh", "-c", _ALONE, "sh"]
    found = subprocess.run(
        [*command, str(servers), sys.executable, _SILENT],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    if "not permitted" in found.stderr:
        pytest.skip(found.stderr)
    assert found.stdout.startswith("False the name of 10.1.2.3 is looked up in 3.00 s or more: ")
    assert "/etc/hosts" in found.stdout
