"""`autotune init -- COMMAND` over scripts as different as people write them: what it finds is so, and
the study that it writes runs."""

import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from autotune.config import load
from search_spaces import defaults
from tests.support.steering import StudyFolder, quick_measurement, study_folder

SCRIPTS = Path(__file__).parent.parent / "scripts"
SETTINGS = SCRIPTS / "varied" / "settings" / "train.yaml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StudyFolder]:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # it takes as long as all else together
    with study_folder(tmp_path) as found:
        shutil.copytree(SCRIPTS / "varied", found.folder, dirs_exist_ok=True)
        for script in ("plain_ddp.py", "spawned.py"):
            shutil.copy(SCRIPTS / script, found.folder)
        (found.folder / "study.yaml").unlink(missing_ok=True)
        yield found


def written(folder: StudyFolder, command: str, name: str = "study.yaml") -> dict:
    found = folder.run("init", name, "--", *command.split())
    assert found.returncode == 0, found.stdout + found.stderr
    load(folder.folder / name)
    study: dict = yaml.safe_load((folder.folder / name).read_text())
    return study


def refused(folder: StudyFolder, script: str, *options: str) -> str:
    """Return what init says of a script for which it writes no study."""
    (folder.folder / "own.py").write_text(script)
    found = folder.run("init", *options, "--", "python", "own.py")
    assert found.returncode == 2, found.stdout + found.stderr
    assert not (folder.folder / "study.yaml").exists()
    return found.stderr


@pytest.mark.long
def test_study_of_a_plain_script_in_another_folder_is_of_the_command_as_it_is_typed_here(
    folder: StudyFolder,
) -> None:
    (folder.folder / "studies").mkdir()
    command = "torchrun --nproc-per-node 2 plain_ddp.py --batch-size 8 --epochs 100000"
    study = written(folder, command, "studies/study.yaml")
    assert study["workload"]["script"] == "plain_ddp.py"
    assert study["workload"]["flags"] == {
        "micro_batch": "--batch-size",
        "accumulation_steps": "--accumulate",
    }
    assert study["resources"] == {"workers": 2}
    assert study["search_space"]["micro_batch"] == [1, 2, 4, 8]
    assert study["search_space"]["accumulation_steps"] == [1, 2, 4, 8]
    assert study["search_space"]["precision"] == ["fp32", "bf16"]
    assert study["baseline"]["micro_batch"] == 8
    again = folder.ask("init", "studies/study.yaml", "--", *command.split())
    assert again.returncode == 2
    assert "exists already; it is left as it was" in again.stderr


@pytest.mark.errand
def test_knobs_that_act_on_the_model_are_offered_to_a_plain_script(folder: StudyFolder) -> None:
    for script in (SCRIPTS / "kinds").glob("*.py"):
        shutil.copy(script, folder.folder)
    study = written(folder, "python plain.py")
    assert study["search_space"]["precision"] == ["fp32", "bf16"]
    assert study["search_space"]["channels_last"] == [False, True]
    assert study["baseline"]["precision"] == "fp32"
    assert "compile" not in study["search_space"]
    text = (folder.folder / "study.yaml").read_text()
    assert "# Not here: compile: it has found nothing to act on" in text


@pytest.mark.errand
def test_the_study_that_comes_of_it_runs(folder: StudyFolder) -> None:
    study = written(folder, "torchrun --nproc-per-node 2 plain_ddp.py --epochs 100000")
    short = {**study, "budget": {"trials": 2}, "measurement": quick_measurement(ablation_rounds=0)}
    (folder.folder / "study.yaml").write_text(yaml.safe_dump(short))
    found = folder.run("start", "study.yaml", "--foreground", "--storage", folder.url)
    assert re.search(r" round +2 ", found.stdout), found.stdout + found.stderr


@pytest.mark.errand
def test_settings_that_no_parser_knows(folder: StudyFolder) -> None:
    study = written(folder, "torchrun --nproc-per-node 2 settings_by_exec.py --batch_size=8")
    assert study["workload"]["flags"] == {
        "micro_batch": "--batch_size=",
        "accumulation_steps": "--gradient_accumulation_steps=",
    }
    assert study["workload"]["global_flags"] == ["accumulation_steps"]
    assert study["workload"]["samples"] == 8 * 4
    assert study["baseline"]["accumulation_steps"] == 4
    assert "num_workers" not in study["search_space"]
    told = folder.ask("doctor", "study.yaml", "--storage", folder.url).stdout
    assert "ok    knob accumulation_steps: 1 " in told, told
    largest = {**study, "search_space": {"micro_batch": ["max"]}}
    largest["objective"] = {"global_batch_size": "free"}
    (folder.folder / "study.yaml").write_text(yaml.safe_dump(largest))
    told = folder.ask("doctor", "study.yaml", "--storage", folder.url).stdout
    assert "ok    knob micro_batch: not tried: max is looked for" in told, told


