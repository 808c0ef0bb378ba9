"""Choice of kernels and of what they keep: compilation, attention, layout, recomputation, FP8.

Matrix products in FP8 are torchao's, an optional extra, imported by ranks that use it.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from autotune.worker.effects.compiler_cache import kept_apart
from autotune.worker.effects.parallel import SHARDING, blocks, repeated
from autotune.worker.installing import pip_install
from autotune.worker.protocol import Knobs

_ATTENTION = {
    "unfused": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash3": SDPBackend.FLASH_ATTENTION,
}
CUDA_GRAPHS = frozenset({"reduce-overhead", "max-autotune"})
"""Values of compile under which results lie in memory that the next call writes to."""
_TAKE_MORE = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
"""Implementations for what another one refuses, in this order."""
OF_IMAGES = 4
"""Dimensions of a batch of images, and of the weight of a convolution over them."""
_MULTIPLE = 16
"""Divisor of the dimensions of a matrix that FP8 products take."""


@runtime_checkable
class SplitProjection(Protocol):
    """Attention module that can issue its Q, K and V projections on CUDA streams of their own."""

    qkv_streams: bool


def qkv_streams(knobs: Knobs, model: nn.Module) -> None:
    """Set qkv_streams on every attention module that has the attribute.

    Raises:
        ValueError: it is asked for and no module of the model offers it.
    """
    offering = [module for module in model.modules() if isinstance(module, SplitProjection)]
    if knobs["qkv_streams"]:
        _must_offer(
            offering, "qkv_streams is on", "qkv_streams", "give the attention modules the attribute"
        )
    for module in offering:
        module.qkv_streams = knobs["qkv_streams"]


def _must_offer(offering: Sequence[object], asked: str, name: str, instead: str) -> None:
    if not offering:
        raise ValueError(
            f"{asked}, but no module of the model has a `{name}` attribute; take the knob out of the "
            f"search space or {instead}"
        )


@runtime_checkable
class ChunkedLoss(Protocol):
    """Model that computes its loss in its forward pass, optionally in slices of the vocabulary."""

    loss_chunks: int


def loss_chunks(knobs: Knobs, model: nn.Module) -> None:
    """Set loss_chunks on the module that has the attribute.

    Raises:
        ValueError: it is asked for and no module of the model offers it.
    """
    offering = [module for module in model.modules() if isinstance(module, ChunkedLoss)]
    if knobs["loss_chunks"] > 1:
        _must_offer(
            offering, "loss_chunks is above 1", "loss_chunks", "compute the loss inside the model"
        )
    for module in offering:
        module.loss_chunks = knobs["loss_chunks"]


def compiled(knobs: Knobs, model: nn.Module) -> nn.Module:
    """Compile the model, or each of its blocks, before it is wrapped (compile, compile_scope).

    Module.compile is not used: it silently leaves an nn.Sequential uncompiled (torch 2.13).

    Raises:
        ValueError: blocks are to be compiled and the model has none.
    """
    mode, scope = knobs["compile"], knobs["compile_scope"]
    if mode == "none":
        return model
    if apart := _compiled_apart(model, scope, sharded=knobs["parallelism"] in SHARDING):
        _compile_forwards(apart, mode)
        return model
    return cast(nn.Module, torch.compile(model, mode=mode))


def compile_in_place(knobs: Knobs, model: nn.Module, *, sharded: bool) -> None:
    """Compile forward of the model, or of each of its blocks (compile, compile_scope).

    No wrapper comes around the model, which would rename what a checkpoint has of it.

    Args:
        model: whose forward is replaced.
        sharded: whether FSDP2 gathers its parameters.

    Raises:
        ValueError: blocks are to be compiled and the model has none.
    """
    if knobs["compile"] != "none":
        apart = _compiled_apart(model, knobs["compile_scope"], sharded=sharded)
        _compile_forwards(apart or [model], knobs["compile"])


def _compiled_apart(model: nn.Module, scope: str, *, sharded: bool) -> list[nn.Module]:
    """Return the blocks if each is compiled by itself; none if the model is compiled as a whole.

    They are where FSDP2 gathers and frees the parameters of each: its hooks would break the graph of
    a whole model there, and graphs compiled after every break share nothing.
    """
    if scope == "blocks":
        return repeated(model, "compile_scope=blocks")
    return blocks(model) if sharded else []


def _compile_forwards(found: Sequence[nn.Module], mode: str) -> None:
    """Compile every module's forward; the model keeps its modules, their names and hooks."""
    # Equal blocks share the code of the first. Blocks that differ in a number are compiled one by
    # one, and torch.compile would silently leave the ninth uncompiled.
    dynamo = torch._dynamo.config
    dynamo.cache_size_limit = max(dynamo.cache_size_limit, 2 * len(found))
    for module in found:
        module.forward = torch.compile(module.forward, mode=mode)


