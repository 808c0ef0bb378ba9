"""Forms in which gradients are exchanged under DDP: narrower formats, low rank, one bit."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from autotune.worker.gradients import parameters_of
from autotune.worker.protocol import COMPRESSION_WARM_UP, Knobs

HOOKED = ("gradient_compression", "powersgd_rank")
"""Knobs that `compress_gradients` applies."""
_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
_BITS = 8
_LEAST_VARIANCE = 0.01
"""Smallest second moment relative to the mean of its tensor."""


def compress_gradients(
    knobs: Knobs, model: DistributedDataParallel, warm_up: int | None = COMPRESSION_WARM_UP
) -> None:
    """Register the hook of gradient_compression and powersgd_rank; one_bit is in the optimizer.

    Args:
        model: whose gradients are sent.
        warm_up: steps before low-rank factors are sent; None: as many as PyTorch's hook has by itself.
    """
    wanted, low_rank = knobs["gradient_compression"], knobs["powersgd_rank"]
    if wanted in _HOOKS:
        model.register_comm_hook(model.process_group, _HOOKS[wanted])
    elif wanted == "powersgd":
        # Imported where needed: few trials use it.
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        start: dict[str, Any] = {} if warm_up is None else {"start_powerSGD_iter": warm_up}
        state = powerSGD_hook.PowerSGDState(
            process_group=model.process_group, matrix_approximation_rank=low_rank, **start
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def compressed_momentum(
    knobs: Knobs, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> torch.optim.Optimizer:
    """Return an optimizer that takes the exchange over from DDP (gradient_compression: one_bit).

    Raises:
        ValueError: the optimizer is not plain Adam or AdamW.
    """
    if knobs["gradient_compression"] != "one_bit":
        return optimizer
    assert isinstance(model, DistributedDataParallel)
    one_bit = OneBitAdam(optimizer)
    model.register_comm_hook(one_bit, _while_warming_up)
    return one_bit


def _while_warming_up(
    optimizer: "OneBitAdam",
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    if not optimizer.compresses:
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]
    kept: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    kept.set_result(bucket.buffer())
    return kept


def averaged_gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the mean gradients over all ranks, also where ranks exchange something else."""
    own_only = isinstance(optimizer, OneBitAdam) and optimizer.compresses
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            mean = parameter.grad
            if own_only:
                mean = mean.clone()
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
            yield mean


class OneBitAdam(torch.optim.Optimizer):
    """Adam whose ranks exchange one bit per parameter (Tang et al. 2021, 1-bit Adam).

    After a warm-up of plain Adam the second moments are fixed. From then on every rank updates the
    momentum with its own gradient and sends the signs, with one scale per tensor; the rounding
    error is added to the next momentum. Every rank sends to every other: bytes grow with the number
    of ranks. A parameter that had no gradient during the warm-up does not change, as its second
    moment is meaningless.
    """

    def __init__(self, plain: torch.optim.Optimizer, warm_up: int = COMPRESSION_WARM_UP) -> None:
        """Take over the parameter groups and the state of an optimizer."""
        for group in plain.param_groups:
            adam = isinstance(plain, torch.optim.Adam)  # AdamW is one since torch 2.7
            adam |= isinstance(plain, torch.optim.AdamW)
            if not adam or group["amsgrad"] or group["maximize"]:
                raise ValueError(
                    f"gradient_compression=one_bit: it is made for plain Adam or AdamW, and this is "
                    f"{type(plain).__name__}{' with amsgrad or maximize' if adam else ''}; take the "
                    "value out of the search space"
                )
        super().__init__(plain.param_groups, plain.defaults)
        self._plain = plain
        is_adamw = isinstance(plain, torch.optim.AdamW)
        self._decoupled = plain.defaults.get("decoupled_weight_decay", is_adamw)
        self._warm_up = warm_up
        self._steps = 0
        self._lost: dict[torch.Tensor, torch.Tensor] = {}
        self.state = plain.state

    @property
    def compresses(self) -> bool:
        """Return whether the warm-up is over."""
        return self._steps >= self._warm_up

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update once: from averaged gradients in the warm-up, then from the rank's own."""
        if self.compresses:
            several = parameters_of(self)
            known = (p for p in several if p.grad is not None and "exp_avg" in self.state[p])
            self._exchange(list(known))
        else:
            self._plain.step(closure)
        self._steps += 1

    def _exchange(self, parameters: list[torch.nn.Parameter]) -> None:
        groups = {p: group for group in self.param_groups for p in group["params"]}
        momenta = [self._own_momentum(p, groups[p]) for p in parameters]
        scales = torch.stack([momentum.abs().mean() for momentum in momenta])
        signs = torch.cat([momentum.flatten() >= 0 for momentum in momenta])
        every_scale, every_sign = _everyones(scales), _everyones(_packed(signs))
        averaged = torch.zeros(len(signs), device=signs.device)
        for packed, scale in zip(every_sign, every_scale, strict=True):
            averaged += _unpacked(packed, len(signs)) * _spread(scale, momenta)
        averaged /= len(every_sign)
        sent = (signs * 2.0 - 1.0) * _spread(scales, momenta)
        sizes = [momentum.numel() for momentum in momenta]
        for p, momentum, own, everyones in zip(
            parameters, momenta, sent.split(sizes), averaged.split(sizes), strict=True
        ):
            self._lost[p] = momentum - own.view_as(p)
            self._update(p, groups[p], everyones.view_as(p))

    def _own_momentum(self, p: torch.nn.Parameter, group: dict[str, Any]) -> torch.Tensor:
        assert p.grad is not None
        gradient = p.grad
        if group["weight_decay"] and not self._decoupled:
            gradient = gradient.add(p, alpha=group["weight_decay"])
        momentum: torch.Tensor = self.state[p]["exp_avg"].lerp(gradient, 1 - group["betas"][0])
        return momentum.add_(self._lost[p]) if p in self._lost else momentum

    def _update(self, p: torch.nn.Parameter, group: dict[str, Any], momentum: torch.Tensor) -> None:
        state, (first, second) = self.state[p], group["betas"]
        variance = state["exp_avg_sq"]
        momentum = momentum.where(variance > 0, 0.0)
        state["exp_avg"].copy_(momentum)
        state["step"] += 1
        if group["weight_decay"] and self._decoupled:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        # A few steps leave some second moments far too small to divide by.
        variance = torch.maximum(variance, _LEAST_VARIANCE * variance.mean())
        scale = (variance / (1 - second**self._warm_up)).sqrt_().add_(group["eps"])
        correction = 1 - first ** (self._steps + 1)
        p.addcdiv_(momentum, scale, value=-group["lr"] / correction)


def _everyones(mine: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return found


def _packed(signs: torch.Tensor) -> torch.Tensor:
    """Pack eight signs into a byte."""
    whole = torch.nn.functional.pad(signs.to(torch.uint8), (0, -len(signs) % _BITS))
    return (whole.view(-1, _BITS) << _places(signs.device)).sum(dim=1, dtype=torch.uint8)


def _unpacked(packed: torch.Tensor, length: int) -> torch.Tensor:
    """Unpack signs as 1 and -1."""
    bits = (packed[:, None] >> _places(packed.device)) & 1
    return bits.flatten()[:length].to(torch.float32).mul_(2).sub_(1)


def _places(device: torch.device) -> torch.Tensor:
    return torch.arange(_BITS, dtype=torch.uint8, device=device)


def _spread(scales: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the scale of each tensor at each of its elements."""
    sizes = torch.tensor([tensor.numel() for tensor in tensors], device=scales.device)
    return scales.repeat_interleave(sizes)
