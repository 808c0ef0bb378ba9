"""The process of a trial beside that of the command: equal, key by key, but for what is listed here."""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.runs.study_setup import launcher_of
from autotune.standalone.launch_command import taken_apart
from autotune.standalone.survey import Allowed, _spec
from autotune.worker import reporting
from autotune.worker.files import COMPILER_CACHES
from autotune.worker.processes import MARKER
from autotune.worker.protocol import BlockPlan, Script
from autotune.worker.sandbox import redirect, uploads
from launchers import section_of
from tests.contract.scripts.bench import SCRIPTS
from tests.support.trials import knobs, trial

PAGE = Path(__file__).parents[3] / "docs" / "scripts.md"


def documented(row: str) -> set[str]:
    """Return the variables of a row of the table of what differs."""
    table = PAGE.read_text().partition("### What differs between a trial and the job")[2]
    [text] = re.findall(rf"^\| {row}.*?\|(.*)$", table, re.MULTILINE)
    return set(re.findall(r"`([A-Z][A-Z_]*_[A-Z_]+|TMPDIR|PYTHON[A-Z]+)", text))


OURS = {*documented("variables besides"), "TOLD"}
"""Variables that a trial has besides, or otherwise, and one of these tests."""
OF_MEETING = documented("where ranks meet")
"""Those in which ranks of a trial meet at another place."""
OF_DEEPSPEED = {
    *("CUDA_VISIBLE_DEVICES", "TORCHELASTIC_USE_AGENT_STORE"),
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # that deepspeed sets wherever it is imported
}
NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Of the user, though agents of ours set it for themselves."""
AROUND = {"RANK": "3", "LOCAL_RANK": "3", "SLURM_PROCID": "3", "OMPI_COMM_WORLD_RANK": "3"}
"""What a launch or a batch step that surrounds autotune has set."""


def rarely(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.errand)


def told_in_trial(
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    changes: Mapping[str, Any],
    launcher: str = "local",
) -> dict[str, Any]:
    """What the script of a command tells in a trial, by rank 0."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**AROUND, **environment}.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        launched = taken_apart(command)
        spec = _spec(launched, Allowed()).model_copy(update={"launcher": section_of(launcher)})
        with launcher_of(spec, folder / "agents") as opened:
            report = opened.slots[0].run_solo(
                trial(
                    folder,
                    "",
                    world_size=opened.ranks,
                    knobs=knobs(**changes),
                    import_paths=(),
                    script=Script(
                        launched.target,
                        (*launched.args, "--train"),
                        is_module=launched.is_module,
                        launch=launched.launch,
                        changes=tuple(changes),
                    ),
                    blocks=BlockPlan(0.01, 2, max_blocks=1),
                    env={**launched.env, "TOLD": str(folder / "trial")},
                ),
                lambda _: False,
            )
    assert report.outcome is None, f"{report.cause}\n{report.log_tail}"
    return told_by_first(folder, "trial")


