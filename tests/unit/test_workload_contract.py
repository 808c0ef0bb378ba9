"""What a Workload may be made of, in one process: iterable sets, batches of its own, hooks, refusals."""

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import autotune
from autotune.worker import workload
from autotune.worker.effects import feeding
from tests.support.one_rank import WIDTH, group, regression, settings_of_torch, training
from tests.support.trials import knobs

__all__ = ["group", "settings_of_torch"]  # fixtures


class Stream(IterableDataset[int]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def fed(built: autotune.Workload, count: int, **changes: Any) -> list[list[int]]:
    """The first batches."""
    source = feeding.source(built, knobs(**changes), rank=0, world_size=1, seed=0)
    return [batch.tolist() for batch in itertools.islice(source, count)]


def of_batches(batches: Any, **changes: Any) -> autotune.Workload:
    return dataclasses.replace(regression(), dataset=None, batches=batches, **changes)


# Data


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_dataset_is_read_in_order_again_and_again(workers: int) -> None:
    built = dataclasses.replace(regression(), dataset=Stream(7))
    found = fed(built, 4, micro_batch=3, num_workers=workers)
    assert found == [[0, 1, 2], [3, 4, 5]] * 2


def test_an_iterable_dataset_without_a_micro_batch_is_refused() -> None:
    built = dataclasses.replace(regression(), dataset=Stream(3))
    with pytest.raises(ValueError, match="no micro-batch of 4 samples to this rank in epoch 1"):
        fed(built, 1, micro_batch=4)


def test_batches_are_asked_for_with_rank_world_size_and_micro_batch() -> None:
    asked = []

    def batches(rank: int, world_size: int, micro_batch: int) -> Iterator[torch.Tensor]:
        asked.append((rank, world_size, micro_batch))
        yield torch.arange(micro_batch)

    source = feeding.source(
        of_batches(batches), knobs(micro_batch=3), rank=1, world_size=2, seed=0, replicas=1
    )
    assert [next(source).tolist() for _ in range(2)] == [[0, 1, 2]] * 2
    assert asked == [(1, 2, 3)] * 2


def test_a_function_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="`batches` gave none in epoch 1"):
        fed(of_batches(lambda *_: []), 1)


def test_batches_of_another_size_are_refused() -> None:
    """They would count for more samples than they have."""
    with pytest.raises(ValueError, match=r"asked for 16 samples a batch and gave .*\(8, 3\)"):
        fed(of_batches(lambda *_: [torch.zeros(8, 3)]), 1, micro_batch=16)
    assert fed(of_batches(lambda *_: [torch.zeros(3, 2)]), 1, micro_batch=2), "time first"


# Updates


def test_a_step_that_updates_nothing_is_refused() -> None:
    loop = training(dataclasses.replace(regression(), step=lambda update: None))
    with pytest.raises(ValueError, match="`step` returned without an update"):
        loop.step()


def test_a_step_may_update_with_one_optimizer_of_several() -> None:
    model = nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)})
    built = dataclasses.replace(
        regression(),
        model=model,
        loss=lambda model, batch: sum(m(batch[0]).square().mean() for m in model.values()),
        optimizer=lambda _: [torch.optim.SGD(m.parameters(), lr=0.1) for m in model.values()],
        step=lambda update: update(update.optimizers[update.number % 2]),
    )
    loop = training(built, parallelism="none")
    before = [m.weight.clone() for m in model.values()]
    loop.step()
    assert [torch.equal(m.weight, b) for m, b in zip(model.values(), before, strict=True)] == [
        False,
        True,
    ]
    assert all(p.grad is None for p in model.parameters())


def scheduled(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(parameters)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    "replaced", [{"parallelism": "zero1"}, {"gradient_compression": "one_bit"}]
)
def test_a_schedule_for_an_optimizer_that_is_replaced_is_refused(replaced: dict[str, str]) -> None:
    built = dataclasses.replace(regression(), optimizer=scheduled)
    training(built)
    with pytest.raises(ValueError, match="make the schedule in `step`, for update"):
        training(built, **replaced)


