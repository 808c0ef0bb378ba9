"""Rows that the first optimizer steps of a script train on, as numbers that can be compared.

A row is identified by a hash of a bounded part of its contents and, in a dataset that is read by
index, by its index. Hashes are sums of products, so that a whole batch is hashed by a few
operations.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from autotune.worker.inject.batch_samples import samples, tensors

_MOST_COLUMNS = 256
"""Elements of a row that are hashed, evenly spaced."""
_MOST_TOKENS = 4096
"""Elements that are hashed of a row of whole numbers, from its beginning."""
_PADDING = (0, -100)
"""Values that collation adds to a row of tokens; their number depends on the batch."""
_MOST_BYTES = 4096
"""Bytes that are hashed of a text."""
_MOST_COUNTED = 8192
"""Approximate number of rows of all ranks that are searched for copies, chosen by their hash."""
_BITS = (1 << 63) - 1
_FACTORS = (-7046029254386353131, -4658895280553007687)
"""Odd numbers of 64 bits: of splitmix64 (Steele, Lea and Flood 2014)."""
_EPOCH = "_epoch_seen_by_autotune"
"""Attribute of a loader's iterator: the number of its epoch."""


@dataclass(frozen=True)
class RankRows:
    """Rows that one rank has trained on.

    Attributes:
        contents: sum of the hashes of their contents, independent of their order.
        indices: sum of the hashes of their indices in the dataset; None where a row has none.
        order: digest of the contents in their order.
        counted: epoch, hash and index of some of them, chosen by their hash.
    """

    rows: int
    contents: int
    indices: int | None
    order: str
    counted: list[tuple[int, int, int | None]]


def together(ranks: Sequence[RankRows]) -> dict[str, Any]:
    """Combine the rows of all ranks.

    Returns:
        `rows`, their number; `contents` and `indices`, sums of hashes as text, equal for equal rows in
        any order; `order`, a digest, equal for equal rows in the same order; `counted`, the rows among
        which copies were looked for, and `copies`, those of them whose contents another row of the
        same epoch had under another index, or under none.
    """
    told = [rank.indices for rank in ranks if rank.indices is not None]
    indices = f"{sum(told) & _BITS:x}" if len(told) == len(ranks) else ""
    counted = [row for rank in ranks for row in rank.counted]
    return {
        "rows": sum(rank.rows for rank in ranks),
        "contents": f"{sum(rank.contents for rank in ranks) & _BITS:x}",
        "indices": indices,
        "order": _digest(rank.order.encode() for rank in ranks),
        "counted": len(counted),
        "copies": copies(counted),
    }


def copies(counted: Iterable[tuple[int, int, int | None]]) -> int:
    """Return the number of rows that repeat contents of their epoch under another index or none.

    A sampler that draws an index twice is the script's own.
    """
    found = list(counted)
    unnamed = Counter(row[:2] for row in found if row[2] is None)
    named = Counter(row[:2] for row in {row for row in found if row[2] is not None})
    return sum(times - 1 for times in itertools.chain(unnamed.values(), named.values()))


@dataclass
class _Batch:
    epoch: int
    contents: Tensor
    indices: list[int] | None


