"""Training code as it is: every hook of the contract, on two real ranks, against plain PyTorch."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.config.workload_kinds import spread
from autotune.measurement.policy import GATE
from autotune.measurement.stop_rule import Limits
from autotune.runs.monitors import TimedMonitor, TrajectoryMonitor
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Resources, Slot, section_of
from storage import AttemptResult
from tests.support.trials import knobs, trial
from tests.workloads import hooked

WORKLOADS = str(Path(__file__).parent.parent / "workloads")


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    folder = str(tmp_path_factory.mktemp("agents"))
    with section_of("local").open(Resources(2, None, 1, 1), folder) as launcher:
        yield launcher.slots[0]


def asked(folder: Path, *, own: bool = False, trajectory: int = 0, **changes: Any) -> TrialRequest:
    return trial(
        folder,
        "hooked:build",
        args={"folder": str(folder), "own": own},
        knobs=knobs(micro_batch=4, **changes),
        blocks=BlockPlan(seconds=0.05, min_steps=hooked.STEPS),
        import_paths=(WORKLOADS,),
        trajectory=trajectory,
    )


def ran(slot: Slot, request: TrialRequest) -> AttemptResult:
    judge = TimedMonitor(Limits(warmup=0.1, longest=0.2, precision=0.5))
    return judge.result(slot.run_solo(spread(request), judge))


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"own": True},
        {"accumulation_steps": 2},
        {"own": True, "accumulation_steps": 2, "set_to_none": False},
        {"parallelism": "zero1"},
        {"parallelism": "fsdp"},
        {"own": True, "parallelism": "fsdp"},
        {"parallelism": "data_parallel"},
        {"optimizer_kernels": "foreach", "gradient_as_bucket_view": True},
    ],
    ids=lambda changes: ", ".join(f"{n}={v}" for n, v in changes.items()) or "ddp",
)
def test_clipping_schedule_optimizers_and_batches_do_what_plain_pytorch_does(
    slot: Slot, tmp_path: Path, changes: dict[str, Any]
) -> None:
    result = ran(slot, asked(tmp_path, **changes))
    assert result.state == "COMPLETE", (result.cause, result.log_tail)
    weights, norms = hooked.plainly(2, 4, changes.get("accumulation_steps", 1))
    assert min(norms) > hooked.CLIP, "every step is clipped"
    for rank in (0,) if changes.get("parallelism") == "data_parallel" else (0, 1):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen["device"] == "cpu"
        assert torch.tensor(seen["weights"]).allclose(weights, atol=1e-5)
        assert seen["norms"][: hooked.STEPS] == pytest.approx(norms, rel=1e-4)


def test_a_loss_scale_is_taken_off_before_gradients_are_clipped(slot: Slot, tmp_path: Path) -> None:
    result = ran(slot, asked(tmp_path, precision="fp16"))
    assert result.state == "COMPLETE", (result.cause, result.log_tail)
    _, norms = hooked.plainly(2, 4, 1)
    seen = json.loads((tmp_path / "0.json").read_text())
    # The first few may overflow while the scale is still far too large.
    finite = [n for n in seen["norms"][: hooked.STEPS] if math.isfinite(n)]
    assert finite
    assert finite[0] == pytest.approx(norms[0], rel=0.05)


@pytest.mark.parametrize("own", [False, True])
def test_a_trajectory_tells_the_gradients_norm_before_it_is_clipped(
    slot: Slot, tmp_path: Path, own: bool
) -> None:
    judge = TrajectoryMonitor(None, formats=(), earlier=(), rounding=())
    result = judge.result(
        slot.run_solo(asked(tmp_path, own=own, trajectory=GATE.most_steps), judge)
    )
    assert result.state == "COMPLETE", (result.cause, result.log_tail)
    found = [seen.block.observed["gradient_norm"] for seen in judge.seen]
    _, norms = hooked.plainly(2, 4, 1)
    assert found[: hooked.STEPS] == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize(
    ("own", "changes", "said"),
    [
        (True, {"parallelism": "zero1"}, "parallelism=zero1 acts on the optimizer"),
        (True, {"precision": "fp16"}, "precision=fp16 acts on the optimizer"),
        (True, {"optimizer_kernels": "foreach"}, "optimizer_kernels=foreach acts on the optimizer"),
        (False, {"gradient_compression": "one_bit"}, "one_bit takes the place of one optimizer"),
        (False, {"num_workers": 1}, "num_workers=1: the workload makes its batches itself"),
    ],
)
def test_a_knob_that_cannot_act_is_refused_by_name(
    slot: Slot, tmp_path: Path, own: bool, changes: dict[str, Any], said: str
) -> None:
    result = ran(slot, asked(tmp_path, own=own, **changes))
    assert result.state == "ERROR"
    assert said in result.cause