def test_a_torch_schedule_made_in_step_acts_on_the_optimizer_that_trains() -> None:
    made: list[Any] = []

    def step(update: autotune.Update) -> None:
        if not update.number:
            made.append(torch.optim.lr_scheduler.StepLR(update.optimizers[0], 1, gamma=0.5))
        update()
        made[0].step()

    built = dataclasses.replace(
        regression(rate=0.1), optimizer=lambda p: torch.optim.Adam(p, lr=0.1), step=step
    )
    loop = training(built, parallelism="zero1")
    for _ in range(3):
        loop.step()
    inner: Any = loop.updates.optimizers[0]
    assert inner.optim.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)


def test_gradients_that_ranks_do_not_exchange_cannot_be_clipped() -> None:
    def step(update: autotune.Update) -> None:
        update.clip_grad_norm(1.0)
        update()

    built = dataclasses.replace(regression(), optimizer=lambda p: torch.optim.Adam(p), step=step)
    loop = training(built, gradient_compression="one_bit")
    with pytest.raises(ValueError, match="gradient_compression=one_bit: ranks exchange no"):
        loop.step()


# What is not supported says so


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batches": lambda *_: []}, "`dataset` or `batches`, one of them"),
        ({"dataset": None}, "`dataset` or `batches`, one of them"),
        ({"optimizer_step": print}, "`optimizer` or `optimizer_step`, one of them"),
        ({"optimizer": None}, "`optimizer` or `optimizer_step`, one of them"),
        (
            {"optimizer": None, "optimizer_step": print, "step": print},
            "`step` goes with `optimizer`",
        ),
        ({"dataset": None, "batches": print, "collate": list}, "`collate` goes with `dataset`"),
        ({"dataset": None, "batches": print, "longest": range}, "`longest` goes with a map-style"),
        ({"dataset": DataLoader([1])}, "`dataset` is a DataLoader"),
        ({"dataset": iter([1])}, "of class list_iterator, neither map-style"),
        ({"model": {"a": nn.Linear(1, 1)}}, "`model` is of class dict, no nn.Module"),
        ({"model": nn.DataParallel(nn.Linear(1, 1))}, "a model in DataParallel"),
    ],
)
def test_parts_that_do_not_go_together_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        dataclasses.replace(regression(), **changes)


def test_a_workload_without_a_loss_is_refused() -> None:
    with pytest.raises(TypeError, match="it has no `loss`"):
        autotune.Workload(nn.Linear(1, 1), [1], optimizer=lambda p: torch.optim.SGD(p))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda p: [], "returned nothing"),
        (lambda p: "adam", "of class str"),
        (lambda p: [torch.optim.LBFGS(p)], "LBFGS, whose step computes the loss again"),
    ],
)
def test_what_is_no_optimizer_is_named(made: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        training(dataclasses.replace(regression(), optimizer=made))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, batch: (1, 2), "of class tuple; it must return one scalar tensor"),
        (lambda model, batch: model(batch[0]), r"a tensor of shape \(2, 256\)"),
    ],
)
def test_what_is_no_loss_is_named(loss: Any, said: str) -> None:
    loop = training(dataclasses.replace(regression(), loss=loss))
    with pytest.raises(TypeError, match=said):
        loop.step()


# Models that need their device while they are built


@pytest.fixture
def factories(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("factories_of_a_test")

    def asks(device: torch.device | None = None, width: int = 3) -> autotune.Workload:
        return regression(nn.Linear(width, width, device=device), width=width)

    def takes_all(**given: Any) -> autotune.Workload:
        assert given == {"width": 2}
        return asks()

    vars(module).update(asks=asks, takes_all=takes_all)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_factory_that_asks_is_told_its_device(factories: ModuleType) -> None:
    name, meta = factories.__name__, torch.device("meta")
    built = workload.build(f"{name}:asks", {"width": 2}, meta)
    assert built.model.weight.device == meta
    own = workload.build(f"{name}:asks", {"device": "cpu"}, meta)
    assert own.model.weight.device == torch.device("cpu"), "what the study says holds"
    workload.build(f"{name}:takes_all", {"width": 2}, meta)
