"""The bundle suffices where there is a torch, and neither an index nor Ray."""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LEFT_OUT = frozenset({"torch", "numpy", "pandas", "ray"})
WITH_TORCH = ("torch", "numpy")


def needed_by(*names: str, without: frozenset[str] = frozenset()) -> set[str]:
    """Names of these distributions, and of all that they need."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in without:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            extras = {"", *(("binary",) if name == "psycopg" else ())}
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(requirement.name)
    return found


def test_the_bundle_names_all_that_is_needed() -> None:
    """At run time, and for the tests on a device."""
    lines = (ROOT / "requirements-bundle.txt").read_text().splitlines()
    bundled = {canonicalize_name(line) for line in lines if not line.startswith("#")}
    needed = needed_by(
        "torch-autotune", "hypothesis", "pytest", "pytest-timeout", "psutil", without=LEFT_OUT
    )
    assert bundled == needed - {"torch-autotune"} | {"nvidia-ml-py"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle for this version of Python."""
    folder = tmp_path_factory.mktemp("carried") / "bundle"
    version = f"BUNDLE_PYTHON={sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run(["make", "bundle", f"BUNDLE={folder}", version], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The programs of an environment with torch and NumPy and what those need, and nothing else."""
    environment = tmp_path_factory.mktemp("machine") / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    for name in needed_by(*WITH_TORCH):
        found = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "")}
        for top in tops - {"__pycache__"}:
            if not (site_packages / top).exists():
                (site_packages / top).symlink_to(found.locate_file(top))
    yield environment / "bin"


def call(*command: object, cwd: Path, expected: int = 0) -> str:
    """Run a command on that machine, which reaches no index; what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "AUTOTUNE"))}
    found = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, "PIP_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == expected, f"{command}: {found.stdout}\n{found.stderr}"
    return found.stdout + found.stderr


@pytest.mark.index
@pytest.mark.timeout(1200)
def test_the_quickstart_runs_from_the_bundle_alone(
    bundle: Path, machine: Path, tmp_path: Path
) -> None:
    python = machine / "python"
    before = call(python, "-c", "import numpy; print(numpy.__file__)", cwd=tmp_path)
    requirements = bundle / "requirements.txt"
    call(python, "-m", "pip", "install", "--no-deps", "-r", requirements, cwd=tmp_path)
    call(python, "-c", "import ray", cwd=tmp_path, expected=1)
    assert call(python, "-c", "import numpy; print(numpy.__file__)", cwd=tmp_path) == before
    study = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    study["budget"] = {"trials": 4}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    call(machine / "autotune", "doctor", cwd=tmp_path)
    call(machine / "autotune", "start", "study.yaml", "--foreground", cwd=tmp_path)
    assert "quickstart: DONE" in call(machine / "autotune", "status", "quickstart", cwd=tmp_path)


@pytest.mark.index
@pytest.mark.timeout(1800)
def test_the_check_for_devices_refuses_where_there_is_none(bundle: Path, machine: Path) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("there is a device")
    asked = ["make", "gpu-check", f"PYTHON={machine / 'python'}", f"BUNDLE={bundle}"]
    assert "Nothing was tested" in call(*asked, cwd=ROOT, expected=2)
