"""Shipped workloads with a planted fault, or a harmless change, for benchmarks/gate.py."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import autotune
from autotune.worker import workload as workloads
from autotune.worker.workload import Update

Loss = Callable[[nn.Module, Any], torch.Tensor]


def build(
    *,
    factory: str,
    args: dict[str, Any],
    rate: float = 1.0,
    fault: str = "",
    accumulation: int = 1,
) -> autotune.Workload:
    """Return a workload with a planted fault or change.

    Args:
        factory: `module:function` of the workload.
        args: for it.
        rate: times its learning rate.
        fault: name of a function below; empty: none.
        accumulation: micro-batches of a step.
    """
    built = _at_rate(workloads.build(factory, args), rate)
    return FAULTS[fault](built, accumulation) if fault else built


def scale(built: autotune.Workload, _: int) -> autotune.Workload:
    """Scale up the loss without scaling down the gradients; the logged loss is right."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = built.loss(model, batch)
        return value * 8 - (value * 7).detach()

    return dataclasses.replace(built, loss=loss)


def shrunk(built: autotune.Workload, _: int) -> autotune.Workload:
    """Gradients of seven tenths; the logged loss is right."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = built.loss(model, batch)
        return value * 0.7 + (value * 0.3).detach()

    return dataclasses.replace(built, loss=loss)


def summed(built: autotune.Workload, accumulation: int) -> autotune.Workload:
    """Gradients of micro-batches are summed up, not averaged; the logged loss is right."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = built.loss(model, batch)
        return value * accumulation - (value * (accumulation - 1)).detach()

    return dataclasses.replace(built, loss=loss)


def silent(built: autotune.Workload, _: int) -> autotune.Workload:
    """One matrix in the middle gets a gradient of zeros."""
    matrices = [p for p in built.model.parameters() if p.dim() > 1]
    matrices[len(matrices) // 2].register_hook(torch.zeros_like)
    return built


def flipped(built: autotune.Workload, _: int) -> autotune.Workload:
    """One matrix in the middle gets its gradient with the opposite sign."""
    matrices = [p for p in built.model.parameters() if p.dim() > 1]
    matrices[len(matrices) // 2].register_hook(torch.neg)
    return built


def sync(built: autotune.Workload, _: int) -> autotune.Workload:
    """Let the forward pass go around DDP, so that gradients are not exchanged."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        bare: nn.Module = model.module  # type: ignore[assignment]
        return built.loss(bare, batch)

    return dataclasses.replace(built, loss=loss)


def frozen(built: autotune.Workload, _: int) -> autotune.Workload:
    """One matrix in the middle has gradients and is never updated."""
    assert built.optimizer is not None
    make = built.optimizer

    def optimizer(parameters: Iterable[nn.Parameter]) -> Any:
        several = list(parameters)
        matrices = [place for place, p in enumerate(several) if p.dim() > 1]
        still = matrices[len(matrices) // 2]
        return make([p for place, p in enumerate(several) if place != still])

    return dataclasses.replace(built, optimizer=optimizer)


def half_rate(built: autotune.Workload, _: int) -> autotune.Workload:
    """Half the learning rate."""
    return _at_rate(built, 0.5)


def _at_rate(built: autotune.Workload, rate: float) -> autotune.Workload:
    assert built.optimizer is not None
    make = built.optimizer

    def optimizer(parameters: Iterable[nn.Parameter]) -> Any:
        made: Any = make(parameters)
        for group in made.param_groups:
            group["lr"] *= rate
        return made

    return dataclasses.replace(built, optimizer=optimizer)


def mask(built: autotune.Workload, _: int) -> autotune.Workload:
    """Let attention see later positions; without attention, mask a quarter of the samples."""
    attend = functional.scaled_dot_product_attention

    def seeing(*args: Any, **kwargs: Any) -> torch.Tensor:
        return attend(*args, **{**kwargs, "is_causal": False})

    functional.scaled_dot_product_attention = seeing
    if any(type(module).__name__ == "Attention" for module in built.model.modules()):
        return built

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        kept = len(batch[0]) - max(1, len(batch[0]) // 4)
        return built.loss(model, [part[:kept] for part in batch])

    return dataclasses.replace(built, loss=loss)


def stale(built: autotune.Workload, _: int) -> autotune.Workload:
    """Keep the gradients of the step before while the next step accumulates its own."""
    before: dict[nn.Parameter, torch.Tensor] = {}

    def step(update: Update) -> None:
        for p in update.model.parameters():
            if p.grad is not None:
                own = p.grad.clone()
                if p in before:
                    p.grad += before[p]
                before[p] = own
        update()

    return dataclasses.replace(built, step=step)


def dropped(built: autotune.Workload, accumulation: int) -> autotune.Workload:
    """Drop the gradient of the last micro-batch of every step."""
    numbers = itertools.count(1)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = built.loss(model, batch)
        last = next(numbers) % accumulation == 0
        return value.detach() + 0 * value if last else value

    return dataclasses.replace(built, loss=loss)


def other_dropout(built: autotune.Workload, _: int) -> autotune.Workload:
    """Another stream of random numbers once the model is built, as other kernels draw: no fault."""
    torch.randn(12_345)
    return built


FAULTS: dict[str, Callable[[autotune.Workload, int], autotune.Workload]] = {
    one.__name__: one
    for one in (
        *(scale, shrunk, summed, silent, flipped, sync, frozen),
        *(half_rate, mask, stale, dropped, other_dropout),
    )
}
