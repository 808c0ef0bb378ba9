"""`autotune export --format`: what a format cannot say is named, and nothing else is."""

import dataclasses
import itertools
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.export import writing
from autotune.export.best import BestConfig, is_best, of, read
from autotune.export.formats import FORMATS, Said, remarks
from autotune.export.tuned_job import script_job, script_of
from search_spaces import CATALOGUE
from search_spaces.knob import Choice, Knob
from tests.support.recommendations import ON_CPU, ON_GPU, of_script, of_workload
from tests.support.steering import ask

OF_WORKLOADS = sorted(FORMATS.keys() - {"argv"})
BATCH = {"micro_batch", "accumulation_steps"}


def others(knob: Knob) -> list[Any]:
    """Values of a knob that are not its default."""
    values = knob.domain.values if isinstance(knob.domain, Choice) else (3, 7)
    return [value for value in values if value != knob.default and not knob.domain.problem(value)]


WITHOUT_EFFECT = {
    ("compile_scope", "blocks"),  # nothing is compiled
    ("parallelism", "none"),  # where there is one rank, nobody wraps its model
}


@pytest.mark.parametrize("form", OF_WORKLOADS)
def test_every_value_of_every_knob_is_said_or_named_as_unsaid(form: str) -> None:
    plain = FORMATS[form](of_workload({}))
    for name, knob in CATALOGUE.items():
        for value in others(knob):
            said = FORMATS[form](of_workload({name: value}))
            if (name, value) not in WITHOUT_EFFECT:
                assert said.unsaid.get(name) == value or said.text != plain.text, (name, value)


@pytest.mark.parametrize("form", OF_WORKLOADS)
def test_what_is_compiled_at_a_time_is_said_or_named_beside_compile(form: str) -> None:
    model = FORMATS[form](of_workload({"compile": "default"}))
    blocks = FORMATS[form](of_workload({"compile": "default", "compile_scope": "blocks"}))
    assert model != blocks


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"yaml", "json"}))
def test_of_a_script_all_that_differs_is_said_or_named_and_nothing_else(form: str) -> None:
    flags = {"micro_batch": "--bs", "log_interval": "log=", "cpu_threads": "$THREADS"}
    turned = {"micro_batch": 16, "log_interval": 5, "cpu_threads": 2}
    same = FORMATS[form](of_script(flags, {}, {}))
    assert not same.unsaid
    changes = {"bucket_cap_mb": 5, "nccl_algo": "Ring", "num_workers": 0}
    for kind, differing in (("turned", turned), ("changes", changes)):
        for name, value in differing.items():
            alone = {"turned": {}, "changes": {}, kind: {name: value}}
            said = FORMATS[form](of_script(flags, **alone))
            assert set(said.unsaid) <= {name}
            assert said.unsaid or said.text != same.text, name


def test_the_batch_is_nobodys_default() -> None:
    assert FORMATS["env"](of_workload({})).unsaid == {"micro_batch": 8, "accumulation_steps": 1}


def test_knobs_that_are_not_of_the_catalogue_are_named() -> None:
    said = FORMATS["lightning"](of_workload({"tensor_parallel": 4}))
    assert said.unsaid["tensor_parallel"] == 4
    assert {*said.unsaid} == {*FORMATS["lightning"](of_workload({})).unsaid, "tensor_parallel"}


# What a consumer would do by itself is another thing than what was measured


@pytest.mark.parametrize("form", ["hf-trainer", "accelerate"])
def test_sums_of_gradients_in_fp32_are_named_where_fsdp_would_sum_in_bf16(form: str) -> None:
    sharded = {"parallelism": "fsdp", "precision": "bf16"}
    assert FORMATS[form](of_workload(sharded)).unsaid["fsdp_reduce_dtype"] == "fp32"
    there = FORMATS[form](of_workload({**sharded, "fsdp_reduce_dtype": "bf16"}))
    assert "fsdp_reduce_dtype" not in there.unsaid


@pytest.mark.parametrize("form", ["hf-trainer", "accelerate"])
def test_fp32_is_named_where_accelerate_computes_in_tf32_beside_compile(form: str) -> None:
    compiled = {"compile": "default"}
    assert FORMATS[form](of_workload(compiled, provenance=ON_GPU)).unsaid["precision"] == "fp32"
    of_others = ({}, {**compiled, "precision": "bf16"})
    others = [of_workload(compiled), *(of_workload(one, provenance=ON_GPU) for one in of_others)]
    for best in others:
        assert "precision" not in FORMATS[form](best).unsaid


