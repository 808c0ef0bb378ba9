"""Standard input of a script in a trial: a terminal of the usual size, with nothing to read."""

import pytest

from autotune.worker.protocol import PYTHON
from tests.contract.scripts.bench import TRAINS, Bench, assert_well
from tests.contract.scripts.test_own_ranks import TRAINS_ALONE

_READS = """
import os, subprocess, sys
rows, columns = os.popen("stty size", "r").read().split()
assert (rows, columns) == ("24", "80")
assert sys.stdin.isatty() and not sys.stdout.isatty() and not sys.stderr.isatty()
assert [sys.stdin.read(), sys.stdin.read()] == ["", ""]
try:
    input("Go on? ")
except EOFError:
    pass
assert subprocess.run(["cat"], capture_output=True, check=True).stdout == b""
"""


@pytest.mark.parametrize("launch", [PYTHON, "torchrun"])
def test_script_asks_its_terminal_for_its_size_and_reads_nothing(bench: Bench, launch: str) -> None:
    """As pytorch-cifar asks while it is imported."""
    trains = TRAINS_ALONE if launch == PYTHON else TRAINS
    assert_well(bench.run(bench.write(_READS + trains), told={"launch": launch}))
