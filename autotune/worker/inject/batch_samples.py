"""Tensors and number of samples of a batch of any structure."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})
"""Types of entries that are not looked into, as lists of token ids are long."""


def samples(batch: Any) -> int:
    """Count the samples of a batch, where its loader does not know; return 0 where nothing tells them.

    Samples are the rows of its tensors and arrays, or its entries where each is one sample (a list of
    dicts, of texts, of pictures of different sizes): the number on which its fields agree; where they
    do not, that of the first with rows. A batch of single numbers is one sample.
    """
    columns = _columns(batch)
    if columns is not None:
        return columns[0].size(0)
    numbers = _numbers(batch)
    return numbers[0] if numbers else int(next(tensors(batch), None) is not None)


def samples_given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Count the samples in the arguments of a model, each of which is a field of a batch."""
    return samples({**dict(enumerate(args)), **kwargs})


def samples_returned(result: Any) -> int:
    """Count the samples in what a model returns: the rows of its tensors, its loss left out."""
    rows = (tensor for tensor in tensors(result) if tensor.dim())
    return samples(dict(enumerate(rows)))


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
    if isinstance(part, PackedSequence):
        return [int(part.batch_sizes[0])]
    if shape := _shape(part):
        return [shape[0]]
    if _is_record(part):
        return _agreed(_parts(part))
    if not isinstance(part, list | tuple) or not part:
        return []
    fields, entries = _agreed(_parts(part)), [len(part)]
    if _has_rows(part):
        return [*entries, *fields] if _one_by_one(part) else [*fields, *entries]
    if isinstance(part, list):
        return [*entries, *fields] if any(entry is not None for entry in part) else fields
    return fields if len({*map(type, part)}) > 1 or part[0] is None else [*fields, *entries]


def _one_by_one(entries: Sequence[Any]) -> bool:
    """Return whether each entry is a sample of its own, of those with rows.

    Such an entry is a dict, or a tensor of another length than the others.
    """
    if len(entries) == 1:
        return False
    shapes = [*map(_shape, entries)]
    if all(shapes):
        return len({*map(len, shapes)}) == 1 and len({shape[0] for shape in shapes}) > 1
    return all(isinstance(entry, Mapping) for entry in entries)


def _agreed(parts: Iterable[Any]) -> list[int]:
    """Return the numbers that all parts may have, else those of the first part that has rows."""
    ordered = sorted(parts, key=_has_rows, reverse=True)
    known = [numbers for part in ordered if (numbers := _numbers(part))]
    if not known:
        return []
    common = [number for number in known[0] if all(number in other for other in known)]
    return common or (known[0] if _has_rows(ordered) else [])


def _has_rows(part: Any) -> bool:
    """Return whether there are tensors or arrays with rows in a part of a batch."""
    return bool(_shape(part)) or any(map(_has_rows, _parts(part)))


def _shape(part: Any) -> Sequence[int]:
    """Return the shape of a tensor or an array; empty of all else, or where it is not known."""
    if isinstance(part, torch.Tensor):
        # A nested tensor has no shape.
        return [part.size(0), *[0] * (part.dim() - 1)] if part.dim() else []
    # The class tells: an object may make up attributes.
    if _is_record(part) or isinstance(part, list | tuple) or not hasattr(type(part), "shape"):
        return []
    try:
        return [int(number) for number in part.shape]
    except Exception:  # a property of the script's own class
        return []


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
        return () if _PLAIN.issuperset(map(type, batch)) else batch
    if is_dataclass(batch):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return ()


def _is_record(part: Any) -> bool:
    """Return whether the parts have names, and so are no samples."""
    return isinstance(part, Mapping) or is_dataclass(part) or hasattr(type(part), "_fields")


def is_dataclass(part: Any) -> bool:
    """Return whether an object is an instance of a dataclass, and no class itself."""
    return dataclasses.is_dataclass(part) and not isinstance(part, type)
