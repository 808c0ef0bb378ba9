"""Which models draw random numbers when they are run."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autotune.worker.rank.model_draws import ModelDraws


class Noisy(nn.Module):
    """Layer that adds noise, as a variational autoencoder does."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5).eval(), nn.Linear(4, 2))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), Noisy(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("build", "seen"), [(plain, False), (noisy, True)], ids=["without noise", "with noise"]
)
def test_noise_within_a_model_is_seen(build: Callable[[], nn.Module], seen: bool) -> None:
    model, draws = build(), ModelDraws()
    with draws.watched():
        model(torch.ones(3, 4)).sum().backward()
    assert bool(draws.left) == seen


def test_noise_beside_a_model_or_after_the_watch_is_not_seen() -> None:
    model, draws = plain(), ModelDraws()
    with draws.watched():
        model(torch.randn(3, 4))
        torch.randn(3)
        model(torch.ones(3, 4))
    noisy()(torch.ones(3, 4))
    assert not draws.left


def test_models_that_draw_alike_leave_the_generator_alike() -> None:
    left = []
    for size in (4, 4, 5):
        torch.manual_seed(0)
        draws = ModelDraws()
        with draws.watched():
            Noisy()(torch.ones(16, size))
        left.append(draws.left)
    assert left[0] == left[1] != left[2]


def test_a_forward_pass_that_fails_does_not_hide_what_is_beside_the_model() -> None:
    model, draws = plain(), ModelDraws()
    with draws.watched():
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 5))
        torch.randn(3)
        model(torch.ones(3, 4))
    assert not draws.left
