"""Number of tokens in a batch of text, without its padding where the batch shows it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from autotune.worker.inject.batch_samples import tensors

_MASK = "attention_mask"
_LABELS = "labels"
_IGNORED = -100
"""Label that torch's losses leave out."""
_LENGTHS = ("length", "lengths", "seq_lens", "seq_lengths", "src_lengths", "input_lengths")


class Tokens:
    """Counter of the tokens in the batches of one loader, all of them counted in the same way.

    Attributes:
        padded: whether counted entries may be padding: rows have varying lengths, and nothing in a
            batch shows how much of them is text.
    """

    def __init__(self) -> None:
        self.padded = False
        self._count: Callable[[Any], int] | None = None
        self._columns: set[int] = set()

    def of(self, batch: Any) -> int:
        """Return the tokens of a batch; 0 if it holds no rows of whole numbers."""
        if self._count is None:
            self._count = next(_ways(batch), self._entries)
        try:
            return self._count(batch)
        except (LookupError, AttributeError, TypeError, IndexError, StopIteration):
            self._count = self._entries  # another kind of batch than the first
            return self._entries(batch)

    def _entries(self, batch: Any) -> int:
        first = _text(batch)
        if first is None:
            return 0
        self._columns.add(first.size(1))
        self.padded = len(self._columns) > 1
        return first.numel()


def _ways(batch: Any) -> Iterator[Callable[[Any], int]]:
    """Yield functions that count what is no padding in such a batch, the surest first."""
    if any(isinstance(part, PackedSequence) for part in _parts(batch)):
        yield _of_packed
    first = _text(batch)
    if first is None or first.device.type != "cpu":
        return  # a device would have to be waited for
    if isinstance(batch, Mapping):
        yield from _ways_of_fields(batch, first)
    elif isinstance(batch, list | tuple):
        places = (place for place, part in enumerate(batch) if _are_lengths(part, first))
        yield from (_summed(place) for place in places)


def _ways_of_fields(
    batch: Mapping[Any, Any], first: torch.Tensor
) -> Iterator[Callable[[Any], int]]:
    mask, labels = batch.get(_MASK), batch.get(_LABELS)
    if isinstance(mask, torch.Tensor) and mask.shape == first.shape:
        yield lambda batch: int(batch[_MASK].count_nonzero())
    if isinstance(labels, torch.Tensor) and labels.shape == first.shape and _IGNORED in labels:
        yield lambda batch: int((batch[_LABELS] != _IGNORED).sum())
    for name in _LENGTHS:
        lengths = batch.get(name)
        if lengths is not None and _whole(lengths) and lengths.dim() == 1:
            yield _summed(name)


def _summed(place: Any) -> Callable[[Any], int]:
    return lambda batch: int(batch[place].sum())


def _are_lengths(part: Any, first: torch.Tensor) -> bool:
    """Return whether a part holds the lengths of rows that were padded to the longest of them."""
    if not _whole(part) or part.dim() != 1 or part.numel() not in first.shape:
        return False
    other = first.shape[1] if part.numel() == first.shape[0] else first.shape[0]
    return bool(part.min() >= 1) and bool(part.max() == other)


def _of_packed(batch: Any) -> int:
    packed = next(part for part in _parts(batch) if isinstance(part, PackedSequence))
    return packed.data.size(0)


def _parts(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        yield from batch.values()
    elif isinstance(batch, list | tuple) and not isinstance(batch, PackedSequence):
        yield from batch
    else:
        yield batch


def _text(batch: Any) -> torch.Tensor | None:
    """Return the first tensor of a batch, if it holds whole numbers in two dimensions."""
    first = next(tensors(batch), None)
    return first if _whole(first) and first is not None and first.dim() == 2 else None


def _whole(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and not part.is_floating_point() and not part.is_complex()
