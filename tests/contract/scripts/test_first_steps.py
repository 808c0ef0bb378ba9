"""What the first steps of a script show of its training besides its speed."""

from typing import Any

import pytest

from autotune.measurement.gradients import (
    FirstSteps,
    comparable,
    deviations,
    first_problem,
    limits,
    rounding_of,
)
from autotune.measurement.policy import GATE
from autotune.worker.protocol import Outcome, TrialReport
from tests.contract.scripts.bench import RANKS, Bench, assert_well

SHARDED_BY_RANK = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
dist.init_process_group("gloo")
class Shards(IterableDataset):
    def __init__(self, rank):
        self.rank = rank
    def __iter__(self):
        for i in range(self.rank, 4000, 2):
            yield torch.full((8,), float(i))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
while True:
    for x in DataLoader(Shards(dist.get_rank()), 4):
        model(x).square().mean().backward()
        optimizer.step()
"""
CURRICULUM = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
dist.init_process_group("gloo")
class Crops(Dataset):
    def __init__(self):
        self.epoch = 0
    def __len__(self):
        return LENGTH
    def __getitem__(self, index):
        return torch.full((8,), float(index + self.epoch))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
crops = Crops()
loader = DataLoader(crops, 4, num_workers=1)
epoch = 0
while True:
    crops.epoch = epoch
    for x in loader:
        model(x).square().mean().backward()
        optimizer.step()
    epoch += 1
"""
ACCUMULATES = """
import contextlib, torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(LAYERS))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
number = 0
while True:
    for x in DataLoader(torch.randn(64, 8), 4):
        last = number % 2 == LAST
        with contextlib.nullcontext() if last else model.no_sync():
            model(x).square().mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        number += 1
"""
LINEAR = "torch.nn.Linear(8, 2)"
UNUSED = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)
    def forward(self, x):
        return self.used(x)