def test_trainer_checkpoints_by_itself_where_it_does_not_shard() -> None:
    knobs = {"parallelism": "hsdp", "activation_checkpointing": 1}
    said = FORMATS["hf-trainer"](of_workload(knobs))
    assert said.unsaid["parallelism"] == "hsdp"
    assert json.loads(said.text)["gradient_checkpointing"] is True


@pytest.mark.parametrize("kernels", ["default", "foreach", "fused"])
def test_update_of_the_trainer_is_its_own(kernels: str) -> None:
    said = FORMATS["hf-trainer"](of_workload({"optimizer_kernels": kernels}))
    assert said.unsaid["optimizer_kernels"] == kernels


def test_accelerate_launches_one_process_on_the_cpu() -> None:
    assert FORMATS["accelerate"](of_workload({}, world_size=2)).unsaid["world_size"] == 2
    for alone in (of_workload({}, world_size=1), of_workload({}, provenance=ON_GPU)):
        assert "world_size" not in FORMATS["accelerate"](alone).unsaid


def test_torchtitan_checkpoints_and_compiles_as_it_likes() -> None:
    said = FORMATS["torchtitan"](of_workload({"compile": "default"}))
    assert said.unsaid["activation_checkpointing"] == 0
    assert said.unsaid["compile_scope"] == "model"


# torchtitan is not installed: its names are those of its command line


TORCHTITAN_0_3 = {
    *("training.local_batch_size", "training.global_batch_size", "training.dtype"),
    *("training.mixed_precision_param", "training.mixed_precision_reduce"),
    *("parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"),
    *("parallelism.fsdp_reshard_after_forward", "compile.enable", "compile.no_enable"),
    *("dataloader.num_workers", "dataloader.pin_memory", "dataloader.no_pin_memory"),
    *("dataloader.persistent_workers", "dataloader.no_persistent_workers"),
    *("dataloader.prefetch_factor", "metrics.log_freq", "optimizer.implementation"),
}


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"parallelism": "fsdp", "compile": "default", "num_workers": 2, "pin_memory": True},
        {"parallelism": "fsdp_no_reshard", "persistent_workers": True, "num_workers": 1},
        {"optimizer_kernels": "foreach", "precision": "pure_bf16"},
    ],
)
def test_torchtitan_knows_the_names(knobs: dict[str, Any]) -> None:
    words = shlex.split(FORMATS["torchtitan"](of_workload(knobs)).text)
    names = {word.removeprefix("--") for word in words if word.startswith("--")}
    assert names <= TORCHTITAN_0_3


def test_torchtitan_counts_samples_over_all_ranks() -> None:
    knobs = {"micro_batch": 4, "accumulation_steps": 3, "precision": "bf16"}
    lines = FORMATS["torchtitan"](of_workload(knobs, world_size=8)).text.splitlines()
    assert "--training.local_batch_size 4" in lines
    assert "--training.global_batch_size 96" in lines
    assert "--training.mixed_precision_param bfloat16" in lines
    assert "--parallelism.data_parallel_replicate_degree 8" in lines


@pytest.mark.parametrize(
    ("known", "line", "unsaid"),
    [
        ({"micro_batch": 4}, "--training.local_batch_size 4\n", {}),
        ({"accumulation_steps": 2}, "", {"accumulation_steps": 2}),
        ({"micro_batch": 4, "accumulation_steps": 2}, "--training.global_batch_size 16\n", {}),
    ],
)
def test_torchtitan_is_told_no_batch_that_the_script_alone_knows(
    known: dict[str, Any], line: str, unsaid: dict[str, Any]
) -> None:
    changed = [*known][-1]
    best = of_script({changed: "--it"}, {changed: known[changed]}, {})
    said = FORMATS["torchtitan"](dataclasses.replace(best, knobs=known))
    assert said == Said(line, unsaid)


# env, argv


