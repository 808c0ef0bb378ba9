"""A disk that fills up in mid study, with the study's folder and its database on it."""

from pathlib import Path

import pytest

from tests.unit.database.opening import in_private_mounts, needs_mounts

pytestmark = [pytest.mark.timeout(1800), pytest.mark.fault(12), pytest.mark.slow, needs_mounts]

SCRIPT = """
import subprocess, sys, time
from pathlib import Path
from autotune.service.daemon import LEASE_SECONDS
from tests.support.steering import alive, processes_in, study_folder
from tests.support.waiting import wait_for

disk = Path("disk").absolute()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
with study_folder(disk) as tiny:
    workload = {"name": "tiny:build", "args": {"sleep": 0.02}}
    trials = {"trials": 4, "min_improvement": 0}
    tiny.write(resources={"workers": 1}, budget=trials, workload=workload)
    # What the command prints must not need the disk.
    disk.joinpath("command-1.log").symlink_to(Path.cwd() / "said.log")
    following = tiny.spawn("start", "study.yaml", *sys.argv[1:])
    tiny.wait_recorded(2)
    try:
        with open(disk / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
    except OSError:
        pass
    wait_for(lambda: "no room is left" in following.output(), "the command says what is wrong")
    assert "no room is left" in tiny.status()["waiting"]
    report = tiny.run("report", "tiny")
    assert "Provisional" in report.stdout, report.stdout + report.stderr
    before = len(tiny.recorded())
    # The lease cannot be renewed. It runs out, and nobody takes the daemon for dead, or starts others.
    time.sleep(LEASE_SECONDS + 4)
    daemons = [line for line in processes_in(tiny.folder).values() if "autotune daemon" in line]
    assert len(daemons) == (0 if sys.argv[1:] else 1), daemons
    assert alive(following.pid)
    (disk / "filler").unlink()
    assert following.wait(300) == 0, following.output()
    tiny.assert_complete(trials=4)
    assert len(tiny.recorded()) > before
    assert "Traceback" not in following.output(), following.output()
    print("complete")
"""


@pytest.mark.parametrize("how", [[], ["--foreground"]], ids=["daemon", "foreground"])
def test_the_study_waits_for_room_and_goes_on(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "disk").mkdir()
    found = in_private_mounts(SCRIPT, *how, cwd=tmp_path, timeout=500)
    assert found.stdout.strip() == "complete", found.stdout + found.stderr
