"""FSDP2 in the place of DistributedDataParallel, and back, in scripts that know of neither change."""

from pathlib import Path

import pytest

from autotune.worker.protocol import Outcome
from launchers import Slot
from tests.contract.scripts.bench import SCRIPTS, Bench, assert_well

STEPS = 4
_ACCUMULATES = """
import seen, tiny, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = tiny.Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
wrapped = DistributedDataParallel(model)
batches = tiny.loader(8, DistributedSampler(tiny.Images()))
for number, (images, labels) in enumerate(batches):
    last = number % 2 == 1
    SYNC
    if last:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
_BACKWARD = "nn.functional.cross_entropy(wrapped(images), labels).backward()"
_BY_CONTEXT = f"""
    import contextlib
    with contextlib.nullcontext() if last else wrapped.no_sync():
        {_BACKWARD}
"""
_BY_ATTRIBUTE = f"wrapped.require_backward_grad_sync = last; {_BACKWARD}"


@pytest.fixture
def bench(slot: Slot, tmp_path: Path) -> Bench:
    for script in (SCRIPTS / "kinds").glob("*.py"):
        (tmp_path / script.name).write_text(script.read_text())
    return Bench(slot, tmp_path)


def losses(bench: Bench, script: str, **changes: object) -> list[float]:
    """Return the loss of each step, and then the norms of the gradients."""
    report = bench.run(script, asked={"trajectory": STEPS}, **changes)
    assert_well(report, blocks=STEPS)
    norms = [block.observed["gradient_norm"] for block in report.blocks]
    return [*(block.loss for block in report.blocks), *norms]


@pytest.mark.long
@pytest.mark.parametrize("value", ["fsdp", "fsdp_no_reshard"])
def test_model_that_is_sharded_instead_has_the_losses_of_ddp(bench: Bench, value: str) -> None:
    expected = losses(bench, "ddp.py")
    assert losses(bench, "ddp.py", parallelism=value) == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
def test_model_that_is_replicated_instead_has_the_losses_of_fsdp2(bench: Bench) -> None:
    expected = losses(bench, "fsdp2.py")
    assert losses(bench, "fsdp2.py", parallelism="ddp") == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
def test_calls_of_the_script_take_format_and_prefetch(bench: Bench) -> None:
    before = losses(bench, "fsdp2.py")
    changed = losses(bench, "fsdp2.py", fsdp_reduce_dtype="bf16", fsdp_prefetch=1)
    assert changed == pytest.approx(before, rel=1e-2) and changed != before


@pytest.mark.long
@pytest.mark.parametrize("sync", [_BY_CONTEXT, _BY_ATTRIBUTE], ids=["context", "attribute"])
def test_accumulation_and_an_earlier_optimizer_are_kept(bench: Bench, sync: str) -> None:
    script = bench.write(_ACCUMULATES.replace("SYNC", sync.strip()))
    expected = losses(bench, script)
    assert losses(bench, script, parallelism="fsdp") == pytest.approx(expected, rel=1e-4)


_LOADED = """
state = optimizer.state_dict()
state["state"] = {
    number: {"step": torch.tensor(9.0), "exp_avg": FIRST, "exp_avg_sq": torch.full_like(p, 0.01)}
    for number, p in enumerate(model.parameters())
}
optimizer.load_state_dict(state)
"""
"""State of the optimizer as it is loaded from a checkpoint."""


def resumed(bench: Bench, loaded: str) -> str:
    """Write a script that loads a state before it wraps its model; return its name."""
    wraps = "wrapped = DistributedDataParallel(model)"
    text = _ACCUMULATES.replace("SYNC", _BY_CONTEXT.strip())
    return bench.write(text.replace(wraps, f"{loaded}{wraps}"))


@pytest.mark.long
def test_loaded_state_of_an_optimizer_is_sharded_with_its_model(bench: Bench) -> None:
    anew = losses(bench, resumed(bench, ""))
    script = resumed(bench, _LOADED.replace("FIRST", "torch.full_like(p, 0.1)"))
    expected = losses(bench, script)
    assert expected != pytest.approx(anew, rel=1e-2)
    assert losses(bench, script, parallelism="fsdp") == pytest.approx(expected, rel=1e-4)


def test_loaded_state_that_cannot_be_sharded_is_refused(bench: Bench) -> None:
    script = resumed(bench, _LOADED.replace("FIRST", "torch.ones(7)"))
    report = bench.run(script, parallelism="fsdp")
    assert report.outcome == Outcome.ERROR
    assert "whose exp_avg is not of the shape of its parameter" in report.cause


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "library", "alone", "ranked"),
    [
        ("trainer", "transformers", "", ""),
        # The Trainer of transformers wraps its model by this library.
        pytest.param("accelerated", "accelerate", "", "", marks=pytest.mark.errand),
        ("lit", "lightning", "devices=1", 'devices=2, strategy="ddp"'),
    ],
)
def test_model_that_a_framework_wraps_is_sharded_instead(
    bench: Bench, kind: str, library: str, alone: str, ranked: str
) -> None:
    pytest.importorskip(library)
    text = (SCRIPTS / "kinds" / f"{kind}.py").read_text()
    script = bench.write(text.replace(alone, ranked) if alone else text)
    expected = losses(bench, script)
    assert losses(bench, script, parallelism="fsdp") == pytest.approx(expected, rel=1e-4)


def test_knobs_of_the_root_act_on_a_model_that_is_sharded_instead(bench: Bench) -> None:
    changes = {"parallelism": "fsdp", "precision": "bf16", "optimizer_kernels": "fused"}
    assert_well(bench.run("ddp.py", blocks=2, **changes), blocks=2)


def test_script_that_shards_nothing_has_nothing_to_change(bench: Bench) -> None:
    report = bench.run("plain.py", told={"launch": "python"}, parallelism="fsdp")
    assert report.outcome == Outcome.ERROR
    assert "parallelism: has found nothing to act on" in report.cause
