"""autotune as a guest: the user's own packages have the names of ours, and each gets its own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import autotune as library
from tests.support.steering import StudyFolder, study_folder

NAMES = ("storage", "launchers", "search_spaces")
HOST = """
import launchers
import search_spaces
import storage
from storage.inner import WHOSE

import tiny


def build(**arguments):
    for module in (launchers, search_spaces, storage):
        if module.WHOSE != "the user's":
            raise ImportError(f"{module} is not the user's own")
    if WHOSE != "the user's":
        raise ImportError("storage.inner is not the user's own")
    return tiny.build(**arguments)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StudyFolder]:
    """The user's folder, with packages that autotune would fall over if it imported them."""
    with study_folder(tmp_path) as found:
        for name in NAMES:
            package = found.folder / name
            package.mkdir()
            (package / "__init__.py").write_text('WHOSE = "the user\'s"\n')
            (package / "inner.py").write_text('WHOSE = "the user\'s"\n')
        (found.folder / "host.py").write_text(HOST)
        yield found


@pytest.mark.errand
@pytest.mark.parametrize("launcher", [pytest.param("local", marks=pytest.mark.errand), "ray"])
def test_a_study_in_a_folder_with_packages_named_like_ours(
    host: StudyFolder, launcher: str
) -> None:
    host.write(workload="host:build", launcher=launcher, budget={"trials": 2})
    environment = {"PYTHONPATH": str(host.folder)}
    found = host.run("start", "study.yaml", env=environment, timeout=400)
    assert found.returncode == 0, found.stdout + found.stderr
    host.assert_complete(trials=2)
    assert {a.result.state for a in host.recorded()} <= {"COMPLETE", "PRUNED"}
    assert library.load(host.folder / "best.yaml").provenance["study"] == "tiny"
    host.wait_nothing_runs()


@pytest.mark.errand
def test_the_installed_command_finds_its_own_packages_too(host: StudyFolder) -> None:
    """Not only `python -m autotune`: the console script has no folder of its own to look in."""
    host.write(workload="host:build")
    script = Path(sys.executable).with_name("autotune")
    found = subprocess.run(
        [script, "doctor", "study.yaml"],
        cwd=host.folder,
        env={"PYTHONPATH": str(host.folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Traceback" not in found.stderr
