"""The variables of a study are in its agents, from before torch is imported there, and in no other's."""

import concurrent.futures
import json
import multiprocessing
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.config import StudySpec
from autotune.runs.study_setup import StudySetup, launcher_of
from autotune.worker.processes import MARKER
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Launcher, Resources, section_of
from launchers.replay import Answer, ReplayLauncher
from search_spaces import defaults

WORKLOAD = """
import json, os
from pathlib import Path
import torch
from torch import nn
import autotune

def build():
    server = Path(f"/proc/{os.getppid()}/environ").read_text().split("\\0")
    seen = {
        "server": dict(line.split("=", 1) for line in server if "=" in line),
        "rank": dict(os.environ),
        "threads": __import__("torch._inductor.config")._inductor.config.compile_threads,
        "cache": torch._inductor.runtime.cache_dir_utils.cache_dir(),
    }
    Path("seen.json").write_text(json.dumps(seen))
    return autotune.Workload(
        model=nn.Linear(4, 4),
        dataset=torch.randn(64, 4),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""

STUDY = {
    "name": "cached",
    "workload": {"name": "looking:build"},
    "search_space": {"precision": ["fp32", "bf16"]},
    "resources": {"workers": 1, "gpus_per_worker": 0},
}


def seen(launcher: Launcher, folder: Path, env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    (folder / "looking.py").write_text(WORKLOAD)
    request = TrialRequest(
        trial=folder.name,
        factory="looking:build",
        args={},
        knobs={**defaults(), "micro_batch": 2},
        world_size=1,
        seed=0,
        device="cpu",
        blocks=BlockPlan(0.01, 2, max_blocks=2),
        workdir=str(folder),
        import_paths=(str(folder),),
        env=dict(env),
        log_dir=str(folder / "logs"),
    )
    report = launcher.slots[0].run_solo(request, lambda _: False)
    assert report.outcome is None, report.cause + report.log_tail
    found: dict[str, dict[str, str]] = json.loads((folder / "seen.json").read_text())
    return found


def seen_under(kind: str, folder: Path, env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What a launcher of this kind passes on."""
    with section_of(kind).open(Resources(1, 0, 1, 1), str(folder), env=env) as launcher:
        return seen(launcher, folder, env)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "local",
        # A machine has room for one Ray, and Ray may end the process that was its driver.
        pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.xdist_group("ray")]),
    ],
)
def test_the_fork_server_has_them_too(tmp_path: Path, kind: str) -> None:
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "3", "COLOUR": "red"}
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
        found = process.submit(seen_under, kind, tmp_path, env).result()
    assert env.items() <= found["server"].items()
    assert env.items() <= found["rank"].items()
    assert found["threads"] == 3, "torch has read it as it was imported"


@pytest.mark.slow
def test_another_study_has_its_own(tmp_path: Path) -> None:
    colours = []
    for env in ({"COLOUR": "red"}, {"SHAPE": "round"}):
        with section_of("local").open(Resources(1, 0, 1, 1), str(tmp_path), env=env) as opened:
            server = seen(opened, tmp_path, env)["server"]
            colours.append((server.get("COLOUR"), server.get("SHAPE")))
    assert colours == [("red", None), (None, "round")]


@pytest.mark.long
def test_what_is_ours_to_set_stays_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("AUTOTUNE_STORAGE", "postgresql://me:secret@host/studies")
    env = {"CUDA_VISIBLE_DEVICES": "5", MARKER: "mine", "PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
    env["AUTOTUNE_STORAGE"] = "postgresql://me:another@host/studies"
    with section_of("local").open(Resources(1, 0, 1, 1), str(tmp_path), env=env) as launcher:
        found = seen(launcher, tmp_path, env)
    for process in ("server", "rank"):
        assert found[process]["CUDA_VISIBLE_DEVICES"] == "-1"
        assert found[process][MARKER] != "mine"
        assert "AUTOTUNE_STORAGE" not in found[process], "no rank needs to know"
        assert found[process]["PYTORCH_NVML_BASED_CUDA_CHECK"] == "0", "the user's word"


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_what_is_compiled_is_kept_below_the_study_unless_it_says_otherwise(
    tmp_path: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it where it compiles
    elsewhere = tmp_path / "elsewhere"
    env = {"TORCHINDUCTOR_CACHE_DIR": str(elsewhere)} if own else {}
    spec = StudySpec.model_validate({**STUDY, "env": env})
    with launcher_of(spec, tmp_path / "study") as launcher:
        found = seen(launcher, tmp_path, spec.env)
    expected = elsewhere if own else tmp_path / "study" / "compiled"
    assert found["cache"] == str(expected)


@pytest.mark.slow
def test_a_cache_that_the_user_has_already_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    with launcher_of(StudySpec.model_validate(STUDY), tmp_path / "study") as launcher:
        found = seen(launcher, tmp_path, {})
    assert found["cache"] == str(tmp_path / "mine")


def test_a_trial_that_compiles_has_longer_to_start_and_for_its_steps(tmp_path: Path) -> None:
    spec = StudySpec.model_validate({**STUDY, "measurement": {"startup_timeout": 100}})
    with ReplayLauncher(lambda _: Answer(rate=100.0)) as launcher:
        setup = StudySetup(spec, launcher)
        timeouts = [
            setup.request(
                launcher.slots[0],
                {**defaults(), "compile": mode},
                name=mode,
                workdir=tmp_path,
                log_dir=tmp_path,
            ).timeouts
            for mode in ("none", "default", "max-autotune")
        ]
    assert [timeout.startup for timeout in timeouts] == [100, 300, 1000]
    assert [timeout.step for timeout in timeouts] == [60, 180, 600]
