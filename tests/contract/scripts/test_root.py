"""Knobs that act on the root module of a script, in every kind of script that people write."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from autotune.worker.protocol import PYTHON, Outcome, TrialReport
from launchers import Slot
from tests.contract.scripts.bench import SCRIPTS, Bench, assert_well

KINDS = SCRIPTS / "kinds"
RANKED = ("ddp", "fsdp2")
FRAMEWORKS = {"trainer": "transformers", "accelerated": "accelerate", "lit": "lightning"}
EVERY_KIND = pytest.mark.parametrize("kind", ["plain", *RANKED, *FRAMEWORKS, "configured", "gan"])
NO_COMPILER = {"TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:aot_eager"}
"""Graphs are captured and run as they are: the compiler takes half a minute."""
TOGETHER = {
    "precision": "bf16",
    "channels_last": True,
    "activation_checkpointing": 1,
    "attention": "unfused",
    "optimizer_kernels": "fused",
    "num_workers": 1,
}


@pytest.fixture
def kinds(slot: Slot, tmp_path: Path) -> Bench:
    for script in KINDS.glob("*.py"):
        (tmp_path / script.name).write_text(script.read_text())
    return Bench(slot, tmp_path)


def run(bench: Bench, script: str, **changes: Any) -> TrialReport:
    launch = {} if script.removesuffix(".py") in RANKED else {"told": {"launch": PYTHON}}
    return bench.run(script, blocks=2, **launch, **changes)


def run_job(bench: Bench, script: str, changes: dict[str, Any]) -> None:
    """Run a script to its end as a user's own job with these knobs, all of which find what to act on."""
    folder = bench.record.parent
    best = {
        "format": 3,
        "knobs": changes,
        "world_size": 1,
        "throughput": {},
        "speedup": None,
        "provenance": {},
        "unusual": [],
        "script": {
            "target": script,
            "is_module": False,
            "flags": {},
            "turned": {},
            "changes": [*changes],
            "digest": None,
        },
    }
    (folder / "best.yaml").write_text(yaml.safe_dump(best))
    ours = [sys.executable, "-P", "-m", "autotune", "run", "best.yaml", "--"]
    environment = {**os.environ, **NO_COMPILER, "TOLD": str(bench.record)}
    job = [*ours, sys.executable, script, "--steps", "4"]
    done = subprocess.run(
        job, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nothing to act on" not in done.stderr


def told(bench: Bench, kind: str, **changes: Any) -> dict[str, Any]:
    """Return what a script of this kind records of itself in a trial with these knobs."""
    if kind in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[kind])
    assert_well(run(bench, f"{kind}.py", **changes), blocks=2)
    found: dict[str, Any] = json.loads(bench.record.read_text())
    return found


@pytest.mark.long
@EVERY_KIND
def test_knobs_act_on_the_root_of_every_kind_of_script(kinds: Bench, kind: str) -> None:
    knobs = dict(TOGETHER)
    if kind == "fsdp2":
        del knobs["channels_last"]
    found = told(kinds, kind, **knobs)
    assert "torch.bfloat16" in found["products"]
    assert not found["attention"]
    assert found["channels_last"] == ("channels_last" in knobs)
    assert found["recomputed"] and found["fused"]
    assert found["workers"] == 1


def test_script_without_changes_is_as_it_is(kinds: Bench) -> None:
    found = told(kinds, "plain")
    assert found["products"] == ["torch.float32"] and found["attention"]
    assert not any(found[name] for name in ("channels_last", "recomputed", "fused", "frames"))


def test_sharded_weights_have_no_memory_format(kinds: Bench) -> None:
    report = run(kinds, "fsdp2.py", channels_last=True)
    assert report.outcome == Outcome.ERROR
    assert "channels_last: has found nothing to act on" in report.cause


_LOOP = """
import seen, torch
from torch import nn
from torch.utils.data import DataLoader
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    def forward(self, x):
        return self.layers(x)
model, loader = Model(), DataLoader(torch.randn(64, 16), 4)
optimizer = torch.optim.AdamW(model.parameters())
BEFORE
while True:
    for x in loader:
        CALL.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        AFTER
"""


def loop(call: str = "model(x)", before: str = "", after: str = "") -> str:
    return _LOOP.replace("CALL", call).replace("BEFORE", before).replace("AFTER", after)


