"""What a script changes in a dataset between epochs, and loader workers that stay see or not."""

import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autotune.worker.inject.epochs import Epochs, changed, state_of


class Crops(Dataset[Any]):
    def __init__(self) -> None:
        self.epoch = 0
        self.order = torch.arange(4)
        self.table = np.zeros(4)
        self.transform = [Scale()]
        self.shared = torch.zeros(1).share_memory_()
        self.counter = multiprocessing.Value("i", 0)
        self.cache: Any = None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index + self.epoch


class Scale:
    strength = 0.0

    def __init__(self) -> None:
        self.strength = 1.0


def _epoch(crops: Crops) -> None:
    crops.epoch = 1


def _order(crops: Crops) -> None:
    crops.order[0] = 3


def _table(crops: Crops) -> None:
    crops.table[1] = 1.0


def _transform(crops: Crops) -> None:
    crops.transform[0].strength = 0.5


def _shared(crops: Crops) -> None:
    crops.shared[0] = 1
    crops.counter.value = 1
    crops.cache = {"file": 1}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (_epoch, ("dataset.epoch",)),
        (_order, ("dataset.order",)),
        (_table, ("dataset.table",)),
        (_transform, ("dataset.transform.0.strength",)),
        (_shared, ()),
    ],
)
def test_a_change_that_workers_do_not_see_is_named(change: Any, names: tuple[str, ...]) -> None:
    crops = Crops()
    before = state_of({"dataset": crops})
    assert changed(before, state_of({"dataset": crops})) == ()
    change(crops)
    assert changed(before, state_of({"dataset": crops})) == names


class Unreadable:
    """Array of a file that is closed."""

    shape = (4,)

    def reshape(self, size: int) -> Any:
        raise OSError("the file is closed")

    def tobytes(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    "held",
    [
        memoryview(b"abc"),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
        Unreadable(),
    ],
    ids=["memoryview", "COO", "CSR", "nested", "unreadable"],
)
def test_an_object_that_cannot_be_looked_at_ends_no_script(held: Any) -> None:
    crops = Crops()
    crops.cache = held
    assert "dataset.epoch" in state_of({"dataset": crops})


def test_a_value_that_stays_nan_has_not_changed() -> None:
    crops = Crops()
    crops.cache = {"fill": float("nan"), "mean": complex("nan")}
    crops.table[0] = np.nan
    before = state_of({"dataset": crops})
    assert changed(before, state_of({"dataset": crops})) == ()
    crops.cache["fill"] = 0.0
    assert changed(before, state_of({"dataset": crops})) == ("dataset.cache.fill",)


def test_an_object_that_holds_itself_is_followed_once() -> None:
    crops = Crops()
    crops.cache = crops
    assert "dataset.epoch" in state_of({"dataset": crops})


@pytest.mark.parametrize(
    ("persistent", "compared", "stale"), [(True, 1, ("dataset.epoch",)), (False, 0, ())]
)
def test_short_epochs_show_what_workers_that_stay_do_not_see(
    monkeypatch: pytest.MonkeyPatch, persistent: bool, compared: int, stale: tuple[str, ...]
) -> None:
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    monkeypatch.setattr(
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )
    epochs = Epochs(most_batches=2)
    epochs.watch()
    crops = Crops()
    loader = DataLoader(crops, 1, num_workers=1, persistent_workers=persistent)
    for crops.epoch in range(2):
        assert len(list(loader)) == 2
    assert (epochs.compared, epochs.stale) == (compared, stale)