@pytest.mark.errand
def test_settings_in_a_file_that_an_argument_names(folder: StudyFolder) -> None:
    command = "torchrun --nproc-per-node 2 from_file.py --config settings/train.yaml"
    study = written(folder, command)
    assert study["workload"]["flags"] == {
        "micro_batch": "--config::training.batch_size",
        "accumulation_steps": "--config::training.accumulate",
    }
    assert study["search_space"]["micro_batch"] == [1, 2, 4, 8]
    told = folder.ask("doctor", "study.yaml", "--storage", folder.url).stdout
    assert "takes effect, by --config::training.batch_size" in told, told
    assert (folder.folder / "settings/train.yaml").read_bytes() == SETTINGS.read_bytes()


@pytest.mark.errand
def test_settings_in_a_file_at_a_fixed_place(folder: StudyFolder) -> None:
    study = written(folder, "torchrun --nproc-per-node 2 from_file.py")
    assert study["workload"]["flags"] == {
        "micro_batch": "settings/train.toml::training.batch_size",
        "accumulation_steps": "settings/train.toml::training.accumulate",
    }


@pytest.mark.errand
def test_click_streams_and_two_models(folder: StudyFolder) -> None:
    study = written(folder, "python clicked.py --bs 4")
    assert study["workload"]["flags"] == {"micro_batch": "--bs"}
    assert (study["baseline"]["micro_batch"], study["baseline"]["accumulation_steps"]) == (4, 1)
    assert study["search_space"].keys() >= {"num_workers", "optimizer_kernels"}


@pytest.mark.errand
def test_hydra(folder: StudyFolder) -> None:
    study = written(folder, "python configured.py data.batch_size=16")
    assert study["workload"]["flags"] == {
        "micro_batch": "data.batch_size=",
        "accumulation_steps": "trainer.accumulate_grad_batches=",
    }
    assert study["baseline"]["accumulation_steps"] == 2


@pytest.mark.errand
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("raise SystemExit('no data here')", "no data here"),
        pytest.param(
            "print('nothing is trained')",
            "write study.yaml with workload.command (a list of its words, ",
            marks=pytest.mark.errand,
        ),
        pytest.param("import no_such_module", "no_such_module", marks=pytest.mark.errand),
    ],
)
def test_what_cannot_be_looked_at_says_why(folder: StudyFolder, script, told) -> None:
    (folder.folder / "own.py").write_text(script)
    found = folder.run("init", "--", "python", "own.py")
    assert found.returncode == 2
    assert told in found.stderr
    assert "Traceback (most recent call last)" not in found.stderr.partition("error:")[0]
    assert not (folder.folder / "study.yaml").exists()


_FILE_BESIDE = """
import pathlib, tomllib, torch
from torch.utils.data import DataLoader, TensorDataset
rows = tomllib.loads(pathlib.Path(__file__).with_name("conf.toml").read_text())["loader"]["rows"]
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), rows):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.errand
def test_field_of_a_file_beside_a_script_of_another_folder_is_found(folder: StudyFolder) -> None:
    beside = folder.folder.with_name(f"{folder.folder.name} scripts")
    beside.mkdir()
    (beside / "own.py").write_text(_FILE_BESIDE)
    (beside / "conf.toml").write_text("[loader]\nrows = 8\n")
    found = folder.run("init", "--", "python", f"../{beside.name}/own.py")
    assert found.returncode == 0, found.stderr
    study = yaml.safe_load((folder.folder / "study.yaml").read_text())
    assert study["workload"]["flags"] == {"micro_batch": f"../{beside.name}/conf.toml::loader.rows"}


_TEN_STEPS = """
import argparse, torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(epochs):
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 8)), 4):
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.long
def test_init_script_that_ends_after_ten_steps_names_what_makes_it_longer(
    folder: StudyFolder,
) -> None:
    (folder.folder / "own.py").write_text(_TEN_STEPS)
    found = folder.run("init", "--", "python", "own.py")
    assert found.returncode == 2, found.stdout
    assert "ended by itself after 10 optimizer steps" in found.stderr
    assert "(now 1)" in found.stderr
    assert not (folder.folder / "study.yaml").exists()


