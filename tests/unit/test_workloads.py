"""The two reference workloads, their text, and the factory contract."""

import dataclasses
import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import autotune
from autotune.worker import workload
from autotune.worker.effects.feeding import loader
from autotune.workloads import BUILT_IN, gpt, text, transformer
from autotune.workloads.attention import Attention
from autotune.workloads.loss import linear_cross_entropy

TINY = {
    "gpt": {"layers": 1, "d_model": 32, "heads": 2, "length": 16},
    "transformer": {
        "layers": 1,
        "d_model": 32,
        "d_ff": 64,
        "heads": 2,
        "vocabulary": 50,
        "length": 8,
        "dropout": 0.0,
    },
    "mlp": {"layers": 2, "width": 16},
    "images": {"size": 16, "width": 4},
    "convnet": {"size": 8, "width": 4, "blocks": 1},
    "huggingface": {
        "config": {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16},
        "length": 16,
    },
}
LANGUAGE = ("gpt", "transformer")
CLASSES = {
    "gpt": 256,
    "transformer": 50,
    "mlp": 10,
    "images": 10,
    "convnet": 10,
    "huggingface": 256,
}
MODULES = {"gpt": gpt, "transformer": transformer}
THOROUGH = settings(max_examples=100)


def tiny(name: str) -> autotune.Workload:
    torch.manual_seed(0)
    return workload.build(BUILT_IN[name], TINY[name])


def first_batch(built: autotune.Workload, size: int) -> Any:
    return next(iter(DataLoader(built.dataset, batch_size=size, collate_fn=built.collate)))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Both


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_workload_is_complete(name):
    built = tiny(name)
    assert isinstance(built, autotune.Workload)
    assert len(built.dataset) > 1000
    assert {parameter.device.type for parameter in built.model.parameters()} == {"cpu"}
    loss = built.loss(built.model, first_batch(built, 3))
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    loss.backward()
    unused = [n for n, p in built.model.named_parameters() if p.grad is None]
    assert unused == [], "DistributedDataParallel refuses parameters without a gradient"


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_first_loss_is_that_of_guessing(name):
    built = tiny(name)
    loss = built.loss(built.model, first_batch(built, 8)).item()
    assert loss == pytest.approx(math.log(CLASSES[name]), rel=0.25)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_loss_falls_over_twenty_steps(name):
    built = tiny(name)
    optimizer = built.optimizer(built.model.parameters())
    for group in optimizer.param_groups:
        group["lr"] *= 10  # a model so small bears it, and twenty steps suffice
    batch = first_batch(built, 16)
    losses = []
    for _ in range(20):
        loss = built.loss(built.model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_same_seed_builds_the_same_model_and_the_same_data(name):
    one, other = tiny(name), tiny(name)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    sample, same = one.dataset[17], other.dataset[17]
    if name == "images":  # flipped at random, on purpose
        sample, same = (s[0].sum(dim=-1) for s in (sample, same))
        assert torch.allclose(sample, same, atol=1e-4)
        return
    assert all(map(torch.equal, sample, same))


@pytest.mark.parametrize("name", LANGUAGE)
def test_every_attention_module_offers_qkv_streams_and_has_it_off(name):
    found = [m for m in tiny(name).model.modules() if isinstance(m, Attention)]
    assert len(found) == {"gpt": 1, "transformer": 3}[name]
    assert all(module.qkv_streams is False for module in found)


@pytest.mark.parametrize("name", LANGUAGE)
def test_heads_that_do_not_divide_the_width_are_refused(name):
    with pytest.raises(ValueError, match="d_model 32 is not a multiple of heads 5"):
        workload.build(BUILT_IN[name], {**TINY[name], "heads": 5})


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_unknown_argument_is_refused(name):
    with pytest.raises(TypeError, match="colour"):
        workload.build(BUILT_IN[name], {"colour": "red"})


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_shortest_length_trains(name):
    built = workload.build(BUILT_IN[name], {**TINY[name], "length": 1})
    assert len(built.dataset) > 1000
    assert math.isfinite(built.loss(built.model, first_batch(built, 2)).item())


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mlp", {"layers": 0}),
        ("mlp", {"width": 9}),
        ("images", {"size": 7}),
        ("gpt", {"length": 0}),
        ("gpt", {"length": 4_000_000, "d_model": 2, "heads": 1}),
        ("gpt", {"heads": 0}),
        ("transformer", {"length": 0}),
        ("transformer", {"length": 10_000_000}),
        ("transformer", {"vocabulary": 2}),
        ("transformer", {"d_model": 33, "heads": 3}),
        ("transformer", {"dropout": 1.5}),
    ],
)
def test_arguments_that_cannot_work_are_refused_as_such(name, wrong):
    with pytest.raises(ValueError):
        built = workload.build(BUILT_IN[name], {**TINY[name], **wrong})
        loader(built, {"micro_batch": 1}, rank=0, world_size=1, seed=0)


# GPT


def test_gpt_shapes():
    built = tiny("gpt")
    batch = first_batch(built, 3)
    assert batch.shape == (3, 17)
    assert batch.dtype == torch.int64
    assert built.model(batch[:, :-1]).shape == (3, 16, 256)
    assert built.tokens_per_sample == 16


