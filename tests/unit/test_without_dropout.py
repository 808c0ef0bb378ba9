"""Models without dropout in the steps whose gradients are compared, and as they were after them."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autotune.worker.rank.quiet import without_dropout, without_dropout_anywhere


class Block(nn.Module):
    """Layer with rates of its own, as transformers' are; it recomputes in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.last = nn.Dropout(0.5)
        self.dropout = self.attention_dropout = 0.5
        self.recomputed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.recomputed = self.training
        if self.training:
            x = checkpoint(self.inner, x, use_reentrant=False)
        x = functional.dropout(x, self.dropout, self.training)
        return self.last(functional.dropout(x, self.attention_dropout))


def _named(model: nn.Module) -> AbstractContextManager[None]:
    return without_dropout(model)


def _anywhere(_: nn.Module) -> AbstractContextManager[None]:
    return without_dropout_anywhere()


@pytest.mark.parametrize("without", [_named, _anywhere])
def test_a_layer_without_dropout_draws_nothing_and_goes_on_training(
    without: Callable[[nn.Module], AbstractContextManager[None]],
) -> None:
    block = Block()
    before = torch.get_rng_state()
    with without(block):
        for _ in range(2):
            block(torch.ones(2, 4))
            assert block.recomputed
            assert (block.dropout, block.last.training) == (0.0, False)
    assert torch.equal(torch.get_rng_state(), before)
    assert (block.dropout, block.attention_dropout, block.last.training) == (0.5, 0.5, True)


def test_a_recurrent_layer_without_dropout_goes_on_training() -> None:
    """cuDNN refuses the backward pass of one that does not."""
    layer = nn.LSTM(4, 4, num_layers=2, dropout=0.1)
    with without_dropout(layer):
        assert (layer.training, layer.dropout) == (True, 0.0)
    assert layer.dropout == 0.1


def test_numbers_that_are_no_rate_stay() -> None:
    block = Block()
    block.dropout_keep_prob = 0.9
    with without_dropout(block):
        assert (block.dropout_keep_prob, block.training) == (0.9, False)
    assert block.training


def test_a_layer_that_does_not_train_stays_as_it_is() -> None:
    block = Block().eval()
    with without_dropout(block):
        assert block.dropout == 0.5
    assert not block.last.training