model = torch.nn.parallel.DistributedDataParallel(Experts(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x in DataLoader(torch.randn(64, 8), 4):
        model(x).square().mean().backward()
        optimizer.step()
"""
PRETRAINED = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
torch.manual_seed(SEED)
layers = [torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 2)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7)
while True:
    for x in DataLoader(torch.randn(640, 64), 8, shuffle=True):
        optimizer.zero_grad()
        (WRONG * model(x).float().square().mean()).backward()
        optimizer.step()
"""


def observed(report: TrialReport) -> dict[str, Any]:
    """Of all blocks together."""
    assert report.outcome is None, f"{report.cause}\n{report.log_tail}"
    return {name: value for block in report.blocks for name, value in block.observed.items()}


@pytest.mark.parametrize(("workers", "copies"), [(0, 0), (2, 24)])
def test_rows_that_loader_workers_read_twice_are_counted(
    bench: Bench, workers: int, copies: int
) -> None:
    script = bench.write(SHARDED_BY_RANK)
    seen = observed(bench.run(script, samples=4, num_workers=workers))["consumed"]
    assert (seen["rows"], seen["copies"]) == (4 * 6 * RANKS, copies)


def test_rows_are_the_same_with_other_workers_and_in_a_second_run(bench: Bench) -> None:
    script = bench.write(CURRICULUM.replace("LENGTH", "4000"))
    first, second = (
        observed(bench.run(script, samples=4, num_workers=workers))["consumed"]
        for workers in (0, 1)
    )
    assert first == second


@pytest.mark.parametrize("length", [16, 4000], ids=["short epochs", "epochs cut short"])
def test_workers_that_stay_while_the_dataset_changes_are_seen(bench: Bench, length: int) -> None:
    script = bench.write(CURRICULUM.replace("LENGTH", str(length)))
    cut = {"batches_per_epoch": 2 if length > 16 else 0}
    seen = observed(bench.run(script, persistent_workers=True, told=cut))
    assert seen["epochs"] >= 1
    assert seen["stale"] == ["dataset.epoch"]
    assert "epochs" not in observed(bench.run(script, persistent_workers=False, told=cut))


@pytest.mark.parametrize(("last", "alike"), [("1", True), ("0", False)])
def test_replicas_drift_apart_where_the_wrong_micro_batch_is_exchanged(
    bench: Bench, last: str, alike: bool
) -> None:
    script = bench.write(ACCUMULATES.replace("LAST", last).replace("LAYERS", LINEAR))
    assert (observed(bench.run(script))["replica_spread"] == 0.0) == alike


def test_batch_normalisation_is_told(bench: Bench) -> None:
    script = ACCUMULATES.replace("LAST", "1")
    plain = observed(bench.run(bench.write(script.replace("LAYERS", LINEAR))))
    norms = f"{LINEAR}, torch.nn.BatchNorm1d(2)"
    normalised = observed(bench.run(bench.write(script.replace("LAYERS", norms))))
    assert (plain["batch_dependent"], normalised["batch_dependent"]) == ("", "BatchNorm")


def test_unused_parameters_are_counted_and_named_as_the_cause(bench: Bench) -> None:
    script = bench.write(UNUSED)
    assert observed(bench.run(script))["unused_parameters"] == 2
    report = bench.run(script, find_unused_parameters=False)
    assert report.outcome == Outcome.ERROR
    assert "2 parameters got no gradient" in report.cause
    assert "find_unused_parameters=true" in report.cause


def _pretrained(bench: Bench, seed: str = "0", wrong: str = "1", **knobs: Any) -> FirstSteps:
    text = PRETRAINED.replace("SEED", seed).replace("WRONG", wrong)
    report = bench.run(bench.write(text), samples=8, asked={"trajectory": 3}, **knobs)
    assert_well(report, blocks=3)
    found = FirstSteps.seen([block.observed for block in report.blocks])
    assert found is not None
    return found


def test_the_first_gradient_of_a_seeded_script_decides_whether_bf16_is_right(bench: Bench) -> None:
    reference = _pretrained(bench)
    run = _pretrained(bench, precision="bf16")
    allowed = limits([{"precision": "bf16"}, {"precision": "fp32"}])
    assert comparable(run, reference)
    found = deviations(run, reference, allowed)
    assert 0 < found[0].size < allowed[0].whole
    assert first_problem(found) == ""
    wrong = _pretrained(bench, wrong="1.5", precision="bf16")
    assert "gradient" in first_problem(deviations(wrong, reference, allowed))
    assert not comparable(_pretrained(bench, seed="1"), reference)


CONVOLVES = """
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        half = lambda: (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(*half(), *half())
    def forward(self, x):
        return x + self.body(x)
model = nn.Sequential(*(Block() for _ in range(12)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x in DataLoader(torch.randn(256, 8, 8, 8), 4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), torch.arange(len(x)))
        (WRONG * loss).backward()
        optimizer.step()
"""


_NOISE = """
class Noisy(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)
layers = [torch.nn.Linear(64, 64), Noisy(), torch.nn.Linear(64, 2)]
"""


def test_gradients_of_a_model_that_draws_other_random_numbers_are_not_compared(
    bench: Bench,
) -> None:
    text = PRETRAINED.replace("SEED", "0").replace("WRONG", "1")
    before, after = text.split("model =", 1)
    found = []
    for noise in (_NOISE, _NOISE, _NOISE.replace("randn_like(x)", "randn(2, *x.shape)[0]")):
        script = bench.write(f"{before}{noise}model ={after}")
        report = bench.run(script, samples=8, asked={"trajectory": 3})
        assert_well(report, blocks=3)
        found.append(FirstSteps.seen([block.observed for block in report.blocks]))
    assert comparable(found[0], found[1])
    assert not comparable(found[0], found[2])


def _convolutional(
    bench: Bench, wrong: str = "1", *, autocast: bool = False, **knobs: Any
) -> FirstSteps:
    script = bench.write(CONVOLVES.replace("WRONG", wrong))
    report = bench.run(script, samples=4, asked={"trajectory": 2, "autocast": autocast}, **knobs)
    found = FirstSteps.seen([block.observed for block in report.blocks])
    assert found is not None
    return found


def test_convolutions_of_a_script_are_told(bench: Bench) -> None:
    script = bench.write(CONVOLVES.replace("WRONG", "1"))
    assert observed(bench.run(script, samples=4))["convolutions"] == 1


def test_plain_autocast_of_a_script_tells_how_far_its_model_amplifies_rounding(
    bench: Bench,
) -> None:
    reference = _convolutional(bench)
    amplified = rounding_of(_convolutional(bench, autocast=True), reference)
    assert amplified[0].whole > GATE.null_bf16
    formats = {"precision": "bf16"}, {"precision": "fp32"}
    run = _convolutional(bench, precision="bf16")
    assert first_problem(deviations(run, reference, limits(formats, amplified))) == ""
    wrong = _convolutional(bench, wrong="0.7", precision="bf16")
    assert "gradient" in first_problem(deviations(wrong, reference, limits(formats, amplified)))


OVERFLOWS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=FUSED)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-100)
while True:
    for x in DataLoader(torch.randn(256, 8), 4):
        optimizer.zero_grad()
        scaler.scale(100 * model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def _after_overflow(bench: Bench, fused: str) -> FirstSteps:
    script = bench.write(OVERFLOWS.replace("FUSED", fused))
    report = bench.run(script, samples=4, asked={"trajectory": 2})
    assert_well(report, blocks=2)
    found = FirstSteps.seen([block.observed for block in report.blocks])
    assert found is not None
    return found


def test_fused_update_that_skips_an_overflow_is_compared_by_its_first_finite_gradient(
    bench: Bench,
) -> None:
    fused, single = (_after_overflow(bench, fused) for fused in ("True", "False"))
    assert comparable(fused, single)
    found = deviations(fused, single, limits([{"precision": "fp16"}, {"precision": "fp16"}]))
    assert first_problem(found) == ""
    assert found[0].size < 1e-3


SUMS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + step)
rows = torch.randn(256, 8)
while True:
    for number, x in enumerate(DataLoader(rows, BATCH), 1):
        model(x).square().mean().backward()
        schedule.step()
        if number % STEPS == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def _summed(bench: Bench, batch: int, steps: int) -> dict[str, Any]:
    script = bench.write(SUMS.replace("BATCH", str(batch)).replace("STEPS", str(steps)))
    return observed(bench.run(script, samples=batch * steps))