def told_by_command(
    folder: Path, command: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """What the script tells when the command is typed, by rank 0."""
    told = {**os.environ, **environment, "TOLD": str(folder / "plain")}
    subprocess.run(command, cwd=folder, env=told, check=True, timeout=120)
    return told_by_first(folder, "plain")


def told_by_first(folder: Path, name: str) -> dict[str, Any]:
    path = next(path for path in (folder / f"{name}0", folder / name) if path.exists())
    return dict(json.loads(path.read_text()))


def differences(plain: dict[str, Any], in_trial: dict[str, Any]) -> dict[str, Any]:
    """What is not equal, by key, with both values."""
    in_trial["argv"].remove("--train")
    in_trial["orig_argv"].remove("--train")
    pairs = [plain.pop("environment"), in_trial.pop("environment")]
    names = {name for name in {*pairs[0], *pairs[1]} if pairs[0].get(name) != pairs[1].get(name)}
    found = {name: (pairs[0].get(name), pairs[1].get(name)) for name in names - OURS}
    return found | {
        key: (plain[key], in_trial[key]) for key in plain if plain[key] != in_trial[key]
    }


def test_variables_of_the_table_are_those_that_are_set() -> None:
    assert documented("variables besides") == {MARKER, *COMPILER_CACHES, *uploads.OFFLINE}
    assert documented("variables with") == {redirect.VARIABLE, "PYTHONPATH", "TMPDIR"}
    assert documented("variables of a") == {"PYTHONUNBUFFERED", reporting.VARIABLE}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK"):  # set by other tests
        monkeypatch.delenv(name, raising=False)
    package = tmp_path / "package"
    (package / "tools").mkdir(parents=True)
    for script in (tmp_path / "process.py", package / "tools" / "process.py"):
        script.write_text((SCRIPTS / "process.py").read_text())
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (
            "python -O -u -X dev -W error::SyntaxWarning ./tools/process.py a --b",
            {"PYTHONPATH": "..:tools", "OMP_NUM_THREADS": "1", **NVML},
        ),
        rarely("python ./tools/process.py a --b", {"PYTHONPATH": "..:tools", **NVML}),
        ("python -m tools.process", {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "ignore"}),
        rarely("python -I tools/../tools/process.py", {}),
        rarely("env A=1 OMP_NUM_THREADS=1 python -P tools/process.py", {}),
        rarely("accelerate launch --cpu --mixed_precision bf16 tools/process.py", {}),
    ],
)
def test_plain_command_and_its_trial_have_the_same_process(
    folder: Path, words: str, environment: dict[str, str]
) -> None:
    place, command = folder / "package", words.split()
    plain = told_by_command(place, command, environment)
    in_trial = told_in_trial(place, command, environment, {})
    assert "RANK" not in in_trial["environment"]
    assert not differences(plain, in_trial)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "otherwise"),
    [
        ("torchrun --nproc-per-node 2 tools/process.py a", set()),
        rarely("torchrun --nproc-per-node 1 -m tools.process", set()),
        rarely("python -m torch.distributed.launch --nproc-per-node 2 tools/process.py", set()),
        rarely("deepspeed --num_gpus 2 tools/process.py", OF_DEEPSPEED),
    ],
)
def test_rank_of_a_launcher_and_of_a_trial_are_the_same_but_for_where_they_meet(
    folder: Path, words: str, otherwise: set[str]
) -> None:
    place, command = folder / "package", words.split()
    plain = told_by_command(place, command, {})
    in_trial = told_in_trial(place, command, {}, {})
    assert differences(plain, in_trial).keys() <= OF_MEETING | otherwise


@pytest.mark.long
def test_threads_of_a_trial_are_those_of_its_configuration_alone(folder: Path) -> None:
    command = ["python", "tools/process.py"]
    in_trial = told_in_trial(folder / "package", command, {}, {"cpu_threads": 1})
    assert in_trial["environment"]["OMP_NUM_THREADS"] == "1"
    assert in_trial["threads"] == 1
    assert {threads for _, threads in in_trial["pools"]} <= {1}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The `srun` command is available")
def test_library_takes_the_process_of_a_trial_for_no_task_of_the_batch_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.fabric.plugins.environments import SLURMEnvironment

    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_NPROCS": "1"}
    in_trial = told_in_trial(folder / "package", ["python", "tools/process.py"], batch, {})
    assert in_trial["environment"]["SLURM_JOB_ID"] == "7"
    monkeypatch.setattr(os, "environ", in_trial["environment"])
    assert not SLURMEnvironment.detect()


@pytest.mark.long
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("threads", [None, "3"])
def test_threads_of_a_trial_on_ray_are_those_of_the_command(
    folder: Path, threads: str | None
) -> None:
    given = {} if threads is None else {"OMP_NUM_THREADS": threads}
    command = ["python", "tools/process.py"]
    in_trial = told_in_trial(folder / "package", command, given, {}, launcher="ray")
    assert in_trial["environment"].get("OMP_NUM_THREADS") == threads


@pytest.mark.long
def test_modules_beside_the_folder_of_the_script_shadow_nothing(folder: Path) -> None:
    for name in ("torch.py", "random.py", "autotune.py"):
        (folder / "package" / name).write_text("raise SystemExit('of the working folder')")
    in_trial = told_in_trial(folder / "package", ["python", "tools/process.py"], {}, {})
    assert in_trial["path"][0] == str(folder / "package" / "tools")
