"""Matrix products in FP8 by torchao, an optional extra, imported by ranks that use it."""

import dataclasses
from types import ModuleType

import torch
from torch import nn

from autotune.worker.effects.parallel import SHARDING
from autotune.worker.protocol import Knobs

_MULTIPLE = 16
"""Divisor of the dimensions of a matrix that FP8 products take."""


def converted(knobs: Knobs, model: nn.Module) -> nn.Module:
    """Replace the model's linear layers by torchao's, which share their weights (float8).

    Raises:
        ValueError: torchao is missing, or the model has no layer that it could replace.
    """
    if knobs["float8"] == "none":
        return model
    float8 = _library()
    if not any(map(takes_float8, model.modules())):
        raise ValueError(
            f"float8={knobs['float8']}: the model has no nn.Linear whose dimensions are multiples of "
            f"{_MULTIPLE}; take the knob out of the search space"
        )
    config = float8.Float8LinearConfig.from_recipe_name(knobs["float8"])
    if _gathered(knobs):
        config = dataclasses.replace(config, enable_fsdp_float8_all_gather=True)
    found: nn.Module = float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, _: takes_float8(module)
    )
    return found


def scale_after_updates(knobs: Knobs, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Compute all weights' scales by one exchange after every update (float8: tensorwise).

    Under FSDP2 there would be one exchange per weight when it is gathered.
    """
    if _gathered(knobs):
        float8 = _library()
        optimizer.register_step_post_hook(
            lambda *_: float8.precompute_float8_dynamic_scale_for_fsdp(model)
        )


def _gathered(knobs: Knobs) -> bool:
    """Return whether FSDP2 gathers weights in FP8; it cannot gather weights scaled by rows."""
    return knobs["float8"] == "tensorwise" and knobs["parallelism"] in SHARDING


def takes_float8(module: nn.Module) -> bool:
    """Return whether float8 would replace the module."""
    return (
        isinstance(module, nn.Linear)
        and not module.in_features % _MULTIPLE
        and not module.out_features % _MULTIPLE
    )


def _library() -> ModuleType:
    try:
        import torchao.float8
    except ImportError as error:
        raise ValueError(
            f"float8 needs torchao, which could not be imported ({error}): "
            "pip install 'torch-autotune[float8]', or take the knob out of the search space"
        ) from error
    found: ModuleType = torchao.float8
    return found
