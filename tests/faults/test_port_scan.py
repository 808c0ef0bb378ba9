"""What a study and its dashboard, started with defaults, offer to the network: nothing."""

import ipaddress
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.fault(21)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network for that")
def test_nothing_that_is_started_with_defaults_can_be_reached_from_elsewhere(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.faults.port_scan", str(tmp_path)]
    scanned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert scanned.returncode == 0, scanned.stdout + scanned.stderr
    seen = json.loads(scanned.stdout.splitlines()[-1])
    assert seen["answering"] == [seen["known"]], "what the scan has opened itself, and so must find"
    ours = [found for found in seen["listening"] if found["port"] != seen["known"]]
    assert (8080, seen["dashboard"]) in [(found["port"], found["pid"]) for found in ours]
    assert [found for found in ours if not ipaddress.ip_address(found["address"]).is_loopback] == []
