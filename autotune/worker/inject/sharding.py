"""FSDP2 in the place of DistributedDataParallel, and other arguments of fully_shard, in a script.

Parameters become parts, and so do their entries in checkpoints.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autotune.worker.effects import parallel
from autotune.worker.effects.parallel import blocks
from autotune.worker.protocol import Knobs

_HOMES = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
"""Modules from which scripts import fully_shard."""


class Sharded(DistributedDataParallel):
    """Wrapper that a script takes for DistributedDataParallel, around a model that FSDP2 shards."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the model inside."""
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without an exchange, as DistributedDataParallel does."""
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = True

    @property
    def require_backward_grad_sync(self) -> bool:
        """Return whether the next backward pass exchanges gradients."""
        return bool(self.__dict__.get("_exchanges", True))

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, exchanges: bool) -> None:
        self.__dict__["_exchanges"] = exchanges
        self.module.set_requires_gradient_sync(exchanges)


def shard(
    wrapper: DistributedDataParallel,
    module: nn.Module,
    knobs: Knobs,
    optimizers: Collection[Optimizer],
) -> None:
    """Make a wrapper that is being constructed one around a sharded model.

    Autocast casts what the script computes, as with DistributedDataParallel: FSDP2 casts nothing.

    Args:
        wrapper: on which no constructor has run.
        module: to shard, on its device.
        knobs: a value for every knob.
        optimizers: that may hold its parameters, and state of them that the script has loaded.

    Raises:
        ValueError: such a state cannot be sharded.
    """
    before = {id(one): name for name, one in module.named_parameters(remove_duplicate=False)}
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor, 0)  # as DistributedDataParallel begins
    held = [
        (group, [before.get(id(one)) for one in group["params"]])
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    device = next(module.parameters()).device
    parallel.sharded({**knobs, "precision": "fp32"}, module, device)
    now = dict(module.named_parameters(remove_duplicate=False))
    for group, names in held:
        group["params"] = [
            now[name] if name else one for one, name in zip(group["params"], names, strict=True)
        ]
    for state in (optimizer.state for optimizer in optimizers):
        for one in [one for one in state if id(one) in before]:
            sharded = now[before[id(one)]]
            state[sharded] = _parts_of_state(state.pop(one), one, sharded)
    nn.Module.__init__(wrapper)
    wrapper.__class__ = Sharded
    wrapper.module = module


def _parts_of_state(state: Mapping[str, Any], whole: Tensor, sharded: Tensor) -> dict[str, Any]:
    """Return the state of a parameter as its parts have it.

    Args:
        state: of the whole parameter, equal in all ranks.
        whole: parameter before it was sharded.
        sharded: parameter in parts.

    Raises:
        ValueError: a tensor in it is of another shape than the parameter, and no number.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(sharded, DTensor)

    def part(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or (value.numel() == 1 and value.shape != whole.shape):
            return value
        if value.shape != whole.shape:
            raise ValueError(
                f"parallelism: the script loads a state of its optimizer whose {name} is not of the "
                "shape of its parameter, and cannot be sharded; take the knob out of the search space"
            )
        return distribute_tensor(value, sharded.device_mesh, sharded.placements)

    return {name: part(name, value) for name, value in state.items()}


def change_calls(knobs: Knobs, names: frozenset[str], called: Callable[[], None]) -> None:
    """Give other arguments to the calls of fully_shard by the script.

    Args:
        knobs: a value for every knob.
        names: of those to apply.
    """
    found = [importlib.import_module(home) for home in _HOMES]
    shards: Callable[..., Any] = found[0].fully_shard
    calls = _Calls(knobs, names)

    @functools.wraps(shards)
    def changed(module: Any, *args: Any, **kwargs: Any) -> Any:
        several = [module] if isinstance(module, nn.Module) else list(module)
        made = shards(module, *args, **{**kwargs, **calls.arguments(several, kwargs)})
        if "fsdp_prefetch" in names and isinstance(module, nn.Module) and blocks(module):
            parallel.prefetch(knobs, module)
        called()
        return made

    for home in found:
        home.fully_shard = changed  # type: ignore[attr-defined]


class _Calls:
    """Calls of fully_shard, which share a mesh."""

    def __init__(self, knobs: Knobs, names: frozenset[str]) -> None:
        self._knobs = knobs
        self._names = names
        self._mesh = functools.cache(parallel.mesh)

    def arguments(self, modules: list[nn.Module], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that knobs change.

        Args:
            given: arguments of the script.

        Raises:
            ValueError: it shards over other ranks than all of them.
        """
        wanted: dict[str, Any] = {}
        if "parallelism" in self._names:
            value = self._knobs["parallelism"]
            wanted["mesh"] = self._mesh(value, _device(value, modules, given.get("mesh")))
            if not _hold_sharded(modules):  # parameters outside blocks are as the script has them
                wanted["reshard_after_forward"] = value != "fsdp_no_reshard"
        if "fsdp_reduce_dtype" in self._names and self._knobs["fsdp_reduce_dtype"] == "bf16":
            from torch.distributed.fsdp import MixedPrecisionPolicy

            policy = given.get("mp_policy", MixedPrecisionPolicy())
            wanted["mp_policy"] = dataclasses.replace(policy, reduce_dtype=torch.bfloat16)
        return wanted


def _device(parallelism: str, modules: list[nn.Module], mesh: Any) -> str:
    """Return the type of device of a call; raises as `_Calls.arguments`."""
    if mesh is None:
        return next(modules[0].parameters()).device.type
    if mesh.size() != dist.get_world_size():
        raise ValueError(
            f"parallelism={parallelism}: the script gives fully_shard a mesh of {mesh.size()} of "
            f"{dist.get_world_size()} ranks; take the knob out of the search space"
        )
    return str(mesh.device_type)


def _hold_sharded(modules: list[nn.Module]) -> bool:
    """Return whether modules have others in them that are sharded by themselves."""
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(inner, FSDPModule) for one in modules for inner in one.modules())
