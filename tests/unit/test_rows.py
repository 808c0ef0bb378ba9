"""Rows that the first steps of a training consume, as digests."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    dataloader,
    get_worker_info,
)

from autotune.worker.decoding import decoded
from autotune.worker.inject import asked
from autotune.worker.inject.rows import RankRows, Rows, row_hashes, together

ROWS = 24
TABLE = TensorDataset(torch.arange(96 * 3.0).reshape(96, 3), torch.arange(96) % 5)


class Stream(IterableDataset[Any]):
    """Rows in their order; shared among loader workers if they are to be."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info() if self.shared else None
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter([TABLE[i] for i in range(first, 96, step)])


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(3)


@pytest.fixture(autouse=True)
def loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "_next_index", iterator._next_index)
    asked.watch()


def drawn(loader: DataLoader[Any], rows: Rows) -> Iterator[Any]:
    """Yield the batches of an epoch, and tell of them."""
    iterator = iter(loader)
    for batch in iterator:
        rows.saw(iterator, batch, asked.take(iterator))
        yield batch


def consumed(
    dataset: Any, size: int, workers: int = 0, seed: int = 0, wanted: int = ROWS, **arguments: Any
) -> dict[str, Any]:
    """Of a rank that trains on batches of this size until it has had enough rows."""
    rows = Rows(wanted)
    torch.manual_seed(seed)
    loader = DataLoader(dataset, size, num_workers=workers, **arguments)
    for number, _ in enumerate(drawn(loader, rows), 1):
        rows.learned()
        if number * size >= ROWS:
            break
    mine = rows.first(wanted)
    assert mine is not None
    return together([decoded(RankRows, json.loads(json.dumps(vars(mine))))])


def test_rows_are_the_same_whatever_the_micro_batch() -> None:
    whole, halves = (consumed(TABLE, size, shuffle=True) for size in (8, 4))
    assert whole == halves
    assert (whole["rows"], whole["copies"]) == (ROWS, 0)
    other = consumed(TABLE, 8, seed=1, shuffle=True)
    assert other["contents"] != whole["contents"]


def test_the_same_rows_in_another_order_have_the_same_sum() -> None:
    forward, backward = (
        consumed(TABLE, 4, sampler=order) for order in (range(ROWS), range(ROWS)[::-1])
    )
    assert forward["contents"] == backward["contents"]
    assert forward["order"] != backward["order"]


@pytest.mark.parametrize(("shared", "copies"), [(True, 0), (False, ROWS // 2)])
def test_workers_that_do_not_share_a_stream_are_seen_by_its_copies(
    shared: bool, copies: int
) -> None:
    assert consumed(Stream(shared), 4)["copies"] == 0
    assert consumed(Stream(shared), 4, workers=2)["copies"] == copies


def test_ranks_that_do_not_share_a_stream_are_seen_by_its_copies() -> None:
    rows = RankRows(2, 30, None, "a", [(0, 10, None), (0, 20, None)])
    assert together([rows, rows])["copies"] == 2


def test_augmented_rows_are_known_by_their_index() -> None:
    one, other = (consumed(Augmented(), 4, shuffle=True, workers=workers) for workers in (0, 1))
    assert one["contents"] != other["contents"]
    assert one["indices"] == other["indices"]


def test_an_index_that_a_sampler_draws_twice_is_no_copy() -> None:
    sampler = RandomSampler(range(3), replacement=True, num_samples=ROWS)
    assert consumed(TABLE, 4, sampler=sampler)["copies"] == 0


def test_rows_of_the_next_epoch_are_no_copies() -> None:
    few = TensorDataset(torch.rand(4, 3))
    rows = Rows(ROWS)
    for _ in range(3):
        for _ in drawn(DataLoader(few, 2), rows):
            rows.learned()
    mine = rows.first(0)
    assert mine is not None
    assert together([mine])["rows"] == 12
    assert together([mine])["copies"] == 0


def test_what_is_drawn_ahead_does_not_count() -> None:
    ahead = consumed(TABLE, 8, wanted=16)
    assert ahead["rows"] == 16


def test_epoch_of_persistent_workers_that_was_left_does_not_shift_the_indices() -> None:
    loader = DataLoader(TABLE, 4, num_workers=1, persistent_workers=True)
    rows = Rows(0)
    next(drawn(loader, rows))
    iterator = loader._iterator
    asked.forget(iterator)
    rows.begin_epoch(iterator)
    for _ in drawn(loader, rows):
        rows.learned()
    mine = rows.first(0)
    assert mine is not None
    assert mine.indices is not None
    assert [index for epoch, _, index in mine.counted if epoch] == list(range(96))


def test_padding_of_tokens_does_not_change_a_row() -> None:
    row = torch.tensor([[5, 6, 7]])
    padded = torch.tensor([[5, 6, 7, 0, 0], [1, 2, 3, 4, 5]])
    alone, beside = row_hashes({"input_ids": row}, 1), row_hashes({"input_ids": padded}, 2)
    assert alone is not None
    assert beside is not None
    assert alone[0] == beside[0] != beside[1]


@pytest.mark.parametrize(
    "batch",
    [
        [{"image": torch.ones(3, 4, 5)}, {"image": torch.zeros(3, 2, 2)}],
        (torch.arange(10).reshape(5, 2), torch.zeros(1)),
        {"text": ["one", "two"], "number": torch.zeros(3)},
        torch.randn(2, 100_000).to(torch.bfloat16),
        torch.tensor([True, False]),
        (np.arange(6.0).reshape(2, 3), np.zeros(2)),
        pack_sequence([torch.ones(3), torch.zeros(2)], enforce_sorted=False),
    ],
    ids=["list of samples", "time first", "texts", "long rows", "booleans", "arrays", "packed"],
)
def test_rows_of_many_kinds_have_a_hash_of_their_own(batch: Any) -> None:
    found, again = row_hashes(batch, 2), row_hashes(batch, 2)
    assert found is not None
    assert again is not None
    assert found.tolist() == again.tolist()
    assert len(set(found.tolist())) == 2
    assert all(0 <= one < 2**63 for one in found.tolist())


NESTED = [torch.ones(3), torch.ones(2)]


@pytest.mark.parametrize(
    "part",
    [
        torch.ones(2, 0),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.nested.nested_tensor(NESTED),
        torch.nested.nested_tensor(NESTED, layout=torch.jagged),
    ],
    ids=["no width", "COO", "CSR", "nested", "jagged"],
)
def test_a_field_whose_rows_cannot_be_hashed_is_left_out(part: torch.Tensor) -> None:
    beside = {"number": torch.arange(2)}
    found, alone = row_hashes({**beside, "part": part}, 2), row_hashes(beside, 2)
    assert found is not None
    assert alone is not None
    assert found.tolist() == alone.tolist()
    assert row_hashes(part, 2) is None


class Unreadable(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise OSError("the file is closed")

    def __iter__(self) -> Iterator[str]:
        return iter(["image"])

    def __len__(self) -> int:
        return 1


def test_a_batch_that_cannot_be_looked_at_ends_no_script() -> None:
    rows = Rows(ROWS)
    batches = [{"image": torch.ones(4, 3)}, Unreadable(), {"image": torch.zeros(4, 3)}]
    loader = DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)
    assert len(list(drawn(loader, rows))) == 3
    rows.learned()
    assert rows.first(0) is None


def test_a_batch_without_rows_has_none() -> None:
    assert row_hashes({"edges": torch.zeros(7)}, 2) is None
    assert row_hashes(object(), 0) is None
