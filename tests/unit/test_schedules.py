"""What changes in the course of a training: dropped layers, growing samples, and the loss in slices."""

import statistics

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import autotune
from autotune.worker.effects.schedules import moment
from autotune.workloads import gpt
from tests.support.one_rank import LAYERS, WIDTH, group, regression, settings_of_torch, training

__all__ = ["group", "settings_of_torch"]  # fixtures


@pytest.mark.parametrize("steps", [8, 64, 256])
def test_any_steps_in_a_row_stand_for_the_whole_training(steps):
    for first in (0, 3, 100):
        moments = sorted(moment(step) for step in range(first, first + steps))
        gaps = [b - a for a, b in zip([0, *moments], [*moments, 1], strict=True)]
        assert max(gaps) < 4 / steps
        assert statistics.mean(moments) == pytest.approx(0.5, abs=1.5 / steps)


# layer_keep


class Counted(nn.Linear):
    """A layer that counts how often it has computed."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.passes = 0

    def forward(self, hidden):
        self.passes += 1
        return super().forward(hidden)


def passes_of(keep, steps=200, **changes):
    model = nn.Sequential(*(Counted() for _ in range(LAYERS)))
    loop = training(regression(model), layer_keep=keep, **changes)
    for _ in range(steps):
        loop.step()
    return [layer.passes / steps for layer in model]


def test_deeper_layers_are_dropped_more_often():
    assert passes_of(1, steps=3) == [1] * LAYERS
    kept = passes_of(0.5)
    expected = [1 - (number + 1) / LAYERS * 0.5 for number in range(LAYERS)]
    assert kept == pytest.approx(expected, abs=0.06)


def test_a_dropped_layer_gets_no_gradient_and_passes_its_input_on():
    blocks = nn.Sequential(Counted(), Counted())
    loop = training(regression(nn.Sequential(nn.Linear(WIDTH, WIDTH), blocks)), layer_keep=0.05)
    seen = []
    loop.updates.optimizers[0].register_step_pre_hook(
        lambda *_: seen.append(
            ([layer.passes for layer in blocks], [p.grad for p in blocks[1].parameters()])
        )
    )
    for _ in range(20):
        loop.step()
    before = [0, 0]
    dropped = 0
    for passes, gradients in seen:
        if passes[1] == before[1]:
            dropped += 1
            assert all(g is None for g in gradients)
        before = passes
    assert dropped > 10


def test_micro_batches_of_one_step_drop_the_same_layers():
    kept = passes_of(0.5, steps=40, accumulation_steps=3)
    assert all(share * 40 % 3 == pytest.approx(0) for share in kept)


def test_a_block_that_changes_the_shape_cannot_be_dropped():
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH))
    loop = training(regression(model), layer_keep=0.5)
    with pytest.raises(ValueError, match="layer_keep: a block that can be left out"):
        loop.step()


def test_a_model_without_blocks_has_none_to_drop():
    with pytest.raises(ValueError, match="layer_keep: the model has no"):
        training(regression(nn.Linear(WIDTH, WIDTH)), layer_keep=0.5)


# curriculum_start, curriculum_share


def tiny_gpt():
    return gpt.build(layers=2, d_model=16, heads=2, length=64)


def lengths(steps=128, **changes):
    built, seen = tiny_gpt(), []
    loop = training(built, **changes)
    built.model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    loop.begin_block()
    for _ in range(steps):
        loop.step()
    return seen, loop.samples_of_block() / (2 * steps)


def test_samples_keep_their_length_by_default():
    seen, counted = lengths(steps=3)
    assert seen == [64, 64, 64]
    assert counted == 1


def test_samples_grow_over_the_share_of_the_training():
    seen, counted = lengths(curriculum_start=0.25, curriculum_share=0.5)
    assert min(seen) == 16
    assert set(seen) <= set(range(16, 65, 8))
    assert seen.count(64) == pytest.approx(64, abs=12)  # half of the training and a little more
    # A quarter to one in half of the time, one in the other; each counts by its tokens.
    assert counted == pytest.approx(0.5 * 0.625 + 0.5, abs=0.02)
    assert counted == pytest.approx(statistics.mean(seen) / 64)


def test_a_workload_that_cannot_shorten_is_told_so():
    with pytest.raises(ValueError, match="curriculum_start: the workload has no `shorten`"):
        training(regression(), curriculum_start=0.5)


# loss_chunks


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made inside."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for found in out if isinstance(out, tuple | list) else [out]:
            if isinstance(found, torch.Tensor):
                self.elements = max(self.elements, found.numel())
        return out


def losses_and_largest(chunks):
    torch.manual_seed(0)
    built = gpt.build(layers=1, d_model=8, heads=1, length=64)
    loop = training(built, loss_chunks=chunks, micro_batch=8)
    loop.step()
    with Largest() as largest:
        loop.step()
    return float(loop.loss), largest.elements


def test_no_tensor_holds_all_logits():
    loss, whole = losses_and_largest(1)
    same, sliced = losses_and_largest(8)
    assert whole == 8 * 64 * 256
    assert sliced <= whole / 4
    assert same == pytest.approx(loss, rel=1e-4)


def test_a_model_without_chunks_is_told_so():
    with pytest.raises(ValueError, match="loss_chunks is above 1, but no module"):
        training(regression(), loss_chunks=2)


# gradient_compression: one_bit, powersgd


def adam(model, kind=torch.optim.AdamW, **settings):
    plain = regression(model)
    return autotune.Workload(
        plain.model, plain.dataset, plain.loss, lambda p: kind(p, lr=1e-3, **settings)
    )


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_one_bit_is_plain_adam_while_it_warms_up(kind):
    weights = []
    for compression in ("none", "one_bit"):
        torch.manual_seed(0)
        loop = training(adam(None, kind, weight_decay=0.1), gradient_compression=compression)
        for _ in range(3):
            loop.step()
        weights.append(nn.utils.parameters_to_vector(loop.model.parameters()))
    assert torch.equal(*weights)


def test_one_bit_sends_signs_and_keeps_what_they_lose():
    torch.manual_seed(0)
    loop = training(adam(None), gradient_compression="one_bit")
    for _ in range(3):
        loop.step()
    weight = next(iter(loop.model.parameters()))
    state = loop.updates.optimizers[0].state[weight]
    variance, before = state["exp_avg_sq"].clone(), state["exp_avg"].clone()
    gradients = []
    loop.updates.optimizers[0].register_step_pre_hook(
        lambda *_: gradients.append(weight.grad.clone())
    )
    loop.step()
    sent, own = state["exp_avg"].clone(), before.lerp(gradients[0], 0.1)
    assert torch.equal(state["exp_avg_sq"], variance)
    assert sent.abs().unique().numel() == 1
    assert torch.equal(sent > 0, own > 0)
    assert torch.allclose(sent.abs().max(), own.abs().mean())
    loop.step()
    carried = sent.lerp(gradients[1], 0.1) + (own - sent)
    assert torch.equal(state["exp_avg"] > 0, carried > 0)


def test_one_bit_learns():
    model = nn.Linear(4, 4)
    data = [(torch.eye(4)[i % 4], 2 * torch.eye(4)[i % 4]) for i in range(64)]
    loop = training(
        autotune.Workload(
            model,
            data,
            lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
            lambda parameters: torch.optim.Adam(parameters, lr=0.02),
        ),
        gradient_compression="one_bit",
        micro_batch=8,
    )
    loop.step()
    first = float(loop.loss)
    for _ in range(300):
        loop.step()
    assert float(loop.loss) < 0.02 * first


def test_one_bit_takes_plain_adam_only():
    for build in (
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adam(p, amsgrad=True),
    ):
        plain = regression()
        workload = autotune.Workload(plain.model, plain.dataset, plain.loss, build)
        with pytest.raises(
            ValueError, match="gradient_compression=one_bit: it is made for plain Adam"
        ):
            training(workload, gradient_compression="one_bit")


@pytest.mark.parametrize("rank", [1, 4])
def test_powersgd_leaves_gradients_of_low_rank(rank):
    # Below a MiB, which is one bucket: on gloo PyTorch's hook has two buckets wait for each other.
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    loop = training(
        regression(model), gradient_compression="powersgd", powersgd_rank=rank, micro_batch=16
    )
    gradients = []
    weight = loop.model.module[0].weight
    loop.updates.optimizers[0].register_step_pre_hook(
        lambda *_: gradients.append(weight.grad.clone())
    )
    for _ in range(5):
        loop.step()
    ranks = [int(torch.linalg.matrix_rank(g, rtol=1e-3)) for g in gradients]
    assert ranks[-1] <= rank
    assert ranks[0] > rank  # plain all-reduce while it warms up


def test_the_longest_samples_are_whole_even_if_that_is_no_multiple():
    built = gpt.build(layers=1, d_model=8, heads=1, length=20)
    loop, seen = training(built, curriculum_start=0.5, curriculum_share=0.5), []
    built.model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    for _ in range(32):
        loop.step()
    assert max(seen) == 20
    assert min(seen) == 8


def test_one_bit_leaves_alone_what_had_no_gradient_while_it_warmed_up():
    model = nn.Linear(4, 4, bias=False)
    first = torch.eye(4)[0]
    loop = training(
        autotune.Workload(
            model,
            [(torch.ones(4), torch.ones(4))] * 64,
            lambda model, batch: (model(batch[0] * first) - batch[1]).square().mean(),
            lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        ),
        gradient_compression="one_bit",
    )
    before = model.weight.detach().clone()
    for _ in range(20):
        loop.step()
    assert torch.equal(model.weight[:, 1:], before[:, 1:])
    assert not torch.equal(model.weight[:, 0], before[:, 0])
    assert model.weight.abs().max() < 10
