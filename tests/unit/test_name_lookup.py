"""A name server that does not answer: what `doctor` says of it, and what launches make of it."""

from pathlib import Path

import pytest
import torch

from autotune.standalone.doctor import judged
from tests.support import silent_names
from tests.support.waiting import wait_for

_JUDGED = """
from autotune.standalone.doctor import judged
print(*judged("10.1.2.3"))
"""
_JUDGED_UNTIL_FAST = """
from autotune.standalone.doctor import judged
from tests.support.waiting import wait_for
print(wait_for(lambda: judged("10.1.2.3")[0], "a look-up in no time"))
"""
"""On a busy machine a single look-up may be slow, though no name server is asked."""
_LAUNCHES = """
import sys
from pathlib import Path
import launchers
from tests.contract.launchers.sites import go_on
from tests.support.trials import trial
folder, workloads = map(Path, sys.argv[1:])
two = launchers.Resources(2, None, 1, None)
with launchers.section_of("local").open(two, folder) as launcher:
    for _ in range(3):
        report = launcher.slots[0].run_solo(trial(workloads, log_dir=str(folder)), go_on)
        assert report.outcome is None, report.cause
        print((folder / "asked").stat().st_size)
"""
_RUNS_LATE = """
import datetime
import sys
import threading
from pathlib import Path
from torch.distributed import TCPStore
from autotune.worker.node import reverse_lookup
waits = threading.Thread.join
threading.Thread.join = lambda thread, timeout=None: waits(thread)
reverse_lookup.settle("127.0.0.1")
asked = Path(sys.argv[1], "asked")
print(asked.stat().st_size)
try:
    TCPStore("127.0.0.1", 9, is_master=False, timeout=datetime.timedelta(seconds=1))
except RuntimeError:
    print(asked.stat().st_size)
"""
"""On a busy machine: who waits for half a second gets to run after the second in which all is over."""
_WORKLOADS = Path(__file__).parents[1] / "workloads"


def test_a_name_that_is_found_at_once() -> None:
    assert wait_for(lambda: judged("127.0.0.1")[0], "a look-up in no time")


@pytest.mark.fault(33)
@pytest.mark.long
def test_doctor_tells_of_a_name_server_that_does_not_answer(tmp_path: Path) -> None:
    told = silent_names.run(tmp_path, "-c", _JUDGED, seconds=5)
    assert told.startswith("False the name of 10.1.2.3 is looked up in 3.00 s or more: ")
    assert "`::ffff:10.1.2.3 NAME` in /etc/hosts" in told


@pytest.mark.parametrize(
    ("line", "code", "asked"),
    [("10.1.2.3", _JUDGED, True), ("::ffff:10.1.2.3", _JUDGED_UNTIL_FAST, False)],
    ids=["IPv4", "IPv6"],
)
@pytest.mark.long
def test_a_line_within_ipv6_answers_what_torch_asks(
    tmp_path: Path, line: str, code: str, asked: bool
) -> None:
    hosts, folder = tmp_path / "hosts", tmp_path / "machine"
    hosts.write_text(f"{line} node-a\n")
    folder.mkdir()
    binds = f"import os; assert not os.system('mount --bind {hosts} /etc/hosts')"
    told = silent_names.run(folder, "-c", f"{binds}\n{code}", seconds=1)
    assert told.split()[0] == str(not asked)
    assert bool((folder / "asked").stat().st_size) == asked


asks_once = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9),
    reason="it asks again at every meeting",
)


@pytest.mark.sample
@pytest.mark.fault(33)
@asks_once
@pytest.mark.long
def test_launches_ask_no_more_once_nobody_has_answered(tmp_path: Path) -> None:
    told = silent_names.run(tmp_path, "-c", _LAUNCHES, str(tmp_path), str(_WORKLOADS), seconds=1)
    asked = set(map(int, told.split()))
    assert len(asked) == 1, asked
    assert asked != {0}


@asks_once
@pytest.mark.long
def test_torch_asks_no_more_where_whoever_found_out_got_to_run_late(tmp_path: Path) -> None:
    before, after = silent_names.run(tmp_path, "-c", _RUNS_LATE, str(tmp_path), seconds=1).split()
    assert before == after != "0"
