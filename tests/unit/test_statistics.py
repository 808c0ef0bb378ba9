"""Layers and losses that compute over the rows of a micro-batch together."""

import pytest
import torch
from torch import nn

from autotune.worker.observers.statistics import BATCH_NORM, batch_norms, compares_rows


def test_batch_normalisation_is_seen_while_it_trains() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert batch_norms(model.modules()) == BATCH_NORM
    assert batch_norms(nn.SyncBatchNorm.convert_sync_batchnorm(model).modules()) == BATCH_NORM
    model[1].eval()
    assert batch_norms(model.modules()) == ""
    assert batch_norms(nn.Sequential(nn.LayerNorm(2), nn.InstanceNorm1d(2)).modules()) == ""


@pytest.mark.parametrize(
    ("classes", "target", "compares"),
    [
        (4, [0, 1, 2, 3], True),
        (8, [4, 5, 6, 7], True),
        (4, [0, 1, 2, 2], False),
        (10, [0, 1, 2, 3], False),
    ],
    ids=["its own batch", "the batch of all ranks", "labels", "classes"],
)
def test_a_contrastive_loss_is_known_by_its_targets(
    classes: int, target: list[int], compares: bool
) -> None:
    assert compares_rows(torch.zeros(4, classes), torch.tensor(target)) == compares