def test_gpt_sees_no_future():
    model = tiny("gpt").model.eval()
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[0, :10], after[0, :10], atol=1e-6)
    assert not torch.allclose(before[0, 10:], after[0, 10:], atol=1e-3)


def test_gpt_predicts_each_next_byte():
    batch = torch.randint(256, (2, 17))
    seen = {}

    def model(tokens, targets):
        seen.update(tokens=tokens, targets=targets)
        return torch.zeros(())

    gpt.next_token_loss(model, batch)
    assert torch.equal(seen["tokens"], batch[:, :16])
    assert torch.equal(seen["targets"], batch[:, 1:])


@pytest.mark.parametrize("name", ["gpt", "transformer", "huggingface"])
def test_a_shortened_batch_has_that_many_tokens(name):
    if name == "huggingface":
        pytest.importorskip("transformers")
    built = workload.build(BUILT_IN[name], TINY[name])
    batch = torch.utils.data.default_collate([built.dataset[i] for i in range(3)])
    shorter = built.shorten(batch, 8)
    assert shorter.shape == (3, batch.shape[1] - built.tokens_per_sample + 8)
    assert built.loss(built.model, shorter).isfinite()


def test_gpt_shares_its_embedding_with_its_head():
    model = tiny("gpt").model
    assert model.head.weight is model.tokens.weight


def test_gpt_default_size():
    defaults = {n: p.default for n, p in inspect.signature(gpt.build).parameters.items()}
    assert defaults == {"layers": 4, "d_model": 256, "heads": 4, "length": 128}
    block = 12 * 256**2 + 13 * 256
    assert parameters(gpt.build().model) == 4 * block + (256 + 128) * 256 + 2 * 256


# The Transformer of the paper


def test_transformer_shapes():
    built = tiny("transformer")
    batch = first_batch(built, 3)
    assert batch.shape == (3, 16)
    source, target = batch.chunk(2, dim=1)
    assert built.model(source, target).shape == (3, 8, 50)
    assert built.tokens_per_sample == 16


def test_the_transformer_has_its_published_size_by_default():
    defaults = {n: p.default for n, p in inspect.signature(transformer.build).parameters.items()}
    assert defaults == {
        "layers": 6,
        "d_model": 512,
        "d_ff": 2048,
        "heads": 8,
        "vocabulary": 30_000,
        "length": 64,
        "dropout": 0.1,
    }
    with torch.device("meta"):
        model = transformer.Transformer(6, 512, 2048, 8, 30_000, 0.1)
    assert len(model.encoder) == len(model.decoder) == 6
    assert 55e6 < parameters(model) < 65e6
    attention, network = 4 * (512**2 + 512), 2 * 512 * 2048 + 2048 + 512
    encoder, decoder = attention + network + 2 * 1024, 2 * attention + network + 3 * 1024
    assert parameters(model) == 30_000 * 512 + 6 * (encoder + decoder)


def test_the_transformer_is_trained_as_published():
    optimizer = (built := tiny("transformer")).optimizer(built.model.parameters())
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["betas"] == (0.9, 0.98)
    assert optimizer.defaults["eps"] == 1e-9


def test_the_decoder_sees_no_future():
    model = tiny("transformer").model.eval()
    source, target = torch.randint(2, 50, (2, 1, 8)).unbind()
    changed = target.clone()
    changed[0, 5:] = 2 + (changed[0, 5:] - 1) % 48
    before, after = model(source, target), model(source, changed)
    assert torch.allclose(before[0, :5], after[0, :5], atol=1e-6)
    assert not torch.allclose(before[0, 5:], after[0, 5:], atol=1e-3)


def test_the_decoder_sees_the_whole_source_but_its_padding():
    model = tiny("transformer").model.eval()
    source, target = torch.randint(2, 50, (2, 1, 8)).unbind()
    changed = source.clone()
    changed[0, 7] = 2 + (changed[0, 7] - 1) % 48
    assert not torch.allclose(model(source, target), model(changed, target), atol=1e-4)
    padded, shorter = source.clone(), source[:, :6]
    padded[0, 6:] = 0
    assert torch.allclose(model(padded, target), model(shorter, target), atol=1e-5)


def test_the_target_is_shifted_by_one_and_starts_with_the_start_token():
    batch = torch.arange(2, 18)[None]
    seen = {}

    def model(source, shifted, labels):
        seen.update(source=source, shifted=shifted, labels=labels)
        return torch.zeros(())

    transformer.continuation_loss(model, batch)
    assert seen["source"].tolist() == [list(range(2, 10))]
    assert seen["shifted"].tolist() == [[1, *range(10, 17)]]
    assert seen["labels"].tolist() == [list(range(10, 18))]


def test_padding_in_the_target_costs_nothing():
    model = tiny("transformer").model.eval()
    source, target = torch.randint(2, 50, (2, 2, 8)).unbind()
    padded = target.clone()
    padded[:, 4:] = 0
    whole, front = model(source, target, padded), model(source, target[:, :4], target[:, :4])
    assert whole.item() == pytest.approx(front.item(), rel=1e-5)