def test_size_of_the_first_updates_is_told(bench: Bench) -> None:
    split, whole = _summed(bench, 2, 4), _summed(bench, 8, 1)
    assert split["optimizer"] == whole["optimizer"] == "SGD"
    assert split["first_gradient"] / whole["first_gradient"] == pytest.approx(4, rel=1e-3)
    assert whole["learning_rates"] == pytest.approx([0.001 * step for step in range(2, 8)])
    assert split["learning_rates"] == pytest.approx([0.001 * step for step in range(5, 29, 4)])


def test_optimizer_without_a_learning_rate_of_its_own_tells_none(bench: Bench) -> None:
    text = SUMS.replace("BATCH", "8").replace("STEPS", "1")
    step = "torch.optim.SGD(model.parameters(), lr=0.001)"
    own = (
        "class Relative(torch.optim.Optimizer):\n"
        "    def step(self):\n"
        "        pass\n"
        "optimizer = Relative(model.parameters(), {'lr': None})\n"
    )
    schedule = "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + step)\n"
    text = text.replace(f"optimizer = {step}\n", own).replace(schedule, "")
    told = observed(
        bench.run(bench.write(text.replace("        schedule.step()\n", "")), samples=8)
    )
    assert told["optimizer"] == "Relative"
    assert "learning_rates" not in told