@pytest.mark.parametrize(("nccl", "line"), [("2.21.5", "Tree"), ("2.28.9", "allreduce:tree")])
def test_nccl_is_told_its_algorithm_as_the_version_of_the_ranks_takes_it(nccl, line) -> None:
    of_ranks = {"environment": {"devices": ["a"], "nccl": nccl}}
    said = FORMATS["env"](of_workload({"nccl_algo": "Tree"}, provenance=of_ranks))
    assert said.text == f"export NCCL_ALGO={line}\n"


def test_a_switch_that_is_to_go_cannot_be_said_in_arguments() -> None:
    flags = {"pin_memory": "--pin", "micro_batch": "--bs"}
    said = FORMATS["argv"](of_script(flags, {"pin_memory": False, "micro_batch": 4}, {}))
    assert said.text == "--bs 4\n"
    assert said.unsaid == {"pin_memory": False}


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--threads", "export OMP_NUM_THREADS=2\n"),
        ("$THREADS", "export THREADS=2\nexport OMP_NUM_THREADS=2\n"),
    ],
)
def test_variable_of_a_library_is_said_whatever_else_the_script_is_given(
    flag: str, text: str
) -> None:
    """OMP_NUM_THREADS is what a trial has."""
    best = of_script({"cpu_threads": flag}, {"cpu_threads": 2}, {})
    assert FORMATS["env"](best).text == text
    assert script_job(best, ["python", "train.py"], {}).environment["OMP_NUM_THREADS"] == "2"


BOOLEANS = {"pin_memory": "--pin", "channels_last": "--clast=", "persistent_workers": "keep="}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--pin False --clast=False keep=False", "--pin True --clast=True keep=True"),
        ("--pin off --clast=no keep=0", "--pin on --clast=yes keep=1"),
        ("", "--pin --clast=true keep=true"),
    ],
)
def test_booleans_are_spelt_as_a_trial_and_the_job_have_them(args: str, expected: str) -> None:
    spec = StudySpec(
        name="a",
        workload={"script": "train.py", "args": args.split(), "flags": BOOLEANS},
        search_space={name: [False, True] for name in BOOLEANS},
        baseline={} if args else dict.fromkeys(BOOLEANS, False),
    )
    knobs = dict.fromkeys(BOOLEANS, True)
    script = script_of(spec, {**spec.full_baseline(), **knobs}, Path.cwd(), 2)
    best = BestConfig({**spec.full_baseline(), **knobs}, 2, {}, provenance=ON_GPU, script=script)
    job = script_job(best, ["python", "train.py", *args.split()], {})
    assert sorted(job.command[2:]) == sorted(expected.split())
    assert sorted(FORMATS["argv"](best).text.split()) == sorted(expected.split())
    assert FORMATS["hydra"](best).text.strip() == expected.rpartition(" ")[2]


def test_a_flag_is_no_key_of_hydras() -> None:
    flags = {"micro_batch": "--bs=", "log_interval": "log="}
    best = of_script(flags, {"micro_batch": 4, "log_interval": 5}, {})
    assert FORMATS["hydra"](best).text == "log=5\n"
    assert FORMATS["hydra"](best).unsaid == {"micro_batch": 4}
    assert FORMATS["argv"](best).text == "--bs=4 log=5\n"


# Knobs of a batch that the script is given by other settings


def of_batch(workload: dict[str, Any], args: str = "") -> BestConfig:
    """Return what a study recommends: 32 x 2 where 16 x 4 is its baseline."""
    spec = StudySpec(
        name="a",
        workload={"script": "train.py", "args": args.split(), **workload},
        env={"UNLABELED": "12"},
        resources={"workers": 2},
        search_space={"micro_batch": [16, 32]},
        baseline={"micro_batch": 16, "accumulation_steps": 4},
    )
    batch = {"micro_batch": 32, "accumulation_steps": 2}
    script = script_of(spec, {**spec.full_baseline(), **batch}, Path.cwd(), 2)
    return BestConfig(batch, 2, {}, provenance=ON_GPU, script=script)


def two_loaders(labeled: str, unlabeled: str, accumulation: str) -> BestConfig:
    parts = {labeled: 4, unlabeled: 12}
    flags = {"accumulation_steps": accumulation}
    accumulates = f"{accumulation}4" if accumulation.endswith("=") else f"{accumulation} 4"
    return of_batch({"flags": flags, "in_proportion": {"micro_batch": parts}}, accumulates)