def cudnn_benchmark(knobs: Knobs) -> None:
    """Turn cudnn_benchmark on for this process; off leaves the user's own setting."""
    if knobs["cudnn_benchmark"]:
        torch.backends.cudnn.benchmark = True


def flash_attention(knobs: Knobs) -> None:
    """Replace torch's own FlashAttention in this process (attention: flash3).

    Raises:
        ValueError: this torch does not support it, or its module is missing.
    """
    if knobs["attention"] != "flash3":
        return
    activate = getattr(torch.nn.attention, "activate_flash_attention_impl", None)
    if activate is None:
        raise ValueError(
            f"attention=flash3: PyTorch {torch.__version__} cannot register FlashAttention 3; use a "
            "newer one, or take the value out of the search space"
        )
    try:
        activate("FA3")
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            "attention=flash3 needs FlashAttention 3 with its module flash_attn_interface, which could "
            f"not be loaded ({error}); install it, or take the value out of the search space"
        ) from error


def attention(knobs: Knobs, *, gives_way: bool = False) -> AbstractContextManager[Any]:
    """Return a context that selects the implementation of attention for forward and backward pass.

    The compiler's caches would give code back that was compiled for another one.

    Args:
        knobs: a value for every knob.
        gives_way: whether another one takes what this one refuses, as flash does masks.
    """
    backend = _ATTENTION.get(knobs["attention"])
    if not backend:
        return nullcontext()
    backends = [backend, *_TAKE_MORE] if gives_way else [backend]
    selected = sdpa_kernel(backends, set_priority=gives_way)
    if torch.compiler.is_compiling():  # by the script, around this: the graph has the selection
        return selected
    name = f"attention={knobs['attention']}"
    return kept_apart(f"{name},others" if gives_way else name, selected)


def checkpoint_activations(knobs: Knobs, model: nn.Module) -> None:
    """Checkpoint every k-th block of the longest list of equal modules (activation_checkpointing).

    A model of transformers checkpoints its blocks by itself: they would add to a cache of keys and
    values again as they are computed anew.

    Raises:
        ValueError: the model has no list of at least two modules of one class, or is one of an older
            transformers that keeps a cache, and only some blocks are to be checkpointed.
    """
    every = knobs["activation_checkpointing"]
    if not every or _checkpoints_itself(model, every):
        return
    for number, block in enumerate(repeated(model, "activation_checkpointing")):
        if number % every == 0:
            block.forward = _checkpointed(block.forward)


def _checkpoints_itself(model: nn.Module, every: int) -> bool:
    """Have a model of transformers checkpoint every k-th block; return whether it can."""
    if not getattr(model, "supports_gradient_checkpointing", False):
        return False
    if enable := getattr(model, "activation_checkpointing_enable", None):  # since 5.23
        enable({"use_reentrant": False}, every_n_layers=every)
    elif every == 1:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    elif getattr(getattr(model, "config", None), "use_cache", False):
        raise ValueError(
            f"activation_checkpointing={every}: this transformers checkpoints all blocks of a model "
            "that caches keys and values, or none; set use_cache=False in the model's config, or "
            "take the values above 1 out of the search space"
        )
    else:
        return False
    return True


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def channels_last(knobs: Knobs, model: nn.Module) -> None:
    """Store convolution weights with the channel innermost (channels_last); feeding converts batches."""
    if knobs["channels_last"]:
        model._apply(_with_channels_last)  # to() refuses the weights of three dimensions of space


def has_image_convolutions(model: nn.Module) -> bool:
    """Return whether a model has something for channels_last to act on."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    of_images = tensor.dim() == OF_IMAGES
    return tensor.contiguous(memory_format=torch.channels_last) if of_images else tensor


def lay_out_state(optimizer: torch.optim.Optimizer) -> None:
    """Give the state of an optimizer the memory format that its parameters have by now.

    State from a checkpoint may have another, and fused kernels take both for the same.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            alike = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if alike and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def optimizer_kernels(knobs: Knobs, optimizer: torch.optim.Optimizer) -> None:
    """Choose foreach or fused kernels of an optimizer before the first step (optimizer_kernels).

    Raises:
        ValueError: the optimizer has no such implementation, of all its groups; it is as it was.
    """
    wanted = knobs["optimizer_kernels"]
    if wanted == "default":
        return
    if not all(wanted in group for group in optimizer.param_groups):
        raise ValueError(
            f"optimizer_kernels={wanted}: {type(optimizer).__name__} has no {wanted} "
            "implementation; take the value out of the search space"
        )
    chosen = {name: name == wanted for name in ("foreach", "fused")}
    for group in optimizer.param_groups:
        group.update(chosen)
    optimizer.defaults.update(chosen)  # of groups that are added later
    if wanted == "fused":
        if _step(type(optimizer)) in _UNSCALING:
            # As the constructor does. With it a scaler does not divide the gradients.
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        _count_on_device(optimizer)


