"""Linear layers in FP8, by torchao, which rounds on a CPU as on a device."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.worker.effects import kernels
from tests.support.one_rank import group, knobs, regression, settings_of_torch, training

__all__ = ["group", "settings_of_torch"]  # fixtures


@pytest.fixture(autouse=True)
def torchao() -> Any:
    """Imported by who runs these tests, and not by who only collects them."""
    return pytest.importorskip("torchao.float8.float8_linear")


def layers(*widths):
    return nn.Sequential(*itertools.starmap(nn.Linear, itertools.pairwise(widths)))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_linear_layers_of_fitting_dimensions_compute_in_fp8(recipe, torchao):
    model = layers(16, 32, 10, 48, 16)
    weights = [layer.weight.data_ptr() for layer in model]
    found = kernels.converted_to_float8(knobs(float8=recipe, precision="bf16"), model)
    replaced = [isinstance(layer, torchao.Float8Linear) for layer in found]
    assert replaced == [True, False, False, True]
    assert [layer.weight.data_ptr() for layer in found] == weights
    granularity = found[0].config.cast_config_input.scaling_granularity.value
    assert granularity == {"tensorwise": "tensorwise", "rowwise": "axiswise"}[recipe]
    assert kernels.converted_to_float8(knobs(), model) is model


def test_a_training_in_fp8_is_close_to_one_in_bf16():
    updates = []
    for recipe in ("none", "tensorwise", "rowwise"):
        torch.manual_seed(0)
        model = nn.Linear(32, 32)
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        loop = training(
            regression(model, width=32), float8=recipe, precision="bf16", micro_batch=16
        )
        loop.step()
        updates.append(nn.utils.parameters_to_vector(loop.model.parameters()) - before)
    exact, *rounded = updates
    for found in rounded:
        error = (found - exact).norm() / exact.norm()
        assert 1e-3 < error < 0.2


class Products(TorchDispatchMode):
    """The dimensions over which products in FP8 sum."""

    def __init__(self):
        super().__init__()
        self.summed = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not {*types} <= {torch.Tensor, nn.Parameter}:
            return NotImplemented  # of torchao's tensors, which multiplies what they hold
        if function is torch.ops.aten._scaled_mm.default:
            self.summed.append(args[0].shape[1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_batches_of_any_number_of_rows_are_padded_to_what_products_take(recipe):
    model = kernels.converted_to_float8(knobs(float8=recipe, precision="bf16"), layers(32, 32))
    with Products() as products, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(10, 32, requires_grad=True)).sum().backward()
    assert products.summed == [32, 32, 16]


@pytest.mark.parametrize(
    ("recipe", "parallelism", "gathered"),
    [("tensorwise", "fsdp", True), ("rowwise", "fsdp", False), ("tensorwise", "ddp", False)],
)
def test_scaled_by_the_tensor_weights_are_gathered_in_fp8(recipe, parallelism, gathered):
    chosen = knobs(float8=recipe, precision="bf16", parallelism=parallelism)
    model = kernels.converted_to_float8(chosen, layers(16, 16))
    assert model[0].config.enable_fsdp_float8_all_gather is gathered
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kernels.scale_after_updates(chosen, optimizer, model)
    assert bool(optimizer._optimizer_step_post_hooks) is gathered


def test_a_model_that_no_fp8_product_fits_is_refused():
    with pytest.raises(ValueError, match=r"no nn\.Linear whose dimensions are multiples of 16"):
        kernels.converted_to_float8(knobs(float8="rowwise"), layers(10, 16, 10))
