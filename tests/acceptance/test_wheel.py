"""The wheel is complete: installed outside the checkout it runs a study."""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import autotune as library
from autotune.export import writing
from search_spaces import defaults
from tests.support.steering import (
    TINY_WORKLOAD,
    StudyFolder,
    quick_measurement,
    study_folder,
    tiny_study,
)

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("autotune", "launchers", "search_spaces", "storage")


def call(*command: object, cwd: Path, timeout: float = 120) -> str:
    """Run a command without the checkout in its way; its output."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AUTOTUNE"))}
    found = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert found.returncode == 0, f"{command}: {found.stdout}\n{found.stderr}"
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
    build.append(CHECKOUT)  # with the hatchling that is installed: a test needs no package index
    call(*build, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel; its dependencies are ours."""
    environment = tmp_path_factory.mktemp("an environment") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment.parent)
    programs = environment / "bin"
    install = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet"]
    call(*install, "--no-deps", "--no-index", wheel, cwd=environment.parent)
    # Last, so that nothing of the wheel counts as installed already. A path in a .pth file brings
    # no .pth files of its own, hence not the checkout.
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return programs


TRAIN = """
import json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import autotune

best = autotune.load("best.yaml")
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4), **best.ddp_arguments())
torch.manual_seed(dist.get_rank())
model(torch.randn(best["micro_batch"], 4)).sum().backward()
gradients = [torch.empty(4, 4) for _ in range(dist.get_world_size())]
dist.all_gather(gradients, model.module.weight.grad)
found = {
    "knobs": dict(best),
    "alike": torch.equal(*gradients),
    "view": model.gradient_as_bucket_view,
    "lost": best.lost_without("micro_batch"),
    "file": autotune.__file__,
    "imported": sorted({name.partition(".")[0] for name in sys.modules}),
}
with open(f"{os.environ['RANK']}.json", "w") as file:
    json.dump(found, file)
"""


def of_package(name: str, known: set[str]) -> set[str]:
    """Names of the distributions that one needs, itself included."""
    known.add(canonicalize_name(name))
    for line in importlib.metadata.requires(name) or []:
        needed = Requirement(line)
        if needed.marker and not needed.marker.evaluate({"extra": ""}):
            continue
        if canonicalize_name(needed.name) not in known:
            of_package(needed.name, known)
    return known


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment with torch, PyYAML and, without its dependencies, the wheel."""
    folder = tmp_path_factory.mktemp("image")
    call(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    call(*install, "--no-deps", "--no-index", wheel, cwd=folder)
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    for name in of_package("torch", of_package("pyyaml", set())):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            there = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if not (site_packages / top).exists():
                (site_packages / top).symlink_to(there)
    return python


@pytest.mark.errand
def test_what_is_recommended_is_loaded_where_there_is_torch_and_pyyaml_only(
    image: Path, tmp_path: Path
) -> None:
    knobs = {**defaults(), "micro_batch": 3, "gradient_as_bucket_view": True, "compile": "default"}
    content = {
        "format": 3,
        "knobs": knobs,
        "world_size": 2,
        "throughput": {"value": 1.0, "low": 1.0, "high": 1.0, "unit": "samples/s"},
        "speedup": None,
        "provenance": {},
    }
    writing.write(tmp_path / "best.yaml", writing.of_this_version(content))
    (tmp_path / "train.py").write_text(TRAIN)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    call(image, *torchrun, "train.py", cwd=tmp_path)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["knobs"] == knobs
        assert found["alike"] and found["view"]
        assert found["lost"] == {"compile": "default"}
        assert Path(found["file"]).is_relative_to(image.parents[1])
        others = {"storage", "launchers", "optuna", "pydantic", "sqlalchemy"}
        assert others.isdisjoint(found["imported"])


def test_a_command_says_what_is_missing_there(image: Path, tmp_path: Path) -> None:
    command = [str(image), "-m", "autotune", "list"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "autotune.load() works all the same" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[StudyFolder]:
    with study_folder(tmp_path) as found:
        (found.folder / "tiny.py").unlink()
        yield found


def test_the_wheel_holds_what_it_must_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {*PACKAGES, f"torch_autotune-{library.__version__}.dist-info"}
    checkout = {
        str(path.relative_to(CHECKOUT))
        for package in PACKAGES
        for path in (CHECKOUT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in names if ".dist-info/" not in name} == checkout
    assert "storage/migrations/script.py.mako" in names
    assert "storage/migrations/versions/v0001_first_tables.py" in names
    assert "autotune/study_template.yaml" in names
    assert "autotune/workload_template.txt" in names
    presets = [name for name in names if name.startswith("search_spaces/presets/")]
    assert len(presets) >= 4
    assert not any("test" in name for name in names)


@pytest.mark.errand
def test_the_installed_wheel_is_what_runs(installed: Path, empty: StudyFolder) -> None:
    for package in PACKAGES:
        where = call(
            installed / "python",
            "-c",
            f"import {package}; print({package}.__file__)",
            cwd=empty.folder,
        )
        assert Path(where).is_relative_to(installed.parent), where
    assert call(installed / "autotune", "--version", cwd=empty.folder).strip() == (
        library.__version__
    )


@pytest.mark.errand
def test_init_and_a_study_from_an_empty_folder(installed: Path, empty: StudyFolder) -> None:
    call(installed / "autotune", "init", cwd=empty.folder)
    template = yaml.safe_load((empty.folder / "study.yaml").read_text())
    template["name"] = empty.name
    small = tiny_study(resources={"workers": 1}, measurement=quick_measurement())
    for section in ("resources", "search_space", "baseline", "objective", "budget", "measurement"):
        template[section] = small[section]
    template["workload"] = "witness:build"
    (empty.folder / "study.yaml").write_text(yaml.safe_dump(template))
    (empty.folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    (empty.folder / "witness.py").write_text(
        "import autotune, tiny\n"
        "def build():\n"
        "    print('ranks use', autotune.__file__, flush=True)\n"
        "    return tiny.build()\n"
    )
    printed = call(installed / "autotune", "start", "study.yaml", cwd=empty.folder)
    assert "autotune.load('best.yaml')" in printed
    empty.assert_complete(trials=4)
    log = call(installed / "autotune", "logs", empty.name, "--trial", "0", cwd=empty.folder)
    assert f"ranks use {installed.parent}" in log
    assert str(CHECKOUT) not in log
    code = "import autotune; print(autotune.load('best.yaml')['micro_batch'])"
    best = call(installed / "python", "-c", code, cwd=empty.folder)
    assert int(best) in (1, 2, 4, 8)