# The loss


def gradients_of_loss(chunks, smoothing, computed):
    torch.manual_seed(0)
    hidden, weight = (
        torch.randn(3, 5, 8, requires_grad=True),
        torch.randn(50, 8, requires_grad=True),
    )
    targets = torch.randint(1, 50, (3, 5))
    targets[0, 2:] = 0
    loss = computed(hidden, weight, targets, chunks, smoothing)
    loss.backward()
    return loss.detach(), hidden.grad, weight.grad


def at_once(hidden, weight, targets, _, smoothing):
    logits = hidden @ weight.T
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=smoothing
    )


def in_chunks(hidden, weight, targets, chunks, smoothing):
    return linear_cross_entropy(
        hidden, weight, targets, chunks=chunks, label_smoothing=smoothing, ignore_index=0
    )


@pytest.mark.parametrize("chunks", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_in_slices_of_the_vocabulary_is_the_same(chunks, smoothing):
    found = gradients_of_loss(chunks, smoothing, in_chunks)
    wanted = gradients_of_loss(chunks, smoothing, at_once)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(("length", "width"), [(5, 4), (64, 512), (1, 2)])
def test_positions_are_encoded_as_in_the_paper(length, width):
    found = transformer.sinusoids(length, width, torch.device("cpu"))
    assert found.shape == (length, width)
    for place in (0, length - 1):
        for pair in range(width // 2):
            angle = place / 10_000 ** (2 * pair / width)
            assert found[place, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-3)
            assert found[place, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-3)


def test_dropout_acts_in_training_only():
    built = workload.build(BUILT_IN["transformer"], {**TINY["transformer"], "dropout": 0.5})
    source, target = torch.randint(2, 50, (2, 1, 8)).unbind()
    assert not torch.equal(built.model(source, target), built.model(source, target))
    built.model.eval()
    assert torch.equal(built.model(source, target), built.model(source, target))


# Attention


def test_attention_is_that_of_torch():
    ours = Attention(16, 4)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        projections = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in projections]))
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in projections]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    queries, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    assert torch.allclose(ours(queries, memory), theirs(queries, memory, memory)[0], atol=1e-5)


# Text


def test_text_is_real_and_the_same_every_time():
    taken = text.source_text(50_000)
    assert len(taken) == 50_000
    assert taken == text.source_text.__wrapped__(50_000)
    assert b"def " in taken and b"import " in taken


def test_more_text_begins_as_less_text_does():
    assert text.source_text(50_000)[:1000] == text.source_text(1000)


def test_there_is_enough_text_for_both():
    assert len(gpt.build(layers=1, d_model=2, heads=1).dataset) > 60_000
    assert len(transformer.build(layers=1, d_model=2, heads=1, vocabulary=9).dataset) > 10_000


def test_more_text_than_there_is_is_refused():
    with pytest.raises(ValueError, match="bytes"):
        text.source_text(10**12)


def test_byte_tokens_are_the_bytes():
    tokens = text.byte_tokens(1000)
    assert tokens.dtype == torch.int64
    assert bytes(tokens.tolist()) == text.source_text(1000)


@THOROUGH
@given(st.integers(3, 100_000))
def test_word_tokens_leave_out_padding_and_start(vocabulary):
    tokens = text.word_tokens(5000, vocabulary)
    assert len(tokens) == len(text.source_text(5000).split())
    assert tokens.dtype == torch.int64
    assert 2 <= tokens.min() <= tokens.max() < vocabulary


@THOROUGH
@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 200))
def test_windows_are_whole_and_cover_the_text(length, stride, spare):
    tokens = torch.arange(length + spare)
    windows = text.Windows(tokens, length, stride)
    for index in range(len(windows)):
        assert windows[index].tolist() == list(range(index * stride, index * stride + length))
    assert (len(windows) - 1) * stride + length <= len(tokens)
    assert len(windows) * stride + length > len(tokens)


# The factory contract


@pytest.mark.parametrize(
    ("factory", "error", "text"),
    [
        ("no_such_module_anywhere:build", ImportError, "no_such_module_anywhere"),
        ("autotune.workloads.gpt:missing", AttributeError, "missing"),
        ("autotune.workloads.gpt:_VOCABULARY", TypeError, "not callable"),
        ("collections:OrderedDict", TypeError, "returned OrderedDict; it must return"),
        ("autotune.workloads.gpt", (AttributeError, ValueError, TypeError), None),
    ],
)
def test_what_is_no_factory_is_refused(factory, error, text):
    with pytest.raises(error, match=text):
        workload.build(factory, {})


def test_arguments_reach_the_factory():
    built = workload.build("autotune.workloads.gpt:build", {**TINY["gpt"], "layers": 3})
    assert len(built.model.blocks) == 3


def wrapped_already():
    built = tiny("mlp")
    return dataclasses.replace(built, model=nn.DataParallel(built.model))


def test_a_model_that_is_wrapped_already_is_refused():
    with pytest.raises(TypeError, match="a model in DataParallel; return the bare module"):
        workload.build(f"{__name__}:wrapped_already", {})
