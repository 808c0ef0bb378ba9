"""Options of scripts with all kinds of command lines: found, tried, and seen to turn their knobs."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.config import fields
from autotune.standalone import flags
from autotune.standalone.named_options import others
from autotune.standalone.own_options import OwnOptions, SearchTime, find_own_options
from autotune.worker.inject import settings_copies
from autotune.worker.survey_result import SurveyResult
from search_spaces import Facts
from search_spaces.knob import KnobValue
from tests.support.seeing import look

TRAINS = """
import contextlib, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self, recomputed):
        super().__init__()
        self.recomputed = recomputed
        self.body, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(64, 2)

    def forward(self, images):
        if self.recomputed:
            return self.head(checkpoint(self.body, images, use_reentrant=False).flatten(1))
        return self.head(self.body(images).flatten(1))

def train(
    dtype="float32", compiled=False, last=False, workers=0, every=100, recomputed=False, fused=False
):
    model = Net(recomputed)
    if last:
        model = model.to(memory_format=torch.channels_last)
    run = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    data = TensorDataset(torch.randn(256, 4, 4, 4), torch.zeros(256, dtype=torch.long))
    half = contextlib.nullcontext()
    if dtype != "float32":
        half = torch.autocast("cpu", getattr(torch, dtype))
    for step, (images, labels) in enumerate(DataLoader(data, batch_size=8, num_workers=workers)):
        with half:
            loss = nn.functional.cross_entropy(run(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            print(loss.item())
"""

SWITCHES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
parser.add_argument("-j", "--workers", type=int, default=0)
parser.add_argument("-p", "--print-freq", type=int, default=10)
args = parser.parse_args()
train("bfloat16" if args.amp else "float32", args.compile, False, args.workers, args.print_freq)
"""
CHOICES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--format", choices=["fp32", "bf16"], default="fp32", help="for mixed precision")
parser.add_argument("--optim", choices=["adamw_torch", "adamw_torch_fused"], default="adamw_torch")
args = parser.parse_args()
train("bfloat16" if args.format == "bf16" else "float32", fused=args.optim.endswith("fused"))
"""
PAIRS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--no-channels-last", dest="channels_last", action="store_false")
parser.add_argument("--no-recompute", dest="recompute", action="store_false")
parser.add_argument("--torchcompile", nargs="?", const="inductor")
args = parser.parse_args()
train("float32", bool(args.torchcompile), args.channels_last, recomputed=args.recompute)
"""
AS_TRANSFORMERS = """
import argparse, dataclasses

@dataclasses.dataclass
class Arguments:
    bf16: bool = False
    gradient_checkpointing: bool = True
    dataloader_num_workers: int = 1

def truth(text):
    return {"true": True, "false": False}[text.lower()]

parser = argparse.ArgumentParser()
for field in dataclasses.fields(Arguments):
    name, default = f"--{field.name}", field.default
    if field.type is not bool:
        parser.add_argument(name, type=int, default=default)
        continue
    parser.add_argument(name, type=truth, default=default, nargs="?", const=True)
    if default:
        parser.add_argument(f"--no_{field.name}", action="store_false", dest=field.name)
args = Arguments(**vars(parser.parse_args()))
train("bfloat16" if args.bf16 else "float32", recomputed=args.gradient_checkpointing,
      workers=args.dataloader_num_workers)
"""
BY_HYDRA = """
import hydra
from omegaconf import OmegaConf

def main():
    trainer = {"precision": "32", "compile": False}
    start = OmegaConf.create({"trainer": trainer, "data": {"num_workers": 0}})
    config = OmegaConf.merge(start, OmegaConf.from_cli())
    format = "bfloat16" if str(config.trainer.precision) == "bf16" else "float32"
    train(format, config.trainer.compile, workers=config.data.num_workers)

main()
"""
FROM_YAML = """
import sys, yaml
config = yaml.safe_load(open(sys.argv[2]))["train"]
train(config["dtype"], last=config["channels_last"])
"""
VARIABLES = """
import sys
from ast import literal_eval
dtype = "float32"
compile = True
log_interval = 1
for word in sys.argv[1:]:
    key, value = word[2:].split("=")
    try:
        value = literal_eval(value)
    except (SyntaxError, ValueError):
        pass
    assert type(value) == type(globals()[key])
    globals()[key] = value
train(dtype, compile, every=log_interval)
"""
BY_CLICK = """
import click

@click.command()
@click.option("--amp/--no-amp", default=False)
@click.option("--num-workers", default=0)
@click.option("--fused", is_flag=True)
def main(amp, num_workers, fused):
    train("bfloat16" if amp else "float32", workers=num_workers, fused=fused)

main(standalone_mode=False)
"""
DEAF = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--fused", action="store_true")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--log-interval", type=int, default=1)
parser.parse_args()
train()
"""
CROPPED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--log-interval", type=int, default=1)
args = parser.parse_args()

class TensorDataset(TensorDataset):
    def __getitem__(self, index):
        torch.randint(4, (1,)).item()
        return super().__getitem__(index)

train(workers=args.workers)
"""

FORMATS = {"fp32": False, "bf16": True}
COMPILED = {"none": False, "default": True}


def searched(folder: Path, script: str, *words: str, files: tuple[str, ...] = ()) -> OwnOptions:
    """Find the options of a script that turn knobs, as `init` does, with one processor for a rank.

    Args:
        folder: with the files.
        script: calls `train` of TRAINS.
        words: its arguments.
        files: of settings that it reads.
    """

    def run(settings: Mapping[str, KnobValue]) -> SurveyResult:
        own = {flag: flag for flag in settings}
        given = fields.given(
            words, own, settings, variables={}, workdir=folder, folder=folder / "copies"
        )
        for copy in given.copies:
            settings_copies.write(copy)
        arguments = ["train.py", *given.arguments]
        return look(f"import sys\nsys.argv = {arguments!r}\n{TRAINS}{script}", steps=4).seen

    seen = run({})
    of_files = [
        option for file in files for option in flags.fields(file, Path(file).read_text(), words, {})
    ]
    options = flags.settings_of(seen, words, {}, of_files)
    tried = others(options, Facts("cpu", 1), 1)
    return find_own_options(
        lambda given: run({one.option.flag: one.word for one in given}),
        seen,
        tried,
        print,
        SearchTime(600),
    )


Expected = dict[str, tuple[str, KnobValue, dict[str, KnobValue]]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            SWITCHES,
            {
                "precision": ("--amp", "fp32", FORMATS),
                "compile": ("--compile/--no-compile", "none", COMPILED),
                "num_workers": ("--workers", 0, {}),
                "log_interval": ("--print-freq", 10, {}),
            },
        ),
        (
            CHOICES,
            {
                "precision": ("--format", "fp32", {}),
                "optimizer_kernels": (
                    "--optim",
                    "default",
                    {"default": "adamw_torch", "fused": "adamw_torch_fused"},
                ),
            },
        ),
        (
            PAIRS,
            {
                "channels_last": ("--channels-last/--no-channels-last", False, {}),
                "activation_checkpointing": ("/--no-recompute", 1, {"0": False, "1": True}),
                "compile": ("--torchcompile", "none", COMPILED),
            },
        ),
        (
            AS_TRANSFORMERS,
            {
                "precision": ("--bf16", "fp32", {"fp32": "False", "bf16": "True"}),
                "activation_checkpointing": (
                    "--gradient_checkpointing",
                    1,
                    {"1": "True", "0": "False"},
                ),
                "num_workers": ("--dataloader_num_workers", 1, {}),
            },
        ),
        (
            BY_HYDRA,
            {
                "precision": ("trainer.precision=", "fp32", {"fp32": "32", "bf16": "bf16"}),
                "compile": ("trainer.compile=", "none", COMPILED),
                "num_workers": ("data.num_workers=", 0, {}),
            },
        ),
        (
            VARIABLES,
            {
                "precision": ("--dtype=", "fp32", {"fp32": "float32", "bf16": "bfloat16"}),
                "compile": ("--compile=", "default", {"default": "True", "none": "False"}),
                "log_interval": ("--log_interval=", 1, {}),
            },
        ),
        (
            BY_CLICK,
            {
                "precision": ("--amp/--no-amp", "fp32", FORMATS),
                "optimizer_kernels": ("--fused", "default", {"default": False, "fused": True}),
                "num_workers": ("--num-workers", 0, {}),
            },
        ),
    ],
    ids=["switches", "choices", "pairs", "as_transformers", "hydra", "variables", "click"],
)
def test_option_that_turns_a_knob_is_found_with_its_words(
    tmp_path: Path, script: str, expected: Expected
) -> None:
    found = searched(tmp_path, script).turned
    told = {knob: (one.flag, one.baseline, dict(one.words)) for knob, one in found.items()}
    assert told == expected