KEEPING = {"flags": {"micro_batch": "--batch"}, "keeps_global_batch": True}


@pytest.mark.parametrize(
    ("form", "flags", "expected"),
    [
        ("argv", ("--lb", "--ub=", "--accum"), "--accum 2 --lb 8 --ub=24\n"),
        ("hydra", ("lb=", "data.ub=", "acc="), "acc=2\nlb=8\ndata.ub=24\n"),
    ],
)
def test_settings_that_make_up_a_micro_batch_are_all_said(
    form: str, flags: tuple[str, str, str], expected: str
) -> None:
    said = FORMATS[form](two_loaders(*flags))
    assert sorted(said.text.split()) == sorted(expected.split())
    assert not said.unsaid


@pytest.mark.parametrize("form", ["argv", "env", "hydra"])
def test_micro_batch_is_named_where_one_of_its_settings_cannot_be_said(form: str) -> None:
    said = FORMATS[form](two_loaders("--lb", "$UNLABELED", "--accum"))
    assert said.unsaid["micro_batch"] == 32
    assert "24" not in said.text


@pytest.mark.parametrize(
    "form", ["accelerate", "deepspeed", "hf-trainer", "lightning", "torchtitan"]
)
def test_a_framework_is_told_the_batch_however_the_script_is(form: str) -> None:
    flags = {"micro_batch": "--batch", "accumulation_steps": "--accum"}
    told = FORMATS[form](of_batch({"flags": flags}, "--batch 16 --accum 4"))
    assert FORMATS[form](two_loaders("--lb", "--ub", "--accum")) == told
    assert FORMATS[form](of_batch(KEEPING, "--batch 16")) == told


def test_accumulation_that_the_script_derives_is_said_to_a_framework() -> None:
    best = of_batch(KEEPING, "--batch 16")
    batch = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2}
    assert json.loads(FORMATS["hf-trainer"](best).text) == batch
    assert FORMATS["argv"](best).text == "--batch 32\n"


def test_a_workload_has_no_arguments() -> None:
    with pytest.raises(BadInput, match=r"workload\.flags"):
        FORMATS["argv"](of_workload({}))


def test_yaml_and_json_are_the_whole_file(tmp_path: Path) -> None:
    best = of_script({"micro_batch": "--bs"}, {"micro_batch": 4}, {"bucket_cap_mb": 0.5})
    text = FORMATS["yaml"](best).text
    assert yaml.safe_load(text) == json.loads(FORMATS["json"](best).text)
    (tmp_path / "best.yaml").write_text(text)
    again = read(tmp_path / "best.yaml")
    assert again.knobs == best.knobs
    assert again.script == best.script
    assert of(json.loads(FORMATS["json"](best).text)) == again


# The command


@pytest.fixture
def best_file(tmp_path: Path) -> Path:
    best = of_workload({"precision": "bf16", "nccl_algo": "Ring", "static_graph": True})
    writing.write(tmp_path / "best.yaml", writing.document_of(best))
    return tmp_path / "best.yaml"