@pytest.mark.long
def test_init_script_with_an_exit_status_shows_what_it_printed(folder: StudyFolder) -> None:
    text = "import sys\nprint('unable to locate 2 devices')\nsys.exit(3)"
    (folder.folder / "own.py").write_text(text)
    found = folder.run("init", "--", "python", "own.py")
    assert found.returncode == 2, found.stdout
    assert "with exit status 3" in found.stderr
    assert "Rank 0 has printed last:" in found.stderr
    assert found.stderr.rstrip().endswith("unable to locate 2 devices")


def test_what_is_wrong_with_the_command_itself_is_told_at_once(folder: StudyFolder) -> None:
    missing = folder.ask("init", "--", "python", "missing.py")
    assert (missing.returncode, "missing.py: no such file" in missing.stderr) == (2, True)
    odd = folder.ask("init", "--", "python", "plain_ddp.py", "caf\udce9")
    assert odd.returncode == 2
    assert "is not UTF-8" in odd.stderr
    assert not (folder.folder / "study.yaml").exists()


_SEQUENCE_FIRST = """
import argparse, torch
first = argparse.ArgumentParser()
first.add_argument("-c", default="")
_, rest = first.parse_known_args()
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=20)
batch = parser.parse_args(rest).batch_size
model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    data = torch.randint(50, (16, batch))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(data).view(-1, 50), data.view(-1)).backward()
    optimizer.step()
"""


@pytest.mark.errand
def test_batches_whose_sequence_comes_first_and_two_parsers(folder: StudyFolder) -> None:
    (folder.folder / "own.py").write_text(_SEQUENCE_FIRST)
    study = written(folder, "python own.py -c x")
    assert study["workload"]["flags"] == {"micro_batch": "--batch_size"}
    assert study["workload"]["samples"] == study["baseline"]["micro_batch"] == 20


@pytest.mark.errand
@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("python worded.py --trainer.batch_size=16", "--trainer.batch_size="),
        ("python worded.py mode=train batch=16", "batch="),
        ("python worded.py -b 16", "-b"),
        ("python worded.py --rows=16", "--rows="),
        ("env BATCH_SIZE=16 python worded.py", "$BATCH_SIZE"),
    ],
)
def test_micro_batch_is_found_whatever_word_says_it(
    folder: StudyFolder, command: str, flag: str
) -> None:
    found = folder.run("init", "--", *command.split())
    study = yaml.safe_load((folder.folder / "study.yaml").read_text())
    assert study["workload"]["flags"]["micro_batch"] == flag
    assert "tokenizer" not in found.stderr


@pytest.mark.errand
def test_batch_and_accumulation_are_found_among_words_of_a_parser_of_its_own(
    folder: StudyFolder,
) -> None:
    command = "python worded.py --data.batch_size=16 --trainer.accumulate_grad_batches=2"
    study = written(folder, command)
    assert study["workload"]["flags"] == {
        "micro_batch": "--data.batch_size=",
        "accumulation_steps": "--trainer.accumulate_grad_batches=",
    }


@pytest.mark.errand
def test_script_that_accumulates_by_itself_is_tuned_by_its_micro_batch(folder: StudyFolder) -> None:
    study = written(folder, "python keeping.py --log-every 5")
    assert study["workload"]["flags"] == {
        "micro_batch": "--device-batch-size",
        "log_interval": "--log-every",
    }
    assert study["workload"]["keeps_global_batch"] is True
    assert study["search_space"]["micro_batch"] == [1, 2, 4, 8, 16]
    assert study["search_space"]["log_interval"] == [5, 50]
    assert study["baseline"]["accumulation_steps"] == 2
    assert not study["search_space"].keys() & {
        "accumulation_steps",
        "optimizer_kernels",
        "cpu_threads",
    }
    told = folder.ask("doctor", "study.yaml", "--storage", folder.url).stdout
    assert "knob micro_batch: 1 takes effect, as 1 x 16 of the same global batch" in told, told


@pytest.mark.errand
def test_study_of_a_script_that_accumulates_by_itself_runs(folder: StudyFolder) -> None:
    study = written(folder, "python keeping.py")
    short = {
        **study,
        "search_space": {"micro_batch": [4, 8, 16]},
        "budget": {"trials": 3},
        "measurement": quick_measurement(ablation_rounds=0),
    }
    (folder.folder / "study.yaml").write_text(yaml.safe_dump(short))
    found = folder.run("start", "study.yaml", "--foreground", "--storage", folder.url)
    assert re.search(r" round +2 ", found.stdout), found.stdout + found.stderr
    assert "ERROR" not in found.stdout, found.stdout


