"""A launch command under `autotune run`: what it says by itself, what changes, what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.run_job import _started, _unchanged
from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.export.best import BestConfig
from autotune.export.launch_settings import with_variables
from autotune.export.tuned_job import Started, script_job, script_of
from autotune.worker.inject.job_order import VARIABLE, Order

BATCH = {"micro_batch": "--batch-size", "accumulation_steps": "$STEPS"}
TORCHRUN = ["torchrun", "--nproc-per-node", "2", "train.py"]


def best(flags: dict[str, str] = BATCH, **changes: Any) -> BestConfig:
    """Of a study of 16 x 2 that recommends 32 x 1 and other buckets."""
    arguments = changes.pop("args", ["--batch-size", "16"])
    spec = StudySpec(
        name="a",
        workload={"script": "train.py", "args": arguments, "flags": flags},
        env={"STEPS": "2"},
        resources={"workers": 2},
        search_space={"micro_batch": [16, 32], "bucket_cap_mb": [5, 25]},
        baseline={"micro_batch": 16, "accumulation_steps": 2},
        objective={"global_batch_size": "free"},
    )
    knobs = {**spec.full_baseline(), "micro_batch": 32, "accumulation_steps": 1}
    knobs["bucket_cap_mb"] = 5
    script = script_of(spec, knobs, Path.cwd(), 2)
    return dataclasses.replace(BestConfig(knobs, 2, {}, script=script), **changes)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_change_of_the_job_is_told() -> None:
    job = script_job(best(), [*TORCHRUN, "--batch-size", "16"], {"STEPS": "2"}, Started(2))
    assert job.changes == (
        "micro_batch: --batch-size 16 -> 32",
        "accumulation_steps: $STEPS 2 -> 1",
        "bucket_cap_mb: 25 -> 5 (from outside)",
        "What the job counts in micro-batches (such as validation and saving) now means 2 times as "
        "many samples.",
    )
    assert job.refusals == ()
    assert Order.from_text(job.environment[VARIABLE]).script.baseline == {"bucket_cap_mb": 25}


def test_argument_of_a_class_reaches_the_job_and_is_told_as_code() -> None:
    flags = {"micro_batch": "TrainingArguments(per_device_train_batch_size)"}
    job = script_job(best(flags, args=[]), TORCHRUN, {}, Started(2))
    given = {"TrainingArguments(per_device_train_batch_size)": 32}
    assert Order.from_text(job.environment[VARIABLE]).script.constructed == given
    assert "micro_batch: TrainingArguments(per_device_train_batch_size=32)" in job.changes
    assert job.command == tuple(TORCHRUN)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("parallelism", "fsdp", "checkpoints: the state_dict"),
        ("gradient_compression", "powersgd", "gradient_compression: the first 1,000 steps"),
    ],
)
def test_job_says_what_differs_from_a_trial_and_from_itself(
    name: str, value: str, told: str
) -> None:
    chosen = best()
    knobs = {**chosen.knobs, name: value}
    assert chosen.script is not None
    script = {**chosen.script, "changes": [name]}
    job = script_job(dataclasses.replace(chosen, knobs=knobs, script=script), TORCHRUN, {})
    assert any(change.startswith(told) for change in job.changes)


@pytest.mark.parametrize(("measured", "text"), [("2.21.5", "Tree"), ("2.28.9", "allreduce:tree")])
def test_nccl_is_told_its_algorithm_as_the_version_of_the_ranks_takes_it(
    measured: str, text: str
) -> None:
    chosen = best()
    knobs = {**chosen.knobs, "nccl_algo": "Tree"}
    provenance = {"environment": {"nccl": measured}}
    job = script_job(dataclasses.replace(chosen, knobs=knobs, provenance=provenance), TORCHRUN, {})
    assert job.environment["NCCL_ALGO"] == text


def test_assignments_of_a_leading_env_are_rewritten() -> None:
    command = ["env", "STEPS=2", "A=1", *TORCHRUN, "--batch-size=16"]
    job = script_job(best(), command, {})
    assert job.command[:3] == ("env", "STEPS=1", "A=1")
    assert job.command[-1] == "--batch-size=32"
    assert job.refusals == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["torchrun"], ["torchrun"]),
        (["A=1", "torchrun"], ["A=2", "torchrun"]),
        (["mpirun", "-x", "A=1", "python"], ["mpirun", "-x", "A=2", "python"]),
        (["env", "torchrun"], ["env", "torchrun"]),
        (["env", "-i", "X=1", "torchrun"], ["env", "-i", "X=1", "A=2", "torchrun"]),
        (["env", "-u", "A", "torchrun"], ["env", "-u", "A", "A=2", "torchrun"]),
        (["/usr/bin/env", "-uA", "-C", "/", "python"], ["/usr/bin/env", "-uA", "-C", "/", "A=2"]),
        (["env", "-u", "B", "python"], ["env", "-u", "B", "python"]),
    ],
)
def test_words_before_the_script_hand_on_a_variable(words: list[str], expected: list[str]) -> None:
    assert with_variables(words, {"A": "2"})[: len(expected)] == tuple(expected)


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        (["--batch-size", "64"], {"STEPS": "2"}, "--batch-size 64 in the command"),
        ([], {"STEPS": "2"}, "--batch-size (not given) in the command"),
        (["--batch-size", "16"], {"STEPS": "4"}, "$STEPS 4 in the command"),
    ],
)
def test_job_of_another_batch_is_refused(
    words: list[str], variables: dict[str, str], told: str
) -> None:
    (refused,) = script_job(best(), [*TORCHRUN, *words], variables).refusals
    assert refused.startswith(told)


def test_job_that_has_the_recommended_batch_already_is_not_refused() -> None:
    job = script_job(best(), [*TORCHRUN, "--batch-size", "32"], {"STEPS": "1"})
    assert job.refusals == ()
    assert job.changes == ("bucket_cap_mb: 25 -> 5 (from outside)",)


def test_job_that_has_all_of_it_already_is_told_so() -> None:
    config = best()
    assert config.script is not None
    config.script["changes"] = []
    job = script_job(config, [*TORCHRUN, "--batch-size", "32"], {"STEPS": "1"})
    assert job.changes == ()
    assert _unchanged(config) == "nothing is changed: the command has what the study recommends"
    config.script["turned"] = {}
    assert _unchanged(config) == "nothing is changed: the study keeps your configuration"


PARTS = {"--labeled-bs": 4, "--unlabeled-bs": 12}


def two_loaders(**chosen: int) -> BestConfig:
    """Return what a study recommends whose micro-batch has 4 + 12 samples."""
    spec = StudySpec(
        name="a",
        workload={
            "script": "train.py",
            "args": ["--labeled-bs", "4", "--unlabeled-bs", "12"],
            "flags": {"accumulation_steps": "$STEPS"},
            "in_proportion": {"micro_batch": PARTS},
        },
        env={"STEPS": "2"},
        resources={"workers": 2},
        search_space={"micro_batch": [16, 32], "bucket_cap_mb": [5, 25]},
        baseline={"micro_batch": 16, "accumulation_steps": 2},
    )
    knobs = {**spec.full_baseline(), **chosen}
    return BestConfig(knobs, 2, {}, script=script_of(spec, knobs, Path.cwd(), 2))


OTHER_SIZE = {"micro_batch": 32, "accumulation_steps": 1}


@pytest.mark.parametrize("words", ["4 --unlabeled-bs 12", "8 --unlabeled-bs 24"])
def test_settings_that_make_up_the_batch_may_have_its_new_values_already(words: str) -> None:
    command = [*TORCHRUN, "--labeled-bs", *words.split()]
    job = script_job(two_loaders(**OTHER_SIZE), command, {"STEPS": "2"})
    assert job.command[len(TORCHRUN) :] == ("--labeled-bs", "8", "--unlabeled-bs", "24")
    assert job.refusals == ()


@pytest.mark.parametrize("chosen", [OTHER_SIZE, {"bucket_cap_mb": 5}])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("4 --unlabeled-bs 48", "--unlabeled-bs 48 in the command"),
        ("6 --unlabeled-bs 12", "--labeled-bs 6 in the command"),
    ],
)
def test_another_value_of_one_setting_of_the_batch_is_refused(
    chosen: dict[str, int], words: str, told: str
) -> None:
    command = [*TORCHRUN, "--labeled-bs", *words.split()]
    (refused,) = script_job(two_loaders(**chosen), command, {"STEPS": "2"}).refusals
    assert refused.startswith(told)


def test_script_that_derives_its_accumulation_is_asked_for_its_batch_alone() -> None:
    spec = StudySpec(
        name="a",
        workload={
            "script": "train.py",
            "args": ["--b", "16"],
            "flags": {"micro_batch": "--b"},
            "keeps_global_batch": True,
        },
        resources={"workers": 2},
        search_space={"micro_batch": [16, 32]},
        baseline={"micro_batch": 16, "accumulation_steps": 2},
    )
    knobs = {**spec.full_baseline(), **OTHER_SIZE}
    config = BestConfig(knobs, 2, {}, script=script_of(spec, knobs, Path.cwd(), 2))
    assert script_job(config, [*TORCHRUN, "--b", "32"], {}).refusals == ()
    (refused,) = script_job(config, [*TORCHRUN, "--b", "64"], {}).refusals
    assert refused == "--b 64 in the command, and --b 16 in the study"


def test_variable_that_the_job_lacks_is_the_studys() -> None:
    config = best()
    assert config.script is not None
    del config.script["turned"]["accumulation_steps"]
    job = script_job(config, [*TORCHRUN, "--batch-size", "16"], {})
    assert (job.environment["STEPS"], job.refusals) == ("2", ())


def test_job_of_other_ranks_is_refused() -> None:
    (refused,) = script_job(best(), [*TORCHRUN, "--batch-size", "16"], {}, Started(8)).refusals
    assert refused.startswith("the command starts 8 ranks, and the study ran 2")


def test_job_under_another_launcher_than_the_study_is_refused() -> None:
    config, command = best(), [*TORCHRUN, "--batch-size", "16"]
    (refused,) = script_job(config, command, {}, Started(2, "deepspeed")).refusals
    assert "starts its script as deepspeed does, and the study as torchrun does" in refused
    assert not script_job(config, command, {}, Started(2, "torchrun")).refusals
    older = {name: value for name, value in (config.script or {}).items() if name != "launch"}
    config = dataclasses.replace(config, script=older)
    assert not script_job(config, command, {}, Started(2, "deepspeed")).refusals


def test_start_that_is_not_known_is_told_and_that_variables_may_not_arrive() -> None:
    config, command = best(), ["docker", "run", "img", *TORCHRUN, "--batch-size", "16"]
    job = script_job(config, command, {"STEPS": "2"}, Started(unknown="docker"))
    assert job.differences == (
        "ranks and launcher were not compared: docker",
        "what acts from outside, or by variables, may not arrive in the ranks",
    )
    assert config.script is not None
    config.script["changes"] = []
    job = script_job(config, command, {"STEPS": "2"}, Started(unknown="docker"))
    assert job.differences == ("ranks and launcher were not compared: docker",)


OVER_HOSTS = ["deepspeed", "--hostfile", "hosts"]


def over_hosts() -> BestConfig:
    """Of a study under deepspeed, whose recommendation needs variables."""
    Path("hosts").write_text("a slots=1\nb slots=1\n")
    config = best()
    assert config.script is not None
    config.script["launch"] = "deepspeed"
    return config


def refusals_over_hosts(config: BestConfig, *options: str, **variables: str) -> tuple[str, ...]:
    command = [*OVER_HOSTS, *options, "train.py", "--batch-size", "16"]
    return script_job(config, command, {"STEPS": "2", **variables}, _started(command)).refusals


def test_changes_that_deepspeed_hands_on_to_no_other_host_are_refused() -> None:
    config = over_hosts()
    started = _started([*OVER_HOSTS, "train.py"])
    assert (started.ranks, started.launch, started.nodes) == (2, "deepspeed", 2)
    (refused,) = refusals_over_hosts(config)
    assert "on 2 hosts, " in refused
    assert "(STEPS, AUTOTUNE_RUN): start it on each node, with --no_ssh --node_rank N" in refused
    assert refusals_over_hosts(config, "--no_ssh", "--node_rank", "0") == ()
    assert config.script is not None
    config.script.update(changes=[], turned={"micro_batch": 32})
    assert refusals_over_hosts(config) == ()


@pytest.mark.parametrize("options", [["--launcher", "slurm"], ["--launcher=slurm"]])
def test_launcher_below_deepspeed_that_hands_on_all_is_not_refused(options: list[str]) -> None:
    assert refusals_over_hosts(over_hosts(), *options) == ()
    assert refusals_over_hosts(over_hosts(), "--launcher", "pdsh")


@pytest.mark.parametrize("where", ["home", "."])
@pytest.mark.parametrize("variables", [{}, {"DS_ENV_FILE": "my_env"}])
def test_variables_in_the_file_of_deepspeed_are_handed_on(
    where: str, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    file = tmp_path / where / variables.get("DS_ENV_FILE", ".deepspeed_env")
    file.write_text("STEPS=1\n")
    (refused,) = refusals_over_hosts(over_hosts(), **variables)
    assert "(AUTOTUNE_RUN)" in refused
    file.write_text("STEPS=2\n")  # not the recommended value
    (refused,) = refusals_over_hosts(over_hosts(), **variables)
    assert "(STEPS, AUTOTUNE_RUN)" in refused


@pytest.mark.parametrize(("number", "ranks"), [(4, 4), (0, None)])
def test_rank_on_each_device_is_as_many_as_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, ranks: int | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for which in range(number):
        (tmp_path / f"nvidia{which}").touch()
    command = ["torchrun", "--nproc-per-node", "gpu", "train.py", "--batch-size", "16"]
    started = _started(command, tmp_path)
    assert started.ranks == ranks
    job = script_job(best(), command, {"STEPS": "2"}, started)
    refused = [reason for reason in job.refusals if "starts 4 ranks, and the study ran 2" in reason]
    untold = [one for one in job.differences if one.startswith("ranks were not compared: ")]
    assert (len(refused), len(untold)) == ((1, 0) if ranks else (0, 1))


def test_devices_are_those_that_the_command_chooses(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"nvidia{number}").touch()
    command = ["env", "CUDA_VISIBLE_DEVICES=1,3", "torchrun", "--nproc-per-node", "gpu", "train.py"]
    assert _started(command, tmp_path).ranks == 2


def test_ranks_that_the_script_starts_are_told_where_devices_are_others() -> None:
    config, command = best(), ["python", "train.py", "--batch-size", "16"]
    assert config.script is not None
    config.script["launch"] = "torch.multiprocessing.spawn"
    started = Started(1, "python", devices=4)
    (told,) = script_job(config, command, {"STEPS": "2"}, started).differences
    assert told == (
        "how many ranks train.py starts was not compared: the study ran 2, and the command finds 4 "
        "CUDA devices"
    )
    for same in (Started(1, "python", devices=2), Started(1, "python")):  # nor has the study any
        assert script_job(config, command, {"STEPS": "2"}, same).differences == ()
    on_devices = {"environment": {"devices": [{"name": "NVIDIA A100"}]}}
    config = dataclasses.replace(config, provenance=on_devices)
    (told,) = script_job(config, command, {"STEPS": "2"}, Started(1, "python")).differences
    assert "the command finds 0 CUDA devices" in told


def test_devices_are_counted_of_a_command_that_is_not_known(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"nvidia{number}").touch()
    command = ["sudo", "CUDA_VISIBLE_DEVICES=1,3", "python", "train.py"]
    assert _started(command, tmp_path).devices == 2


OTHERS = [
    "--seq-length",
    "2048",
    "--lr=1e-4",
    "--bf16",
    "--api-key",
    "sk-1",
    "--out",
    "a",
    "epochs=3",
]


def with_others() -> BestConfig:
    return best(args=[*OTHERS, "--global-batch-size", "256", "--batch-size", "16"])


def test_arguments_of_the_study_are_kept_without_those_turned_and_secret() -> None:
    script = with_others().script
    assert script is not None
    assert script["arguments"] == {
        "--seq-length": "2048",
        "--lr": "1e-4",
        "--bf16": "",
        "--out": "a",
        "epochs=": "3",
        "--global-batch-size": "256",
    }


def test_number_of_passes_is_no_secret() -> None:
    script = best(args=["--batch-size", "16", "--two-pass", "2", "--num_pass=3"]).script
    assert script is not None
    assert script["arguments"] == {"--two-pass": "2", "--num_pass": "3"}


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "c2VjcmV0LWtleQ=="],
        ["--password", "-Abc123"],
        ["--conn", "Protocol=https;AccountKey=Abc123"],
        ["Protocol=https;AccountKey=Abc123"],
        ["--env=HF_TOKEN=Abc123"],
        ["-eHF_TOKEN=Abc123"],
        ["logger.auth=Abc123"],
        ["--header", "Authorization: Bearer Abc123"],
        ["--header", "X-Api-Key:Abc123"],
        ["--config", '{"api_key": "Abc123"}'],
        ["--config", "{'user': {'password' : 'Abc123'}}"],
        ["--api-key:Abc123"],
    ],
)
def test_secret_among_the_arguments_is_in_no_best_yaml(words: list[str]) -> None:
    script = best(args=["--batch-size", "16", *words, "--lr", "1", "--out=a"]).script
    assert script is not None
    assert "Abc123" not in str(script) and "c2Vj" not in str(script)
    assert script["arguments"]["--out"] == "a"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--seq-length 2048", []),
        ("--seq-length=2048", []),
        (
            "--seq-length 4096 --flash",
            [
                "--seq-length 4096 in the command, and --seq-length 2048 in the study",
                "--flash in the command, and --flash (not given) in the study",
            ],
        ),
        ("", ["--seq-length (not given) in the command, and --seq-length 2048 in the study"]),
    ],
)
@pytest.mark.parametrize("size", ["--batch-size 16", "--batch-size=32"])
def test_other_arguments_than_in_the_study_are_told(words: str, told: list[str], size: str) -> None:
    rest = ["--global-batch-size", "256", "--api-key", "sk-2", *OTHERS[2:4], *OTHERS[6:]]
    command = [*TORCHRUN, *rest, *words.split(), *size.split()]
    job = script_job(with_others(), command, {"STEPS": "2"})
    assert (job.differences, job.refusals) == (tuple(told), ())


@pytest.mark.parametrize(
    "words", ["--batch-size 32 data/", "data/ --batch-size=32", "--batch-size=32 data/"]
)
def test_word_behind_an_option_that_was_turned_is_no_part_of_it(words: str) -> None:
    config = best(args=["--batch-size", "16", "data/"])
    assert config.script is not None
    assert config.script["arguments"] == {"": "data/"}
    assert script_job(config, [*TORCHRUN, *words.split()], {"STEPS": "2"}).differences == ()


def switched(chosen: bool, args: list[str], flag: str) -> BestConfig:
    """Return what a study recommends that has tried a switch and a number of workers."""
    spec = StudySpec(
        name="a",
        workload={
            "script": "train.py",
            "args": args,
            "flags": {"pin_memory": flag, "num_workers": "--workers"},
        },
        resources={"workers": 2},
        search_space={"pin_memory": [False, True], "num_workers": [2, 4]},
        baseline={"pin_memory": flag in args, "num_workers": 2},
    )
    knobs = {**spec.full_baseline(), "pin_memory": chosen}
    return BestConfig(knobs, 2, {}, script=script_of(spec, knobs, Path.cwd(), 2))


@pytest.mark.parametrize(
    ("chosen", "flag", "then", "now", "told"),
    [
        (True, "--pin", "a.yaml", "--pin a.yaml", ()),
        (True, "--pin", "a.yaml", "a.yaml --pin", ()),
        (False, "--pin", "--pin a.yaml", "a.yaml", ()),
        (True, "--pin/--no-pin", "a.yaml", "--pin a.yaml", ()),
        (True, "--pin", "--pin a.yaml", "a.yaml --pin", ()),
        (False, "--pin", "a.yaml --workers 2", "--workers=2 a.yaml", ()),
        (
            False,
            "--pin",
            "a.yaml",
            "--pin a.yaml",
            ("--pin in the command, and --pin (not given)",),
        ),
        (True, "--pin", "--pin a.yaml", "a.yaml", ("--pin (not given) in the command, and --pin",)),
        (True, "--pin", "--pin a.yaml", "--pin b.yaml", ("b.yaml in the command, and a.yaml",)),
        (
            False,
            "--pin",
            "--workers 2 a.yaml",
            "--workers 8 a.yaml",
            ("--workers 8 in the command, and --workers 2 in the study",),
        ),
    ],
)
def test_word_behind_a_switch_is_no_part_of_it(
    chosen: bool, flag: str, then: str, now: str, told: tuple[str, ...]
) -> None:
    config = switched(chosen, then.split(), flag)
    differences = script_job(config, [*TORCHRUN, *now.split()], {}).differences
    assert len(differences) == len(told)
    assert all(map(str.startswith, differences, told))


@pytest.mark.parametrize(
    ("then", "now", "refused"),
    [
        ("--global-batch-size=256", "--global-batch-size=2048", True),
        ("--global-batch-size 256", "--global_batch_size 2048", True),
        ("--global-batch-size 256 /data", "--global-batch-size 2048 /data", True),
        ("--lr 1", "--lr 1 --trainBatchSize 8", True),
        ("batch_size=256", "batch_size=2048", True),
        ("--total-batch-size 64 /data", "--total-batch-size 64 /scratch", False),
        ("--total_batch_size 64", "--total-batch-size=64", False),
        ("--total-batch-size 64", "--total-batch-size 32 --total-batch-size 64 --lr 1", False),
        ("--total-batch-size 32 --total-batch-size 64 /data", "--total-batch-size 64", False),
        ("train.batch_size=8", "+train.batch_size=8", False),
        ("--eval-batch-size 8", "--eval-batch-size 16", False),
        *(
            (f"{option} 8", f"{option} 16", False)
            for option in (
                "--evaluation_batch_size",
                "--inference-batch-size",
                "--predict_batch_size",
                "--sample_batch_size",
                "--testing_batch_size",
                "--dev_batch_size",
                "--evalBatchSize",
            )
        ),
    ],
)
def test_another_size_of_a_batch_that_was_not_tuned_is_refused(
    then: str, now: str, refused: bool
) -> None:
    config = best(args=["--batch-size", "16", *then.split()])
    command = [*TORCHRUN, "--batch-size", "16", *now.split()]
    job = script_job(config, command, {"STEPS": "2"})
    assert (bool(job.refusals), bool(job.differences)) == (refused, not refused)


@pytest.mark.parametrize(
    ("here", "told"),
    [
        (("NVIDIA H100",), "it was tuned on NVIDIA A100 MIG 1g, and NVIDIA H100 is here"),
        (("NVIDIA A10",), "it was tuned on NVIDIA A100 MIG 1g, and NVIDIA A10 is here"),
        (("NVIDIA A100",), ""),
        ((), ""),
    ],
)
def test_other_devices_than_those_of_the_study_are_told(here: tuple[str, ...], told: str) -> None:
    devices = {"environment": {"devices": [{"name": "NVIDIA A100 MIG 1g"}]}}
    config = dataclasses.replace(best(), provenance=devices)
    command = [*TORCHRUN, "--batch-size", "16"]
    job = script_job(config, command, {"STEPS": "2"}, Started(2, models=here))
    assert job.differences == ((told,) if told else ())


REFUSED_BY_INIT = [
    "docker run img python",
    "apptainer exec x.sif python",
    "srun -n 8 --ntasks-per-node 8 python",
    "mpirun -np 16 python",
    "sudo python",
]


@pytest.mark.parametrize("before", REFUSED_BY_INIT)
def test_command_that_init_refuses_is_run_with_a_word_of_it(before: str) -> None:
    started = _started([*before.split(), "train.py"])
    assert (started.ranks, started.launch) == (None, None)
    assert started.unknown.startswith("`autotune init` would refuse this command (")


@pytest.mark.parametrize(
    "before",
    [
        "taskset -c 0",
        "nohup numactl -N 0",
        "systemd-run --scope",
        "env -u A B=1",
        "env -i",
        "env -",
        "srun --export=NONE",
        "srun --container-image=x.sqsh",
        "srun --chdir /p numactl -N 0",
        "uv run --directory /p",
    ],
)
def test_command_that_trials_could_not_follow_is_compared(before: str) -> None:
    started = _started([*before.split(), *TORCHRUN])
    assert (started.ranks, started.launch, started.unknown) == (2, "torchrun", "")


@pytest.mark.parametrize(
    ("before", "told"),
    [
        *((before, True) for before in REFUSED_BY_INIT if "srun" not in before),
        ("ssh node python", True),
        ("srun --export NONE python", True),
        ("srun --export=A,B python", True),
        ("systemd-run python", True),
        ("systemd-run --scope python", False),
        ("srun -n 8 --ntasks-per-node 8 python", False),
        ("srun --export=ALL,A=1 python", False),
        ("numactl -N 0 python", False),
        ("taskset -c 0 python", False),
        ("env -u A python", False),
        ("python", False),
    ],
)
def test_variables_that_may_not_arrive_are_told_of_programs_that_keep_them_out(
    before: str, told: bool
) -> None:
    command = [*before.split(), "train.py", "--batch-size", "16"]
    job = script_job(best(), command, {"STEPS": "2"}, _started(command))
    text = "what acts from outside, or by variables, may not arrive in the ranks"
    assert (text in job.differences) is told


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ("-H a,b -np 2", "-x STEPS -x AUTOTUNE_RUN -x PYTHONPATH"),
        ("--hostfile hosts -x STEPS=2 -x PYTHONPATH", "-x AUTOTUNE_RUN"),
        ("-x STEPS -x AUTOTUNE_RUN -x PYTHONPATH -H a,b", ""),
        ("-hosts a,b", ""),
        ("-machinefile hosts -genvall", ""),
        ("-hosts a,b -genvlist STEPS,PYTHONPATH", "-x AUTOTUNE_RUN"),
        ("-hosts a,b -genvnone -genv STEPS 2", "-x AUTOTUNE_RUN -x PYTHONPATH"),
        ("-H a,b --mca mca_base_env_list STEPS;PYTHONPATH=1", "-x AUTOTUNE_RUN"),
        ("-np 2", ""),
        ("-H localhost:2", ""),
    ],
)
def test_changes_that_mpirun_hands_on_to_no_other_host_are_refused(options: str, lost: str) -> None:
    command = ["mpirun", *options.split(), "python", "train.py", "--batch-size", "16"]
    refusals = script_job(best(), command, {"STEPS": "2"}, _started(command)).refusals
    assert [f"give it {lost}, or" in refused for refused in refusals] == [True] * bool(lost)


def test_command_that_chooses_devices_is_compared_all_the_same() -> None:
    command = ["env", "CUDA_VISIBLE_DEVICES=0,1", *TORCHRUN]
    started = _started(command)
    assert (started.ranks, started.launch, started.unknown) == (2, "torchrun", "")


@pytest.mark.parametrize(
    ("flag", "typed", "expected"),
    [
        ("--bs=", "--bs=16", ("--bs=32",)),
        ("--bs=", "--bs 16", ("--bs", "32")),
        ("--bs", "--bs=16", ("--bs=32",)),
        ("-b", "-b16", ("-b32",)),
        ("-b", "-b 16", ("-b", "32")),
        ("batch=", "batch=16", ("batch=32",)),
        ("--data.batch_size=", "--data.batch_size=16", ("--data.batch_size=32",)),
    ],
)
def test_batch_is_rewritten_in_whatever_form_it_is_typed(
    flag: str, typed: str, expected: tuple[str, ...]
) -> None:
    flags = {"micro_batch": flag, "accumulation_steps": "$STEPS"}
    job = script_job(best(flags, args=typed.split()), [*TORCHRUN, *typed.split()], {"STEPS": "2"})
    assert job.command[len(TORCHRUN) :] == expected
    assert job.refusals == ()


@pytest.mark.parametrize("command", ["bash launch.sh", "./launch.sh", "sh -c launch"])
def test_shell_script_is_refused_with_what_to_type(command: str) -> None:
    with pytest.raises(BadInput, match=r"give the launch command of train\.py"):
        script_job(best(), command.split(), {})


def test_best_yaml_of_an_earlier_version_refuses_nothing() -> None:
    config = best()
    assert config.script is not None
    del config.script["today"]
    job = script_job(config, [*TORCHRUN, "--batch-size", "64"], {})
    assert job.refusals == ()
    assert "bucket_cap_mb: 5 (from outside)" in job.changes
