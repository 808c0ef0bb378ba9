"""Libraries that take long to import are imported once for all trials, where that does no harm.

The libraries are written into the folder of installed packages; the workload is the user's own.
"""

import json
import math
import os
import site
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import launchers
from autotune.worker.protocol import Outcome, TimeLimit
from launchers import Launcher, Resources
from tests.support.steering import TINY_WORKLOAD
from tests.support.trials import trial

pytestmark = pytest.mark.timeout(600)

SLOW = """
import json, os, time

time.sleep(1.1)
with open(os.environ["IMPORTS"], "a") as file:
    file.write(json.dumps({{"pid": os.getpid(), "of": "{name}"}}) + "\\n")
"""
WORKLOAD = """
import json, os

import tiny


def build():
    import {name}

    with open(os.environ["IMPORTS"], "a") as file:
        file.write(json.dumps({{"rank": os.environ["RANK"], "saw": {expression}}}) + "\\n")
    return tiny.build()
"""

IN_VAIN_AND_BY_RANKS = 3
"""Processes that import a library in the second trial, if it turns out that it is not for sharing."""


@dataclass
class Bench:
    """A launcher of two ranks, an installed library, a workload that imports it."""

    launcher: Launcher
    folder: Path
    library: str

    def train(self, *, expression: str = "0", seconds: float = math.inf) -> list[dict[str, object]]:
        """What was imported, and what the ranks saw, in one trial."""
        workload = WORKLOAD.format(name=self.library, expression=expression)
        (self.folder / "mine.py").write_text(workload)
        seen = self.folder / "imports.jsonl"
        known = len(seen.read_text().splitlines()) if seen.exists() else 0
        request = trial(
            self.folder, "mine:build", env={"COLOUR": "red"}, limit=TimeLimit(hard=seconds)
        )
        report = self.launcher.slots[0].run_solo(request, lambda block: False)
        assert report.outcome is None, report.log_tail
        assert len(report.blocks) == request.blocks.max_blocks
        return [json.loads(line) for line in seen.read_text().splitlines()[known:]]


@pytest.fixture
def library() -> Iterator[Path]:
    """A module that is installed, of a name that no other has."""
    path = Path(site.getsitepackages()[0], f"slow_{uuid.uuid4().hex}.py")
    path.write_text(SLOW.format(name=path.stem))
    yield path
    path.unlink()


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports.jsonl"))
    (tmp_path / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    kind = getattr(request, "param", "local")
    with launchers.section_of(kind).open(Resources(2, 0, 1, 1), str(tmp_path)) as launcher:
        yield Bench(launcher, tmp_path, library.stem)


def imports(seen: list[dict[str, object]]) -> set[object]:
    """Processes that imported the library."""
    return {entry["pid"] for entry in seen if "pid" in entry}


@pytest.mark.slow
@pytest.mark.parametrize(
    "bench",
    ["local", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.xdist_group("ray")])],
    indirect=True,
)
def test_from_the_second_trial_on_ranks_find_the_library_imported(
    bench: Bench, library: Path
) -> None:
    look = 'PLACE = [os.environ["COLOUR"], os.getcwd()]'
    library.write_text(f"{library.read_text()}\n{look}\n")
    first, second, third = (bench.train(expression=f"{bench.library}.PLACE") for _ in range(3))
    assert [len(imports(seen)) for seen in (first, second, third)] == [2, 1, 0]
    for seen in (first, second, third):
        ranks = {entry["rank"]: entry["saw"] for entry in seen if "rank" in entry}
        assert ranks == {"0": ["red", str(bench.folder)], "1": ["red", str(bench.folder)]}


@pytest.mark.slow
def test_time_limit_of_a_trial_begins_when_its_agents_are_ready(
    bench: Bench, library: Path
) -> None:
    library.write_text(library.read_text().replace("time.sleep(1.1)", "time.sleep(10)"))
    bench.train()
    # New agents import the library first, which takes as long as the trial may.
    assert len(imports(bench.train(seconds=10.0))) == 1


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            'RANK = os.environ.get("LOCAL_RANK", "0")',
            id="asks which rank it is",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import threading; threading.Thread(target=time.sleep, args=(999,), daemon=True).start()",
            id="starts a thread",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import subprocess; subprocess.Popen(['sleep', '999'])",
            id="starts a process",
            marks=pytest.mark.slow,
        ),
        pytest.param("FILE = open(os.devnull)", id="opens a file", marks=pytest.mark.slow),
        pytest.param(
            "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
            id="changes what the node looks like",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="has one processor"),
            ],
        ),
    ],
)
def test_a_library_that_is_not_for_sharing_is_imported_in_every_rank(
    bench: Bench, library: Path, line: str
) -> None:
    library.write_text(f"{library.read_text()}\n{line}\n")
    rank = f"getattr({bench.library}, 'RANK', None)"
    for _ in range(2):
        seen = bench.train(expression=rank)
    assert len(imports(seen)) == IN_VAIN_AND_BY_RANKS
    ranks = {entry["rank"]: entry["saw"] for entry in seen if "rank" in entry}
    assert ranks == ({"0": "0", "1": "1"} if "LOCAL_RANK" in line else {"0": None, "1": None})


@pytest.mark.slow
def test_the_log_says_which_library_initialises_cuda(bench: Bench, library: Path) -> None:
    poison = "import torch; torch.cuda._initialized = 'RANK' not in os.environ"
    library.write_text(f"{library.read_text()}\n{poison}\n")
    for _ in range(2):
        seen = bench.train()
    assert len(imports(seen)) == IN_VAIN_AND_BY_RANKS
    assert f"{bench.library} initialises CUDA" in (bench.folder / "agent.log").read_text()


@pytest.mark.slow
def test_a_library_that_kills_the_process_it_is_imported_in_beforehand(
    bench: Bench, library: Path
) -> None:
    dying = 'os.environ.get("RANK") or os.kill(os.getpid(), 9)'
    library.write_text(f"{library.read_text()}\n{dying}\n")
    for _ in range(2):
        seen = bench.train()
    assert len(imports(seen)) == IN_VAIN_AND_BY_RANKS


@pytest.mark.slow
def test_the_users_own_module_wins_over_one_that_the_library_brings(
    bench: Bench, library: Path
) -> None:
    other = library.with_name(f"other_{library.name}")
    other.write_text('WHOSE = "installed"\n')
    try:
        library.write_text(f"{library.read_text()}\nimport {other.stem}\n")
        (bench.folder / other.name).write_text('WHOSE = "the user\'s"\n')
        for _ in range(2):
            seen = bench.train(expression=f"__import__('{other.stem}').WHOSE")
            assert {entry["saw"] for entry in seen if "saw" in entry} == {"the user's"}
        assert len(imports(seen)) == IN_VAIN_AND_BY_RANKS
    finally:
        other.unlink()


@pytest.mark.slow
def test_a_library_of_no_weight_is_not_worth_new_agents(bench: Bench, library: Path) -> None:
    library.write_text(library.read_text().replace("time.sleep(1.1)", ""))
    for _ in range(2):
        assert len(imports(bench.train())) == 2


@pytest.mark.slow
def test_a_trial_that_fails_before_it_has_built_teaches_nothing(bench: Bench) -> None:
    failing = trial(bench.folder, "nowhere:build")
    assert bench.launcher.slots[0].run_solo(failing, lambda _: False).outcome is Outcome.ERROR
    assert len(imports(bench.train())) == 2
    bench.train()
    assert not imports(bench.train())