def test_field_of_a_file_that_turns_a_knob_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "train:\n  dtype: float32   # or bfloat16\n  channels_last: false\n"
    (tmp_path / "train.yaml").write_text(text)
    found = searched(tmp_path, FROM_YAML, "--config", "train.yaml", files=("train.yaml",)).turned
    assert found["precision"].flag == "--config::train.dtype"
    assert found["precision"].words == {"fp32": "float32", "bf16": "bfloat16"}
    assert found["channels_last"].flag == "--config::train.channels_last"
    assert found["channels_last"].values == (False, True)


def test_option_without_effect_is_refused(tmp_path: Path) -> None:
    found = searched(tmp_path, DEAF)
    assert found.turned == {}
    refused = {doubt.partition(" is not ")[2].partition(":")[0] for doubt in found.doubts}
    assert refused == {
        *("precision", "compile", "channels_last"),
        *("optimizer_kernels", "num_workers", "log_interval"),
    }


def test_numbers_that_a_data_set_reads_are_none_of_the_log(tmp_path: Path) -> None:
    """Random crops read numbers so. With workers, another process reads them."""
    found = searched(tmp_path, CROPPED)
    assert [*found.turned] == ["num_workers"]


@pytest.mark.long
def test_graphs_are_seen_without_the_compiler_that_would_compile_them() -> None:
    import torch._dynamo  # two seconds of every worker of the suite

    if not hasattr(torch._dynamo.config, "debug_backend_override"):
        pytest.skip("this torch compiles what it captures")
    lacking = "import torch._inductor.config as made\nmade.cpp.cxx = (None, '/nowhere/g++')\n"
    script = TRAINS.replace('backend="eager"', 'backend="inductor"')
    seen = look(f"{lacking}{script}\ntrain(compiled=True)", steps=4).seen
    assert (seen.steps, seen.frames > 0) == (4, True)