def has_lost_kernels(knobs: Knobs, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has a group without the implementation, which all could have.

    A state that is loaded brings the settings of its groups.
    """
    wanted, groups = knobs["optimizer_kernels"], optimizer.param_groups
    return all(wanted in group for group in groups) and not all(group[wanted] for group in groups)


def _step(kind: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return the update of a class of optimizers, without what torch has put around it."""
    update: Callable[..., Any] = inspect.unwrap(kind.step)
    return update


_UNSCALING = frozenset(
    map(_step, (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad))
)
"""Updates whose fused kernel divides by the loss scale itself.

One that calls the update of an optimizer inside does not pass the scale on.
"""


def _count_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Move the counts of steps to the devices of their parameters, where fused kernels want them.

    A state that the script has loaded, or made in the constructor, has them on the CPU.
    """
    for parameter, state in optimizer.state.items():
        count = state.get("step")
        if isinstance(count, torch.Tensor) and count.device != parameter.device:
            state["step"] = count.to(parameter.device, torch.float32)


class BareModel:
    """Forward passes and memory formats of a model before any knob has acted on them."""

    def __init__(self, model: nn.Module) -> None:
        """Record a model that is not wrapped, nor compiled."""
        self.model = model
        self._forwards = {module: vars(module).get("forward") for module in model.modules()}
        self._strides = {name: tensor.stride() for name, tensor in _tensors(model).items()}
        self._recomputes = _recomputes(model)

    def restored(self) -> nn.Module:
        """Return the model as it was. Its weights are what training has made of them."""
        if _recomputes(self.model) and not self._recomputes:
            _stop_recomputing(self.model)
        for module, forward in self._forwards.items():
            if forward is not None:
                module.forward = forward
            elif "forward" in vars(module):
                del module.forward
        for name, tensor in _tensors(self.model).items():
            if tensor.stride() != self._strides[name]:
                tensor.data = torch.empty_strided(
                    tensor.shape, self._strides[name], dtype=tensor.dtype, device=tensor.device
                ).copy_(tensor.data)
        return self.model


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(itertools.chain(model.named_parameters(), model.named_buffers()))


def _recomputes(model: nn.Module) -> bool:
    """Return whether a model of transformers checkpoints its blocks by itself."""
    return bool(getattr(model, "is_gradient_checkpointing", False))


def _stop_recomputing(model: nn.Module) -> None:
    stop = getattr(model, "activation_checkpointing_disable", None)  # since 5.23
    (stop or model.gradient_checkpointing_disable)()  # type: ignore[operator]


def converted_to_float8(knobs: Knobs, model: nn.Module) -> nn.Module:
    """Replace the model's linear layers by torchao's, which share their weights (float8).

    Raises:
        ValueError: torchao is missing, or the model has no layer that it could replace.
    """
    if knobs["float8"] == "none":
        return model
    float8 = _torchao()
    if not any(map(takes_float8, model.modules())):
        raise ValueError(
            f"float8={knobs['float8']}: the model has no nn.Linear whose dimensions are multiples of "
            f"{_MULTIPLE}; take the knob out of the search space"
        )
    config = dataclasses.replace(
        float8.Float8LinearConfig.from_recipe_name(knobs["float8"]),
        # The product for the weights' gradients sums over the rows of a batch, of any number.
        pad_inner_dim=True,
        enable_fsdp_float8_all_gather=_gathers_float8(knobs),
    )
    found: nn.Module = float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, _: takes_float8(module)
    )
    return found


def scale_after_updates(knobs: Knobs, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Compute all weights' scales by one exchange after every update (float8: tensorwise).

    Under FSDP2 there would be one exchange per weight when it is gathered.
    """
    if _gathers_float8(knobs):
        float8 = _torchao()
        optimizer.register_step_post_hook(
            lambda *_: float8.precompute_float8_dynamic_scale_for_fsdp(model)
        )


def _gathers_float8(knobs: Knobs) -> bool:
    """Return whether FSDP2 gathers weights in FP8; it cannot gather weights scaled by rows."""
    return knobs["float8"] == "tensorwise" and knobs["parallelism"] in SHARDING


def takes_float8(module: nn.Module) -> bool:
    """Return whether float8 would replace the module."""
    return (
        isinstance(module, nn.Linear)
        and not module.in_features % _MULTIPLE
        and not module.out_features % _MULTIPLE
    )


def has_float8_layers(root: nn.Module) -> bool:
    """Return whether float8 would replace layers below a module: itself it cannot, in place."""
    return not takes_float8(root) and any(map(takes_float8, root.modules()))


def _torchao() -> ModuleType:
    try:
        import torchao.float8
    except ImportError as error:
        raise ValueError(
            f"float8 needs torchao, which could not be imported ({error}): {pip_install('float8')}, or "
            "take the knob out of the search space"
        ) from error
    found: ModuleType = torchao.float8
    return found
