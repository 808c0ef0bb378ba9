"""Scripts that start ranks by themselves: measured as their ranks, or ended with what to type."""

import pytest

from autotune.worker.protocol import PYTHON, SPAWN, TORCHRUN, Outcome
from tests.contract.scripts.bench import Bench, assert_well

LAUNCHES = """
import subprocess, sys
subprocess.run([{"PYTHON": sys.executable}.get(word, word) for word in sys.argv[1:]], check=False)
"""
STARTS = """
import os, subprocess, sys
variables = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2")
subprocess.run([sys.executable, "-c", "", *sys.argv[1:]], env={**os.environ, **variables})
"""
TRAINS_ALONE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), 4):
        model(x).square().mean().backward()
        optimizer.step()
"""
ANEW = """
import os, sys
if not os.environ.get("OMP_PLACES"):
    os.environ |= {"OMP_PLACES": "{0}, {1}", "OF_A_FILE": "hidden"}
    os.execv(sys.executable, [sys.executable, *sys.argv])
"""
FORKS = """
import os
if not os.fork():
    os.execvp("true", ["true"])
"""
SHELL = "import os, sys\nos.system(sys.argv[1])\n"
SPAWNED = """
import os, sys
os.posix_spawn("/bin/true", sys.argv[1:], {**os.environ})
"""
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n"


@pytest.mark.parametrize(
    ("script", "args", "told"),
    [
        (
            STARTS,
            ("LOCAL_RANK=1", "b c"),
            "`torchrun --nproc-per-node 2 own.py LOCAL_RANK=1 'b c'`",
        ),
        (LAUNCHES, ("torchrun", "train.py"), "type what it starts"),
        (LAUNCHES, ("PYTHON", "-u", "-m", "torch.distributed.run", "a.py"), "type what it starts"),
        (LAUNCHES, ("PYTHON", "-m", "torch.distributed.launch", "a.py"), "type what it starts"),
        (LAUNCHES, ("PYTHON", "-W", "ignore", "bin/accelerate", "launch"), "type what it starts"),
        (SHELL, ("torchrun 'own script.py'",), "type what it starts, `torchrun 'own script.py'`"),
        (
            SPAWNED,
            ("accelerate", "launch", "a.py"),
            "type what it starts, `accelerate launch a.py`",
        ),
        (SPAWNS, (), "say `launch: torch.multiprocessing.spawn`"),
    ],
)
@pytest.mark.long
def test_script_that_starts_ranks_is_ended_with_what_to_type(
    bench: Bench, script: str, args: tuple[str, ...], told: str
) -> None:
    report = bench.run(bench.write(script), *args, told={"launch": PYTHON})
    assert report.outcome == Outcome.ERROR
    assert told in report.cause


@pytest.mark.parametrize(
    "args",
    [
        ("PYTHON", "-m", "pip", "show", "accelerate"),
        ("PYTHON", "-c", "", "torchrun"),
        ("ls", "home/deepspeed"),
    ],
)
@pytest.mark.long
def test_script_that_asks_about_a_launcher_runs_on(bench: Bench, args: tuple[str, ...]) -> None:
    script = bench.write(LAUNCHES + TRAINS_ALONE)
    assert_well(bench.run(script, *args, told={"launch": PYTHON}))


@pytest.mark.parametrize("launch", [PYTHON, TORCHRUN])
def test_script_that_starts_anew_in_its_process_is_told_to_set_the_variable(
    bench: Bench, launch: str
) -> None:
    """Scripts set PYTHONHASHSEED so. Nothing observes the program that follows."""
    report = bench.run(bench.write(ANEW), told={"launch": launch})
    assert report.outcome == Outcome.ERROR
    told = "set the variable before the command, `env OMP_PLACES='{0}, {1}' OF_A_FILE=... ...`"
    assert told in report.cause, "and no value that may be a secret"


@pytest.mark.parametrize("script", [FORKS, SHELL], ids=["forks", "shell"])
def test_script_that_starts_another_program_beside_itself_runs_on(
    bench: Bench, script: str
) -> None:
    assert_well(bench.run(bench.write(script + TRAINS_ALONE), "true '", told={"launch": PYTHON}))


def test_process_of_the_same_rank_is_none_of_another(bench: Bench) -> None:
    script = bench.write(STARTS + TRAINS_ALONE)
    assert_well(bench.run(script, "helper", told={"launch": PYTHON}))


def test_ranks_of_torch_multiprocessing_train_together(bench: Bench) -> None:
    report = bench.run("spawned.py", told={"launch": SPAWN}, num_workers=1)
    assert_well(report)
    assert report.blocks[0].samples == 2 * 8 * report.blocks[0].steps


def test_script_that_starts_other_ranks_than_the_study_has_is_told(bench: Bench) -> None:
    report = bench.run("spawned.py", "--ranks", "3", told={"launch": SPAWN})
    assert report.outcome == Outcome.ERROR
    assert "starts 3 ranks, and resources.workers of the study is 2" in report.cause


def test_ranks_of_torch_multiprocessing_under_torchrun_are_refused(bench: Bench) -> None:
    report = bench.run("spawned.py", told={"launch": TORCHRUN})
    assert report.outcome == Outcome.ERROR
    assert "give its command without the launcher" in report.cause
