"""How many samples and tokens a batch has, whatever it is made of."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch


def size(batch: Any) -> tuple[int, int]:
    """Samples and tokens of a batch.

    Samples are the rows of its tensors, or its entries where each is one sample (a list of dicts, of
    pictures of different sizes): the number on which its fields agree; where they do not, that of the
    first. Tokens are all entries of its first tensor, if that holds whole numbers in two dimensions.
    """
    columns = _columns(batch)
    if columns is not None:
        return columns[0].size(0), _tokens(columns[0])
    first = next(tensors(batch), None)
    if first is None and not isinstance(batch, Mapping):
        return (len(batch) if isinstance(batch, Sized) else 0), 0
    numbers = _numbers(batch)
    return numbers[0] if numbers else 1, _tokens(first)


def likeness(batch: Any) -> Any:
    """Something that is equal for batches of one loader that have the same size, as far as that shows at
    a glance: how many parts they have, and the shape of the first; where nothing shows, a NaN."""
    kind = type(batch)
    if kind is list or kind is tuple:
        first = batch[0] if batch else None
    elif kind is dict:
        first = next(iter(batch.values()), None)
    else:
        return math.nan
    return (len(batch), first.shape) if type(first) is torch.Tensor else math.nan


def _columns(batch: Any) -> Sequence[torch.Tensor] | None:
    """The fields of a batch as most are: tensors with as many rows each. What is found for them further
    on, found in a tenth of the time: this is on the way of every batch."""
    kind = type(batch)
    if kind is dict:
        batch = [*batch.values()]
    elif kind is not list and kind is not tuple:
        return None
    rows = None
    for field in batch:
        shape = field.shape if type(field) is torch.Tensor else None
        if not shape or rows not in (None, shape[0]):
            return None
        rows = shape[0]
    return batch or None


def _tokens(first: torch.Tensor | None) -> int:
    return first.numel() if first is not None and first.dim() == 2 and not _fractional(first) else 0


def _numbers(part: Any) -> list[int]:
    """Of samples that this part of a batch may have, the likeliest first; none where it says nothing."""
    if isinstance(part, torch.Tensor):
        return [part.shape[0]] if part.dim() else []
    if isinstance(part, Mapping):
        return _agreed(part.values())
    if not isinstance(part, list | tuple) or not part:
        return []
    fields, entries = _agreed(part), [len(part)]
    return [*entries, *fields] if _one_by_one(part) else [*fields, *entries]


def _one_by_one(entries: Sequence[Any]) -> bool:
    """Whether each is a sample of its own: a dict, a tensor of another length than the others, or what
    no tensor has been made of."""
    if next(tensors(entries), None) is None:
        return True
    if len(entries) == 1:
        return False
    if all(isinstance(entry, torch.Tensor) for entry in entries):
        ranks, lengths = {entry.dim() for entry in entries}, {entry.shape[:1] for entry in entries}
        return len(ranks) == 1 and len(lengths) > 1
    return all(isinstance(entry, Mapping) for entry in entries)


def _agreed(parts: Iterable[Any]) -> list[int]:
    said = [numbers for part in parts if (numbers := _numbers(part))]
    if not said:
        return []
    common = [number for number in said[0] if all(number in other for other in said)]
    return common or said[0]


def _fractional(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """All that a batch is made of, in its order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from tensors(list(batch.values()))
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from tensors(part)
