"""A model whose knobs are undone and others applied, against one that is built for them."""

import copy
import dataclasses
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import autotune
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from tests.support.one_rank import CPU, group, regression, settings_of_torch
from tests.support.trials import knobs, of_one_rank

__all__ = ["group", "settings_of_torch"]  # fixtures

SIDE = 4


class Block(nn.Module):
    """A convolution and its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.relu(self.mix(hidden))


class Blocks(nn.Module):
    """Two equal blocks on images of four channels, which come as vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, flat: torch.Tensor) -> torch.Tensor:
        hidden = flat.view(-1, 4, SIDE, SIDE)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.reshape(flat.shape)


def workload(model: nn.Module) -> autotune.Workload:
    return dataclasses.replace(
        regression(model, width=4 * SIDE * SIDE),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )


def loop_of(model: nn.Module, **changes: Any) -> TrainingLoop:
    request = of_one_rank(knobs(**changes))
    return TrainingLoop(workload(model), request, RankContext(0, 0, 1, (CPU,)), lambda: None)


def taken_over(loop: TrainingLoop, **changes: Any) -> TrainingLoop:
    loop.close()
    return loop.reconfigured(of_one_rank(knobs(**changes)), RankContext(0, 0, 1, (CPU,)))


def losses(loop: TrainingLoop, steps: int = 3) -> list[float]:
    found = []
    for _ in range(steps):
        loop.step()
        found.append(float(loop.loss))
    return found


def fresh(loop: TrainingLoop, **changes: Any) -> TrainingLoop:
    """A loop that is built for the changes, with the weights and the momentum of another."""
    built = loop_of(Blocks(), **changes)
    bare = built.workload.model
    bare.load_state_dict(copy.deepcopy(loop.workload.model.state_dict()))
    [own], [its] = built.updates.optimizers, loop.updates.optimizers
    own.load_state_dict(copy.deepcopy(its.state_dict()))
    return built


CHEAP = [
    {"parallelism": parallelism, **changes}
    for parallelism in ("ddp", "none")
    for changes in (
        {"activation_checkpointing": 1},
        {"activation_checkpointing": 2, "micro_batch": 4},
        {"channels_last": True},
    )
    if parallelism == "none" or "channels_last" not in changes
]


@pytest.fixture
def compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("changes", CHEAP, ids=str)
def test_losses_after_a_change_and_back_equal_those_of_models_built_for_each(
    changes: dict[str, Any],
) -> None:
    parallelism = changes["parallelism"]
    loop = loop_of(Blocks(), parallelism=parallelism)
    losses(loop)
    for values in (changes, {"parallelism": parallelism}):
        loop, expected = taken_over(loop, **values), fresh(loop, **values)
        assert losses(loop) == losses(expected)


def test_checkpointed_model_forgets_nothing_of_it_once_undone() -> None:
    loop = loop_of(Blocks(), activation_checkpointing=1)
    assert all("forward" in vars(block) for block in loop.workload.model.blocks)
    taken_over(loop)
    assert not any("forward" in vars(block) for block in loop.workload.model.blocks)


def test_weights_and_momentum_lie_as_channels_last_says_and_as_before() -> None:
    loop = loop_of(Blocks(), parallelism="none")
    losses(loop)

    def formats(loop: TrainingLoop) -> set[bool]:
        [optimizer] = loop.updates.optimizers
        weights = [block.mix.weight for block in loop.workload.model.blocks]
        momenta = [optimizer.state[weight]["momentum_buffer"] for weight in weights]
        return {t.is_contiguous() for t in (*weights, *momenta)}

    assert formats(loop) == {True}
    loop = taken_over(loop, parallelism="none", channels_last=True)
    assert formats(loop) == {False}
    assert formats(taken_over(loop, parallelism="none")) == {True}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("scope", ["model", "blocks"])
@pytest.mark.parametrize("parallelism", ["ddp", "none"])
def test_compiled_model_is_compiled_once_for_each_graph_and_with_static_shapes(
    monkeypatch: pytest.MonkeyPatch, scope: str, parallelism: str
) -> None:
    from torch._dynamo.utils import counters  # two seconds of every worker of the suite

    dynamic: list[bool] = []

    def backend(graph: Any, inputs: Any, **_: Any) -> Any:
        dynamic.append(any(isinstance(value, torch.SymInt) for value in inputs))
        return graph.forward

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: plain(model, backend=backend))
    compiled = {"parallelism": parallelism, "compile": "default", "compile_scope": scope}
    loop = loop_of(Blocks(), parallelism=parallelism)
    losses(loop)
    graphs: list[int] = []
    for values in (
        compiled,
        {**compiled, "log_interval": 2},
        {**compiled, "micro_batch": 4},
        {"parallelism": parallelism},
    ):
        seen = counters["stats"]["unique_graphs"]
        loop, expected = taken_over(loop, **values), fresh(loop, parallelism=parallelism)
        mine = losses(loop)
        graphs.append(counters["stats"]["unique_graphs"] - seen)
        expected = taken_over(
            expected, parallelism=parallelism, micro_batch=values.get("micro_batch", 2)
        )
        assert mine == pytest.approx(losses(expected), rel=1e-5)
    assert graphs[0] == graphs[2] > 0
    assert graphs[1] == graphs[3] == 0
    assert not any(dynamic)


@pytest.mark.usefixtures("compiler")
def test_compiled_model_is_freed_once_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: plain(model, backend="eager"))
    loop = loop_of(Blocks(), parallelism="none", compile="default")
    losses(loop)
    wrapper = weakref.ref(loop.model)
    loop = taken_over(loop, parallelism="none")
    gc.collect()
    assert wrapper() is None
