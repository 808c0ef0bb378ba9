"""A day in minutes: 20 studies of two users, and whatever may befall a service; nothing is lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fault_table import Tally

ROOT = Path(__file__).parents[2]


def _may_mount() -> bool:
    """Whether this process may mount file systems for itself without becoming another user."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.fault(26)
@pytest.mark.fault(29)
def test_a_day_of_two_users(tmp_path: Path, tally: Tally) -> None:
    command = [sys.executable, "-m", "tests.faults.a_day", str(tmp_path)]
    if _may_mount():
        command = ["unshare", "--mount", *command, "--disk"]
    lived = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(lived.stdout)  # the story
    assert lived.returncode == 0, lived.stdout[-8000:] + lived.stderr[-8000:]
    sums = json.loads(lived.stdout.splitlines()[-1])
    tally.tried = tally.survived = sums["studies"]
    tally.lost, tally.duplicated = sums["lost"], sums["duplicated"]
    found = {name: sums[name] for name in ("studies", "lost", "duplicated", "parked", "leaked")}
    assert found == {"studies": 20, "lost": 0, "duplicated": 0, "parked": 0, "leaked": []}
    assert sums["exits"] == {"alice": [0, 0, 0], "bob": [-9, 0, 0]}
    assert sums["tracebacks"] == []