@pytest.mark.long
@pytest.mark.parametrize(("scope", "env"), [("model", NO_COMPILER), ("blocks", {})])
def test_forward_is_compiled_in_place(kinds: Bench, scope: str, env: dict[str, str]) -> None:
    names = "assert list(model.state_dict()) == NAMES, list(model.state_dict())"
    script = kinds.write(loop(before="NAMES = list(model.state_dict())", after=names))
    assert_well(run(kinds, script, env=env, compile="default", compile_scope=scope), blocks=2)
    assert json.loads(kinds.record.read_text())["frames"] > 0


_COPIES = """
        import copy, io
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            assert vars(other).keys() == {*vars(model)} - {"_compiled_call_impl"}
            with torch.no_grad():
                other.layers[0].weight.zero_()
                other.layers[0].bias.zero_()
            assert not torch.equal(other(x), model(x))
"""


def test_copies_and_pickles_of_the_root_compute_with_their_own_weights(kinds: Bench) -> None:
    script = kinds.write(loop(after=_COPIES))
    changes = {"precision": "bf16", "activation_checkpointing": 1}
    assert_well(run(kinds, script, **changes), blocks=2)


def test_evaluation_is_as_the_script_has_it(kinds: Bench) -> None:
    evaluates = "with torch.no_grad(): assert torch.equal(model(x), PLAIN(x))"
    plain = "from copy import deepcopy; PLAIN = model.layers"
    script = kinds.write(loop(before=plain, after=evaluates))
    assert_well(run(kinds, script, precision="bf16"), blocks=2)


def test_model_that_is_never_called_is_no_measurement(kinds: Bench) -> None:
    script = kinds.write(loop("nn.functional.linear(x, *model.layers[0].parameters())"))
    report = run(kinds, script, precision="bf16")
    assert "precision: has found nothing to act on" in report.cause


@pytest.mark.parametrize("attends", [False, True])
def test_attention_of_the_scripts_own_is_no_measurement(kinds: Bench, attends: bool) -> None:
    own = "(x @ x.mT).softmax(-1) @ x"
    torchs = "nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])"
    mixed = f"x = self.layers(x); return {torchs if attends else own}"
    script = kinds.write(loop().replace("return self.layers(x)", mixed))
    report = run(kinds, script, attention="unfused")
    idle = "attention: has found nothing to act on" in (report.cause or "")
    assert idle is not attends, report.cause


def test_modules_that_a_method_calls_are_roots(kinds: Bench) -> None:
    """Lightning's training step calls modules inside of the one that has the optimizer."""
    script = kinds.write(loop("model.forward(x)"))
    assert_well(run(kinds, script, precision="bf16"), blocks=2)
    assert json.loads(kinds.record.read_text())["products"] == ["torch.bfloat16"]


_CALLS_ITSELF = {
    "self.model(images)": "self(images)",
    "    def training_step(self, batch, number):": """
    def forward(self, images):
        assert torch.compiler.is_compiling()
        return self.model(images)

    def training_step(self, batch, number):
        assert not torch.is_autocast_enabled("cpu")""",
    "devices=1": 'devices=2, strategy="ddp"',
}
"""Changes of a LightningModule, under DDP, which redirects the forward pass to the training step."""


@pytest.mark.long
def test_lightning_module_that_calls_itself_is_changed_in_every_step(kinds: Bench) -> None:
    pytest.importorskip("lightning")
    text = (KINDS / "lit.py").read_text()
    for before, after in _CALLS_ITSELF.items():
        text = text.replace(before, after)
    run_job(kinds, kinds.write(text), {"compile": "default", "precision": "bf16"})


def test_script_that_compiles_its_model_in_place_computes_in_bf16(kinds: Bench) -> None:
    script = kinds.write(loop(before="model.compile(backend='eager')"))
    assert_well(run(kinds, script, precision="bf16"), blocks=2)
    assert "torch.bfloat16" in json.loads(kinds.record.read_text())["products"]


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"compile": "default", "precision": "bf16"}, TOGETHER])
def test_whole_job_is_changed_and_its_checkpoint_keeps_its_names(
    kinds: Bench, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run_job(kinds, "plain.py", changes)
    found = json.loads(kinds.record.read_text())
    assert bool(found["frames"]) == ("compile" in changes)
    assert found["products"] == (
        [] if "compile" in changes else ["torch.bfloat16", "torch.float32"]
    )
    names = torch.load(tmp_path / "model.pt", weights_only=True).keys()
    assert {"stem.weight", "blocks.1.mlp.2.bias", "head.bias"} <= names
    assert not [name for name in names if "_orig_mod" in name]
