"""The wheel is complete: installed outside the checkout it runs a study."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import autotune as library
from tests.steering import TINY_WORKLOAD, StudyFolder, quick_measurement, study_folder, tiny_study

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


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[StudyFolder]:
    with study_folder(tmp_path) as found:
        (found.folder / "tiny.py").unlink()
        yield found


def test_the_wheel_holds_what_it_must_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {*PACKAGES, f"autotune-{library.__version__}.dist-info"}
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
    assert "best.yaml: load it with autotune.load()" in printed
    empty.assert_complete(trials=4)
    log = call(installed / "autotune", "logs", empty.name, "--trial", "0", cwd=empty.folder)
    assert f"ranks use {installed.parent}" in log
    assert str(CHECKOUT) not in log
    code = "import autotune; print(autotune.load('best.yaml')['micro_batch'])"
    best = call(installed / "python", "-c", code, cwd=empty.folder)
    assert int(best) in (1, 2, 4, 8)