@dataclass
class Rows:
    """Batches that a rank draws and trains on, as ScriptProbe tells of them.

    Attributes:
        wanted: rows of this rank that matter, as what follows is drawn ahead of the steps; 0: all.
        ranks: of the training.
        unread: class of a batch that no samples could be read from; empty as long as there is none.
    """

    wanted: int
    ranks: int = 1
    unread: str = ""
    _batches: list[_Batch] = field(default_factory=list)
    _epochs: int = 0
    _drawn: set[int] = field(default_factory=set)
    _trained: set[int] = field(default_factory=set)
    _unknown: bool = False

    def saw(self, iterator: Any, batch: Any, index: Any) -> None:
        """Take in a batch that may be trained on.

        No batch ends the script: after one that cannot be looked at, its rows are unknown.

        Args:
            iterator: the iterator of a loader that has yielded it.
            index: what the loader has asked its data set for.
        """
        if self._unknown or self._has_enough():
            return
        try:
            self._take_in(iterator, batch, index)
        except Exception:
            self._unknown, self.unread = True, type(batch).__name__

    def _take_in(self, iterator: Any, batch: Any, index: Any) -> None:
        indices = _whole_numbers(index)
        contents = row_hashes(batch, len(indices) if indices else samples(batch))
        if contents is None:
            self.unread = type(batch).__name__
        else:
            epoch = self._epoch_of(iterator)
            self._batches.append(_Batch(epoch, contents, indices))
            self._drawn.add(epoch)

    def begin_epoch(self, iterator: Any) -> None:
        """Take in that an iterator begins anew, as those of persistent workers do."""
        iterator.__dict__.pop(_EPOCH, None)

    def learned(self) -> None:
        """Take in that a backward pass begins."""
        self._trained |= self._drawn
        self._drawn.clear()

    def first(self, rows: int) -> RankRows | None:
        """Return the first rows that were trained on; None if the contents of none are known.

        Args:
            rows: largest number; 0: all.
        """
        batches = [b for b in self._batches if b.epoch in self._trained] or self._batches
        if not batches or self._unknown:
            return None
        contents = torch.cat([batch.contents for batch in batches])[: rows or None]
        epochs = [b.epoch for b in batches for _ in range(len(b.contents))]
        indices = _indices(batches, len(contents))
        hashes = contents.tolist()
        every = -(-len(hashes) * self.ranks // _MOST_COUNTED)
        named = indices or itertools.repeat(None)
        chosen = zip(epochs, hashes, named, strict=False)
        counted = [row for row in chosen if row[1] % every == 0]
        known = None if indices is None else int(_mixed(torch.tensor(indices)).sum()) & _BITS
        order = _digest([contents.numpy().tobytes()])
        return RankRows(len(hashes), sum(hashes) & _BITS, known, order, counted)

    def _epoch_of(self, iterator: Any) -> int:
        """Return the number of an iterator's pass over its loader."""
        number: int = iterator.__dict__.setdefault(_EPOCH, self._epochs)
        self._epochs = max(self._epochs, number + 1)
        return number

    def _has_enough(self) -> bool:
        # Some of them may turn out to have been evaluated.
        return 0 < 2 * self.wanted <= sum(len(batch.contents) for batch in self._batches)


def row_hashes(batch: Any, rows: int) -> Tensor | None:
    """Return a hash of 63 bits of each row of a batch, on the host; None if there are no rows.

    Args:
        batch: tensors, lists, tuples and mappings of them.
        rows: number of rows.
    """
    if not rows:
        return None
    columns = _columns(batch, rows)
    if not columns:
        return None
    total = torch.zeros(rows, dtype=torch.int64)
    for place, column in enumerate(columns):
        total += column * (2 * place + 1)
    return _mixed(total) & _BITS


def _columns(part: Any, rows: int) -> list[Tensor]:
    """Return a hash for every row in each field of a batch; fields without such rows are left out."""
    if hasattr(type(part), "__array__") and not isinstance(part, Tensor):
        part = torch.as_tensor(part)
    if isinstance(part, Tensor):
        found = _by_row(part, rows)
        return [] if found is None else [found]
    if isinstance(part, PackedSequence):
        part = pad_packed_sequence(part, batch_first=True)
    if isinstance(part, Mapping):
        part = list(part.values())
    elif not isinstance(part, list | tuple):
        return []
    elif len(part) == rows and _are_samples(part):
        return [torch.tensor([_entry(one) for one in part])]
    return [column for inner in part for column in _columns(inner, rows)]


def _are_samples(entries: Sequence[Any]) -> bool:
    """Return whether each entry is a sample of its own.

    Such an entry is a text, or tensors that are not all as long as the list.
    """
    inside = list(tensors(entries))
    return not inside or any(t.dim() == 0 or t.size(0) != len(entries) for t in inside)


def _by_row(part: Tensor, rows: int) -> Tensor | None:
    """Return a hash of each row; None where no dimension has that many rows, or they are empty."""
    if part.is_nested or part.layout is not torch.strided or part.is_quantized:
        return None
    if rows not in part.shape or not part.numel():
        return None
    whole = part.detach().movedim(list(part.shape).index(rows), 0).reshape(rows, -1)
    tokens = whole.dtype in (torch.int64, torch.int32)
    if tokens:
        whole = whole[:, :_MOST_TOKENS]
    elif whole.shape[1] > _MOST_COLUMNS:
        places = torch.linspace(0, whole.shape[1] - 1, _MOST_COLUMNS, device=whole.device).long()
        whole = whole[:, places]
    numbers = _as_whole_numbers(whole.cpu())
    hashed = _mixed(numbers + 1) * (_mixed(torch.arange(1, numbers.shape[1] + 1)) | 1)
    if tokens and numbers.shape[1] > 1:
        for value in _PADDING:
            hashed = hashed.masked_fill(numbers == value, 0)
    return hashed.sum(1)


def _as_whole_numbers(values: Tensor) -> Tensor:
    """Return the bits of values as whole numbers, in two dimensions."""
    if values.is_complex():
        values = torch.view_as_real(values).flatten(1)
    if values.is_floating_point():
        same_size = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(values.element_size())
        values = values.contiguous().view(same_size or torch.int8)
    return values.to(torch.int64)


def _entry(entry: Any) -> int:
    """Return the hash of a sample that is an entry of a list."""
    if isinstance(entry, bytes):
        return _digest_number(entry)
    found = [_by_row(tensor.reshape(1, -1), 1) for tensor in tensors([entry])]
    parts = [int(one[0]) for one in found if one is not None]
    return _digest_number(repr(parts or entry).encode(errors="surrogatepass"))


def _digest_number(data: bytes) -> int:
    found = hashlib.blake2b(data[:_MOST_BYTES], digest_size=8).digest()
    return int.from_bytes(found, "big", signed=True)


def _mixed(numbers: Tensor) -> Tensor:
    """Map numbers to others of 64 bits that look random."""
    for factor in _FACTORS:
        numbers = numbers * factor
        numbers = numbers ^ (numbers >> 31)
    return numbers


def _whole_numbers(index: Any) -> list[int] | None:
    """Return the indices of a batch; None where they are none."""
    several = index if isinstance(index, list | tuple) else [index]
    wholes = all(isinstance(one, int) for one in several)
    return [int(one) for one in several] if several and wholes else None


def _indices(batches: Sequence[_Batch], rows: int) -> list[int] | None:
    found: list[int] = []
    for batch in batches:
        if batch.indices is None or len(batch.indices) != len(batch.contents):
            return None
        found += batch.indices
    return found[:rows]


def _digest(parts: Iterable[bytes]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return found.hexdigest()
