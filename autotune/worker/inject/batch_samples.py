"""Tensors and number of samples of a batch of any structure."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch


def samples(batch: Any) -> int:
    """Guess how many samples a batch has, where its loader does not know.

    Samples are the rows of its tensors, or its entries where each is one sample (a list of dicts, of
    pictures of different sizes): the number on which its fields agree; where they do not, that of the
    first.
    """
    columns = _columns(batch)
    if columns is not None:
        return columns[0].size(0)
    if next(tensors(batch), None) is None and not isinstance(batch, Mapping):
        return len(batch) if isinstance(batch, Sized) else 0
    numbers = _numbers(batch)
    return numbers[0] if numbers else 1


def _columns(batch: Any) -> Sequence[torch.Tensor] | None:
    """Return the fields of a batch as most are: tensors with as many rows each. This is a shortcut."""
    kind = type(batch)
    if kind is dict:
        batch = [*batch.values()]
    elif kind is not list and kind is not tuple:
        return None
    rows = None
    for field in batch:
        if type(field) is not torch.Tensor or not field.dim():
            return None
        if rows not in (None, field.size(0)):
            return None
        rows = field.size(0)
    return batch or None


def _numbers(part: Any) -> list[int]:
    """Return the numbers of samples that this part of a batch may have, the likeliest first."""
    if isinstance(part, torch.Tensor):
        return [part.size(0)] if part.dim() else []
    if isinstance(part, Mapping) or is_dataclass(part):
        return _agreed(_parts(part))
    if not isinstance(part, list | tuple) or not part:
        return []
    fields, entries = _agreed(part), [len(part)]
    return [*entries, *fields] if _one_by_one(part) else [*fields, *entries]


def _one_by_one(entries: Sequence[Any]) -> bool:
    """Return whether each entry is a sample of its own.

    Such an entry is a dict, a tensor of another length than the others, or no tensor at all.
    """
    if next(tensors(entries), None) is None:
        return True
    if len(entries) == 1:
        return False
    if all(isinstance(entry, torch.Tensor) for entry in entries):
        ranks = {entry.dim() for entry in entries}
        lengths = {entry.size(0) for entry in entries if entry.dim()}
        return len(ranks) == 1 and len(lengths) > 1
    return all(isinstance(entry, Mapping) for entry in entries)


def _agreed(parts: Iterable[Any]) -> list[int]:
    known = [numbers for part in parts if (numbers := _numbers(part))]
    if not known:
        return []
    common = [number for number in known[0] if all(number in other for other in known)]
    return common or known[0]


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch, or of a model's result, in its order."""
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    for part in _parts(batch):
        yield from tensors(part)


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, list | tuple):
        return batch
    if is_dataclass(batch):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return ()


def is_dataclass(part: Any) -> bool:
    """Return whether an object is an instance of a dataclass, and no class itself."""
    return dataclasses.is_dataclass(part) and not isinstance(part, type)
