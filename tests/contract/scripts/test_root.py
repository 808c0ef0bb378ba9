"""Knobs that act on the root module of a script, in every kind of script that people write."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.worker.protocol import PYTHON, Outcome
from launchers import Slot
from tests.contract.scripts.bench import SCRIPTS, Bench, assert_well

KINDS = SCRIPTS / "kinds"
RANKED = ("ddp", "fsdp2")
FRAMEWORKS = {"trainer": "transformers", "accelerated": "accelerate", "lit": "lightning"}
EVERY_KIND = pytest.mark.parametrize("kind", ["plain", *RANKED, *FRAMEWORKS, "configured", "gan"])
TOGETHER = {
    "precision": "bf16",
    "channels_last": True,
    "activation_checkpointing": 1,
    "attention": "unfused",
    "optimizer_kernels": "fused",
    "loader_workers": 1,
}


@pytest.fixture
def kinds(slot: Slot, tmp_path: Path) -> Bench:
    for script in KINDS.glob("*.py"):
        (tmp_path / script.name).write_text(script.read_text())
    return Bench(slot, tmp_path)


def told(bench: Bench, kind: str, **changes: Any) -> dict[str, Any]:
    """What a script of this kind has seen of itself in a trial with these knobs."""
    if kind in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[kind])
    launch = {} if kind in RANKED else {"told": {"launch": PYTHON}}
    assert_well(bench.run(f"{kind}.py", blocks=2, **launch, **changes), blocks=2)
    found: dict[str, Any] = json.loads(bench.record.read_text())
    return found


@EVERY_KIND
def test_knobs_act_on_the_root_of_every_kind_of_script(kinds: Bench, kind: str) -> None:
    untouched = told(kinds, kind)
    assert untouched["products"] == ["torch.float32"]
    assert not untouched["channels_last"] and not untouched["frames"]
    assert not untouched["recomputed"] and not untouched["fused"] and not untouched["workers"]
    knobs = dict(TOGETHER)
    if kind == "fsdp2":
        del knobs["channels_last"]
    found = told(kinds, kind, **knobs)
    assert "torch.bfloat16" in found["products"]
    assert found["attention"] != untouched["attention"]
    assert found["channels_last"] == ("channels_last" in knobs)
    assert found["recomputed"]
    assert found["fused"]
    assert found["workers"] == 1


def test_sharded_parameters_have_no_memory_format(kinds: Bench) -> None:
    report = kinds.run("fsdp2.py", channels_last=True)
    assert report.outcome == Outcome.ERROR
    assert "channels_last: has found nothing to act on" in report.cause


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp2", "gan"])
def test_frames_are_compiled_and_the_checkpoint_keeps_its_names(kinds: Bench, kind: str) -> None:
    assert told(kinds, kind, compile="default")["frames"] > 0
