"""What `autotune export --format` writes is read by those for whom it is, and the values in force are
those of the recommendation."""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from autotune.export.formats import FORMATS
from tests.support.recommendations import ON_GPU, of_script, of_workload

pytestmark = pytest.mark.xdist_group("consumers")  # they take seconds to import

TUNED = {
    "micro_batch": 32,
    "accumulation_steps": 4,
    "precision": "bf16",
    "bucket_cap_mb": 5,
    "static_graph": True,
    "gradient_as_bucket_view": True,
    "num_workers": 2,
    "prefetch_factor": 4,
    "log_interval": 50,
}


def written(folder: Path, form: str, knobs: dict[str, Any], **more: Any) -> Path:
    path = folder / {"accelerate": "a.yaml"}.get(form, "a.json")
    path.write_text(FORMATS[form](of_workload(knobs, **more)).text)
    return path


# Hugging Face


def training(folder: Path, knobs: dict[str, Any]) -> Any:
    from transformers import HfArgumentParser, TrainingArguments

    parser = HfArgumentParser((TrainingArguments,))
    (found,) = parser.parse_json_file(str(written(folder, "hf-trainer", knobs)))
    return found


@pytest.mark.long
def test_training_arguments(tmp_path: Path) -> None:
    found = training(tmp_path, TUNED)
    assert found.device.type == "cpu"
    assert found.per_device_train_batch_size == 32
    assert found.gradient_accumulation_steps == 4
    assert (found.bf16, found.fp16) == (True, False)
    assert found.ddp_bucket_cap_mb == 5
    assert found.ddp_static_graph is True
    assert found.ddp_find_unused_parameters is False
    assert found.ddp_broadcast_buffers is True
    assert found.dataloader_num_workers == 2
    assert found.dataloader_prefetch_factor == 4
    assert found.dataloader_pin_memory is False
    assert (found.logging_strategy.value, found.logging_steps) == ("steps", 50)
    assert not found.torch_compile
    assert not found.fsdp


def test_training_arguments_at_their_plainest_are_those_of_pytorch(tmp_path: Path) -> None:
    found = training(tmp_path, {})
    assert (found.bf16, found.fp16, found.tf32) == (False, False, None)
    assert found.ddp_bucket_cap_mb is None
    assert found.dataloader_num_workers == 0
    assert found.logging_steps == 10


def test_training_arguments_of_fsdp_compilation_and_checkpoints(tmp_path: Path) -> None:
    sharded = {"parallelism": "fsdp_no_reshard", "activation_checkpointing": 1}
    found = training(tmp_path, sharded)
    assert found.fsdp
    assert found.fsdp_plugin_args["fsdp_version"] == 2
    assert found.fsdp_plugin_args["reshard_after_forward"] is False
    assert found.fsdp_plugin_args["activation_checkpointing"] is True
    found = training(tmp_path, {"compile": "max-autotune", "activation_checkpointing": 2})
    assert (found.torch_compile, found.torch_compile_mode) == (True, "max-autotune")
    assert found.activation_checkpointing is True
    assert found.activation_checkpointing_kwargs == {"every_n_layers": 2}
    assert found.tf32 is None
    assert training(tmp_path, {"activation_checkpointing": 1}).activation_checkpointing is True
    assert training(tmp_path, {"compile": "default", "precision": "bf16"}).tf32 is False


# Accelerate


