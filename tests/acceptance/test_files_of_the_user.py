"""The commands over a script that writes: user folder and home change by what is announced alone."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.files.footprint import footprint, home, project
from tests.support.steering import quick_measurement

PREFIXES = {"overlay": [], "copies": [sys.executable, "-m", "tests.support.without_namespaces"]}
OURS = ("autotune.db", "autotune.db-wal", "autotune.db-shm", "autotune.db.lock")
ANNOUNCED = frozenset({".autotune", "study.yaml", "best.yaml", *OURS})
ROOT = Path(__file__).parents[2]
COMMAND = ["python", "train.py", "--batch-size", "4"]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="autotune-files-"))
    project(made / "project")
    home(made / "home")
    yield made
    shutil.rmtree(made)


def autotune(how: str, folder: Path, *arguments: str) -> str:
    """Run a command there that succeeds, and return what it printed."""
    found = ran(how, folder, *arguments)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def ran(how: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command there."""
    code = "import sys; from autotune.cli import run; run()"
    return subprocess.run(
        [*PREFIXES[how], sys.executable, "-c", code, *arguments],
        cwd=folder / "project",
        env={**os.environ, "HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


_COPIES_ITSELF = """
import subprocess, torch
from torch.utils.data import DataLoader, TensorDataset
subprocess.run(["cp", __file__, "backup.py"], check=True)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(80, 8)), 4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.long
def test_init_script_that_is_refused_to_write_is_told_of_may_write(folder: Path) -> None:
    (folder / "project" / "own.py").write_text(_COPIES_ITSELF)
    refused = ran("copies", folder, "init", "--", "python", "own.py")
    assert refused.returncode == 2, refused.stdout
    assert "cannot create regular file 'backup.py'" in refused.stderr.splitlines()[1]
    assert "autotune init --may-write" in refused.stderr
    assert not (folder / "project" / "study.yaml").exists()
    autotune("copies", folder, "init", "--may-write", "--", "python", "own.py")
    study = yaml.safe_load((folder / "project" / "study.yaml").read_text())
    assert study["workload"]["may_write"] is True
    assert (folder / "project" / "backup.py").exists()


@pytest.mark.long
@pytest.mark.parametrize("how", ["overlay", pytest.param("copies", marks=pytest.mark.errand)])
def test_files_after_init_doctor_and_start_are_as_before(folder: Path, how: str) -> None:
    def seen() -> tuple[object, object]:
        return footprint(folder / "project", without=ANNOUNCED), footprint(folder / "home")

    before = seen()
    autotune(how, folder, "init", "--", *COMMAND)
    assert seen() == before
    study = folder / "project" / "study.yaml"
    text = study.read_text()
    assert "It writes" not in text
    short = yaml.safe_load(text) | {
        "search_space": {"num_workers": [0, 1]},
        "budget": {"trials": 1},
        "measurement": quick_measurement(),
    }
    short["workload"].pop("flags", None)
    study.write_text(yaml.safe_dump(short))
    told = autotune(how, folder, "doctor", "study.yaml")
    assert ("overlay of all file systems" if how == "overlay" else "goes to copies") in told
    assert seen() == before
    autotune(how, folder, "start", "study.yaml", "--foreground")
    assert seen() == before