@pytest.mark.errand
def test_fields_that_a_check_of_the_script_ties_are_changed_together(folder: StudyFolder) -> None:
    study = written(folder, "python tied.py")
    assert study["workload"]["flags"] == {
        "micro_batch": "settings/tied.json::train_micro_batch_size_per_gpu",
        "accumulation_steps": "settings/tied.json::gradient_accumulation_steps",
    }
    told = folder.ask("doctor", "study.yaml", "--storage", folder.url).stdout
    assert "ok    knob micro_batch: 1 takes effect, as 1 x 16 of the same global batch" in told, (
        told
    )


_TWO_LOADERS = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--labeled-bs", type=int, default=4)
parser.add_argument("--unlabeled-bs", type=int, default=12)
told = parser.parse_args()
data = torch.utils.data.TensorDataset(torch.randn(4800, 8))
loaders = [
    torch.utils.data.DataLoader(data, batch_size=size, drop_last=True)
    for size in (told.labeled_bs, told.unlabeled_bs)
]
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for (some,), (others,) in zip(*loaders):
        model(torch.cat([some, others])).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.errand
def test_two_loaders_are_turned_in_proportion(folder: StudyFolder) -> None:
    (folder.folder / "own.py").write_text(_TWO_LOADERS)
    study = written(folder, "python own.py")
    assert study["workload"]["in_proportion"] == {
        "micro_batch": {"--labeled-bs": 4, "--unlabeled-bs": 12}
    }
    assert study["baseline"]["micro_batch"] == 16
    free = {
        **study,
        "objective": {"global_batch_size": "free"},
        "search_space": {"micro_batch": [8, 16]},
    }
    (folder.folder / "study.yaml").write_text(yaml.safe_dump(free))
    told = folder.ask("doctor", "study.yaml", "--storage", folder.url).stdout
    assert "ok    knob micro_batch: 8 takes effect, by --labeled-bs" in told, told


_SHORT = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    model(torch.randn(8, 8)).mean().backward()
    optimizer.step()
"""


@pytest.mark.errand
def test_study_of_a_script_that_ends_too_soon_is_not_written(folder: StudyFolder) -> None:
    assert "ended by itself after 5 optimizer steps" in refused(folder, _SHORT)


@pytest.mark.errand
def test_name_that_the_storage_has_is_not_taken_again(folder: StudyFolder) -> None:
    folder.repository.studies.submit("clicked", "host:here", {}, str(folder.folder))
    before = {path.name for path in folder.folder.iterdir()}
    study = written(folder, "python clicked.py")
    assert study["name"] == "clicked-2"
    left = {path.name for path in folder.folder.iterdir()}
    assert left - before - {"__pycache__"} == {"study.yaml"}


_SWITCHED = """
import argparse, contextlib, time, torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--fused", action="store_true")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--steps", type=int, default=10**6)
told = parser.parse_args()
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=told.fused)
loader = DataLoader(TensorDataset(torch.randn(8 * told.steps % 4096 + 8, 8)), 8)
half = torch.autocast("cpu", torch.bfloat16, enabled=told.amp)
for _ in range(told.steps):
    for (rows,) in loader:
        time.sleep(0 if told.fused else 0.02)
        with half:
            loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("fused" if told.fused else "plain", loss.dtype)
"""


@pytest.mark.long
def test_options_of_the_script_are_knobs(folder: StudyFolder) -> None:
    (folder.folder / "own.py").write_text(_SWITCHED)
    study = written(folder, "python own.py")
    assert study["workload"]["flags"] == {"precision": "--amp", "optimizer_kernels": "--fused"}
    assert study["workload"]["words"] == {
        "precision": {"fp32": False, "bf16": True},
        "optimizer_kernels": {"default": False, "fused": True},
    }
    assert study["search_space"]["precision"] == ["fp32", "bf16"]
    assert study["baseline"]["optimizer_kernels"] == "default"
    text = (folder.folder / "study.yaml").read_text()
    assert "# Not here: --channels-last true is not channels_last: false as before" in text


@pytest.mark.errand
def test_options_of_the_script_are_tuned_and_given_to_the_job(folder: StudyFolder) -> None:
    (folder.folder / "own.py").write_text(_SWITCHED)
    study = written(folder, "python own.py")
    short = {
        **study,
        "search_space": {"optimizer_kernels": ["default", "fused"]},
        "budget": {"trials": 2},
        "measurement": quick_measurement(ablation_rounds=0),
    }
    (folder.folder / "study.yaml").write_text(yaml.safe_dump(short))
    told = folder.ask("doctor", "study.yaml", "--storage", folder.url).stdout
    assert "ok    knob optimizer_kernels: fused takes effect, by --fused" in told, told
    found = folder.run("start", "study.yaml", "--foreground", "--storage", folder.url)
    assert found.returncode == 0, found.stdout + found.stderr
    best = yaml.safe_load((folder.folder / "best.yaml").read_text())
    assert best["script"]["turned"] == {"optimizer_kernels": True}
    assert best["knobs"].keys() == {*study["baseline"], *short["search_space"]}
    assert "defaults" not in best
    ran = folder.run("run", "best.yaml", "--", "python", "own.py", "--steps", "2")
    assert "optimizer_kernels: (not given) -> --fused" in ran.stderr
    assert "fused torch.float32" in ran.stdout


_SUMS = """
import argparse, torch
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=8)
args = parser.parse_args()
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for number, x in enumerate(DataLoader(torch.randn(4096, 64), args.batch_size), 1):
        model(x).square().mean().backward()
        if number % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.errand