def exported(best: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    given = ask("export", best.name, *arguments, cwd=best.parent)
    assert given.returncode == code, given.stderr
    return given


def test_an_unknown_format_names_those_that_there_are(best_file: Path) -> None:
    told = exported(best_file, "--format", "toml", code=2).stderr
    assert all(name in told for name in FORMATS)


def test_the_help_names_all_formats(tmp_path: Path) -> None:
    told = " ".join(ask("export", "--help", cwd=tmp_path, env={"COLUMNS": "200"}).stdout.split())
    assert all(name in told for name in FORMATS)


def test_the_text_is_printed_and_the_rest_named_on_standard_error(best_file: Path) -> None:
    given = exported(best_file, "--format", "accelerate")
    assert yaml.safe_load(given.stdout)["mixed_precision"] == "bf16"
    lines = given.stderr.splitlines()
    assert "accelerate cannot say static_graph=true" in lines
    assert "accelerate cannot say nccl_algo=Ring; --format env does" in lines


def test_or_written_where_it_is_wanted(best_file: Path) -> None:
    assert exported(best_file, "--format", "hf-trainer", "-o", "a.json").stdout == "a.json\n"
    assert json.loads(best_file.with_name("a.json").read_text())["bf16"] is True
    told = exported(best_file, "--format", "json", "-o", "missing/file", code=2).stderr
    assert "missing/file cannot be written" in told


def test_file_of_the_user_is_not_replaced(best_file: Path) -> None:
    mine = best_file.with_name("ds_config.json")
    mine.write_text('{"optimizer": {"type": "AdamW"}}\n')
    told = exported(best_file, "--format", "deepspeed", "-o", mine.name, code=2).stderr
    assert "ds_config.json exists and is no best.yaml" in told
    assert mine.read_text() == '{"optimizer": {"type": "AdamW"}}\n'
    mine.write_text("")
    for _ in range(2):
        exported(best_file, "--format", "deepspeed", "-o", mine.name)
        assert json.loads(mine.read_text())["bf16"] == {"enabled": True}


@pytest.mark.parametrize("form", ["env", "deepspeed"])
def test_earlier_export_is_replaced_by_another_answer(best_file: Path, form: str) -> None:
    exported(best_file, "--format", form, "-o", "tuned")
    before = best_file.with_name("tuned").read_text()
    other = of_workload({"precision": "fp16", "nccl_algo": "Tree"})
    writing.write(best_file, writing.document_of(other))
    exported(best_file, "--format", form, "-o", "tuned")
    written = best_file.with_name("tuned").read_text()
    assert written != before
    best_file.with_name("tuned").write_text(before + "\n")
    exported(best_file, "--format", form, "-o", "tuned", code=2)


def test_options_that_write_something_else_stand_alone(best_file: Path) -> None:
    given = {"--trials": "a.csv", "--tracker": "mlflow", "--output": "b.yaml"}
    for several in itertools.combinations(given.items(), 2):
        words = itertools.chain.from_iterable(several)
        told = exported(best_file, *words, code=2).stderr
        assert f"{several[0][0]} does not go with {several[1][0]}" in told


def test_a_provisional_file_says_so(best_file: Path) -> None:
    content = {**yaml.safe_load(best_file.read_text()), "provisional": True}
    content["provenance"] = {**ON_CPU, "verdict": "Not confirmed yet."}
    writing.write(best_file, content)
    assert "Not confirmed yet." in exported(best_file, "--format", "json").stderr


def test_attempts_are_of_studies_and_csv(best_file: Path) -> None:
    assert "holds no attempts" in exported(best_file, "--trials", "-", code=2).stderr
    told = exported(best_file, "--trials", "-", "--format", "json", code=2).stderr
    assert "does not write json" in told


def test_a_best_yaml_of_another_version_is_refused_as_such(best_file: Path) -> None:
    content = {**yaml.safe_load(best_file.read_text()), "format": 99}
    writing.write(best_file, content)
    assert "export it again" in exported(best_file, "--format", "json", code=2).stderr


def test_a_study_file_is_no_best_yaml(tmp_path: Path, best_file: Path) -> None:
    (tmp_path / "study.yaml").write_text("name: a\nworkload: gpt\nknobs: {a: {values: [1]}}\n")
    assert not is_best(tmp_path / "study.yaml")
    assert not is_best(tmp_path / "missing.yaml")
    assert is_best(best_file)


def test_env_has_its_own_remarks_only() -> None:
    said = FORMATS["env"](of_script({}, {}, {"nccl_algo": "auto"}))
    assert list(remarks("env", said)) == ["env cannot say nccl_algo=auto"]


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"yaml", "json", "argv"}))
def test_of_a_script_what_goes_back_to_a_default_is_said_or_named(form: str) -> None:
    """The file that a job has may set it, and is merged with what is said."""
    same = FORMATS[form](of_script({}, {}, {}))
    for name, knob in CATALOGUE.items():
        said = FORMATS[form](of_script({}, {}, {name: knob.default}))
        assert said.unsaid.get(name) == knob.default or said.text != same.text, name


def test_lightning_counts_devices_by_node() -> None:
    where = {"environment": {**ON_GPU["environment"], "others": [ON_GPU["environment"]]}}
    said = yaml.safe_load(
        FORMATS["lightning"](of_workload({}, world_size=16, provenance=where)).text
    )
    assert (said["devices"], said["num_nodes"]) == (8, 2)
    alone = yaml.safe_load(FORMATS["lightning"](of_workload({}, world_size=8)).text)
    assert (alone["devices"], alone.get("num_nodes")) == (8, None)