def launched(path: Path) -> tuple[Any, dict[str, str]]:
    """The arguments of `accelerate launch --config_file`, and the environment that ranks are given."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    given = ["--config_file", str(path), "--main_process_port", "0", "train.py"]
    asked = launch.launch_command_parser().parse_args(given)
    asked.nondefault = []
    arguments, defaults, _ = launch._validate_launch_command(asked)
    assert defaults.num_processes == arguments.num_processes
    if arguments.use_cpu and not arguments.use_fsdp:
        return arguments, prepare_simple_launcher_cmd_env(arguments)[1]
    return arguments, prepare_multi_gpu_env(arguments)


def test_accelerate_launch_on_gpus(tmp_path: Path) -> None:
    knobs = {**TUNED, "compile": "default", "compile_scope": "blocks"}
    path = written(tmp_path, "accelerate", knobs, world_size=8, provenance=ON_GPU)
    arguments, environment = launched(path)
    assert arguments.multi_gpu
    assert arguments.num_processes == 8
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert environment["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"
    assert environment["ACCELERATE_DYNAMO_MODE"] == "default"
    assert environment["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] == "True"
    assert "ACCELERATE_USE_FSDP" not in environment


def test_accelerate_launch_of_shards(tmp_path: Path) -> None:
    knobs = {"parallelism": "fsdp_no_reshard", "activation_checkpointing": 1}
    _, environment = launched(written(tmp_path, "accelerate", knobs, provenance=ON_GPU))
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["FSDP_VERSION"] == "2"
    assert environment["FSDP_RESHARD_AFTER_FORWARD"] == "false"
    assert environment["FSDP_ACTIVATION_CHECKPOINTING"] == "true"
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"


def test_accelerate_launch_on_the_cpu(tmp_path: Path) -> None:
    arguments, environment = launched(written(tmp_path, "accelerate", TUNED))
    assert not arguments.multi_gpu
    assert environment["ACCELERATE_USE_CPU"] == "True"
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert environment["ACCELERATE_DYNAMO_BACKEND"] == "NO"


# Lightning


def trainer(knobs: dict[str, Any]) -> Any:
    from lightning.pytorch import Trainer
    from lightning.pytorch.cli import instantiate_class

    arguments = yaml.safe_load(FORMATS["lightning"](of_workload(knobs)).text)
    if isinstance(arguments["strategy"], dict):
        arguments["strategy"] = instantiate_class((), arguments["strategy"])
    return Trainer(**arguments, logger=False, enable_checkpointing=False)


@pytest.mark.slow
def test_lightnings_trainer() -> None:
    found = trainer({**TUNED, "cudnn_benchmark": True})
    assert found.accumulate_grad_batches == 4
    assert found.precision == "bf16-mixed"
    assert found.log_every_n_steps == 50
    assert found.num_devices == found.world_size == 2
    given = {"bucket_cap_mb": 5, "static_graph": True, "gradient_as_bucket_view": True}
    assert found.strategy._ddp_kwargs == given


def test_lightnings_trainer_at_its_plainest() -> None:
    found = trainer({})
    assert type(found.strategy).__name__ == "DDPStrategy"
    assert found.strategy._ddp_kwargs == {}
    assert found.precision == "32-true"


# DeepSpeed


def ds_config(folder: Path, knobs: dict[str, Any]) -> Any:
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig(str(written(folder, "deepspeed", knobs)))


def test_ds_config(tmp_path: Path) -> None:
    import torch

    found = ds_config(tmp_path, {**TUNED, "parallelism": "zero1", "freeze_gc": True})
    assert found.train_micro_batch_size_per_gpu == 32
    assert found.gradient_accumulation_steps == 4
    assert found.bfloat16_config.enabled
    assert not found.float16_config.enabled
    assert found.zero_optimization_stage == 1
    assert found.zero_config.reduce_bucket_size == 5 * (1 << 20) // 2
    assert found.communication_data_type == torch.float32
    assert found.disable_python_gc is True


def test_ds_config_of_shards(tmp_path: Path) -> None:
    import torch

    found = ds_config(tmp_path, {"parallelism": "fsdp", "fsdp_reduce_dtype": "bf16"})
    assert found.zero_optimization_stage == 3
    assert found.communication_data_type == torch.bfloat16
    assert not found.bfloat16_config.enabled


# Hydra


def composed(folder: Path, text: str) -> Any:
    from hydra import compose, initialize_config_dir

    (folder / "config.yaml").write_text("data:\n  batch_size: 8\n")
    with initialize_config_dir(str(folder), version_base=None):
        return compose("config", overrides=text.splitlines())


def test_overrides_of_a_workload_compose_to_knobs_of_the_same_type(tmp_path: Path) -> None:
    odd = {"plain": "true", "quoted": "it's a \\ {x}", "ends": "\\", "number": "1e3", "empty": ""}
    knobs = {**TUNED, "bucket_cap_mb": 0.5, **odd}
    found = composed(tmp_path, FORMATS["hydra"](of_workload(knobs)).text)
    assert OmegaConf.to_container(found.autotune, resolve=False) == knobs


def test_overrides_of_a_script_are_its_own_keys(tmp_path: Path) -> None:
    best = of_script(
        {"micro_batch": "data.batch_size="}, {"micro_batch": 32}, {"static_graph": True}
    )
    said = FORMATS["hydra"](best)
    assert composed(tmp_path, said.text).data.batch_size == 32
    assert said.unsaid == {"static_graph": True}


# A shell, and a script


def test_a_shell_exports_what_acts_and_nothing_else() -> None:
    acting = {"nccl_algo": "Ring", "nccl_channels": 4, "expandable_segments": True}
    best = of_script({"log_interval": "$LOG"}, {"log_interval": 5}, {**acting, "cpu_threads": 3})
    said = FORMATS["env"](best)
    script = (
        said.text + f"exec {shlex.quote(sys.executable)} -c 'import os; print(dict(os.environ))'"
    )
    path = {"PATH": os.environ["PATH"]}

    def seen(text: str) -> dict[str, str]:
        ran = subprocess.run(
            ["sh", "-c", text], env=path, capture_output=True, text=True, check=True
        )
        found: dict[str, str] = yaml.safe_load(ran.stdout)
        return found

    plain = seen(script.removeprefix(said.text))
    found = seen(script)
    assert {name: found[name] for name in found if name not in plain} == {
        "NCCL_ALGO": "Ring",
        "NCCL_MIN_NCHANNELS": "4",
        "NCCL_MAX_NCHANNELS": "4",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "OMP_NUM_THREADS": "3",
        "LOG": "5",
    }
    assert not said.unsaid


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_a_shell_keeps_other_settings_of_the_allocator(name: str) -> None:
    text = FORMATS["env"](of_script({}, {}, {"expandable_segments": True})).text
    given = {"PATH": os.environ["PATH"], name: "max_split_size_mb:128"}
    told = subprocess.run(
        ["sh", "-uc", f'{text}printf %s "$PYTORCH_CUDA_ALLOC_CONF"'],
        env=given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "max_split_size_mb:128,expandable_segments:True"


def test_a_parser_takes_the_arguments() -> None:
    flags = {"micro_batch": "--bs", "precision": "--precision", "pin_memory": "--pin"}
    turned = {"micro_batch": 32, "precision": "it's; $(touch x)", "pin_memory": True}
    text = FORMATS["argv"](of_script(flags, turned, {})).text
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int)
    parser.add_argument("--precision")
    parser.add_argument("--pin", action="store_true")
    baseline = ["--bs", "8"]
    assert vars(parser.parse_args([*baseline, *shlex.split(text)])) == {
        "bs": 32,
        "precision": "it's; $(touch x)",
        "pin": True,
    }