def test_split_of_a_script_that_sums_its_losses_is_not_offered(folder: StudyFolder) -> None:
    (folder.folder / "own.py").write_text(_SUMS)
    study = written(folder, f"{sys.executable} own.py")
    assert not {"micro_batch", "accumulation_steps"} & study["search_space"].keys()
    text = (folder.folder / "study.yaml").read_text()
    assert "does not divide its loss by the accumulation steps" in text


_SLOW = """
import time
print("compiling kernel 7 of 9", flush=True)
time.sleep(3600)
"""


@pytest.mark.errand
def test_start_that_takes_too_long_names_its_limit(folder: StudyFolder) -> None:
    told = refused(folder, _SLOW, "--startup-timeout", "13")
    assert "10 s; it has printed: compiling kernel 7 of 9" in told
    assert "autotune init --startup-timeout 26s" in told


_TRAINED_ELSEWHERE = """
import time
import torch.multiprocessing as multiprocessing

if __name__ == "__main__":
    trains = multiprocessing.Process(target=time.sleep, args=(3600,))
    trains.start()
    trains.join()
"""


@pytest.mark.long
def test_script_that_trains_in_processes_of_its_own_is_told_so(folder: StudyFolder) -> None:
    told = refused(folder, _TRAINED_ELSEWHERE, "--startup-timeout", "11")
    assert "1 process ran that it had started by multiprocessing" in told


_BY_NAME = """
import torch

layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(layer.parameters())
for number in range(100_000):
    layer.forward(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.long
def test_steps_of_a_script_whose_batch_is_not_seen_are_counted(folder: StudyFolder) -> None:
    (folder.folder / "own.py").write_text(_BY_NAME)
    study = written(folder, f"{sys.executable} own.py")
    assert study["objective"] == {"metric": "steps_per_second"}
    assert "samples" not in study["workload"]
    assert "micro_batch" not in {**study["baseline"], **study["search_space"]}
    short = {**study, "budget": {"trials": 4}, "measurement": quick_measurement(ablation_rounds=0)}
    (folder.folder / "study.yaml").write_text(yaml.safe_dump(short))
    found = folder.run("start", "study.yaml", "--foreground", "--storage", folder.url)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "steps/s" in found.stdout


@pytest.mark.errand
def test_limit_of_a_start_is_written_into_the_study(folder: StudyFolder) -> None:
    found = folder.run("init", "--startup-timeout", "20m", "--", "python", "clicked.py")
    assert found.returncode == 0, found.stderr
    assert load(folder.folder / "study.yaml").measurement.startup_timeout == 1200


@pytest.mark.errand
def test_script_that_spawns_its_ranks_is_tuned_with_them(folder: StudyFolder) -> None:
    study = written(folder, f"{sys.executable} spawned.py --batch-size 8 --epochs 10000")
    assert study["workload"]["launch"] == "torch.multiprocessing.spawn"
    assert study["workload"]["flags"] == {"micro_batch": "--batch-size"}
    assert study["resources"] == {"workers": 2}
    best = {
        "target": "spawned.py",
        "is_module": False,
        "flags": {},
        "turned": {},
        "changes": ["gradient_as_bucket_view", "num_workers"],
        "launch": study["workload"]["launch"],
    }
    knobs = {**defaults(), "num_workers": 1, "gradient_as_bucket_view": True}
    content = {"format": 3, "knobs": knobs, "world_size": 2, "throughput": {}, "speedup": None}
    content |= {"script": best, "provenance": {}, "unusual": []}
    (folder.folder / "best.yaml").write_text(yaml.safe_dump(content))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "spawned.py", "--epochs", "1", "--port", port]
    ran = folder.run("run", "best.yaml", "--", *words)
    assert ran.returncode == 0, ran.stderr
    assert "rank 0: 1 workers, True" in ran.stdout
    assert "rank 1: 1 workers, True" in ran.stdout
    assert ran.stdout.endswith("all ranks have ended\n")
