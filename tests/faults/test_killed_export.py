"""kill -9 while best.yaml is written: the old file stays, or the new one is there, never a part."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fault_table import Tally
from tests.unit.test_best_yaml import content

pytestmark = [pytest.mark.timeout(1800), pytest.mark.fault(22)]

ROOT = Path(__file__).parents[2]
EXPORTER = """
import json, os, random, signal, sys, time
from pathlib import Path

import autotune
from autotune.export import writing

def content(packages):
    document = json.loads(sys.argv[2])
    document["provenance"]["environment"] = {f"package{i}": "1.0" for i in range(packages)}
    return document

def packages_in_file():
    return len(autotune.load(PATH).provenance["environment"])

PATH = Path("best.yaml")
moments = random.Random(7)
old, new = content(3), content(300)
started = time.perf_counter()
writing.write(PATH, new)
longest = 1.2 * (time.perf_counter() - started)
found = {"old": 0, "new": 0, "broken": []}
for kill in range(int(sys.argv[1])):
    writing.write(PATH, old)
    child = os.fork()
    if not child:
        writing.write(PATH, new)
        os._exit(0)
    time.sleep(moments.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        there = {3: "old", 300: "new"}[packages_in_file()]
        found[there] += 1
        longest *= 1.25 if there == "old" else 0.8  # the writer is as fast as the machine at the moment
    except Exception as error:
        found["broken"].append(repr(error))
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.sample
@pytest.mark.parametrize("kills", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_the_file_is_whole_whenever_its_writer_dies(
    tmp_path: Path, tally: Tally, kills: int
) -> None:
    exporter = subprocess.run(
        [sys.executable, "-c", EXPORTER, str(kills), json.dumps(content())],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert exporter.returncode == 0, exporter.stderr
    found = json.loads(exporter.stdout)
    tally.tried = kills
    tally.survived = found["old"] + found["new"]
    assert found["broken"] == []
    assert found["old"] and found["new"], "the kills come too early or too late"
