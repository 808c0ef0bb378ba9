"""Real text that every machine has: the source files of Python's standard library."""

import os
import sysconfig
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch.utils.data import Dataset

_RESERVED = 2  # padding and start
_EXCLUDED = {"site-packages", "test", "tests", "idlelib", "__pycache__"}


@lru_cache(maxsize=4)
def source_text(size: int) -> bytes:
    """Return the first `size` bytes of the standard library's sources, in order of folders and names.

    Raises:
        ValueError: there is not so much text.
    """
    taken = bytearray()
    for path in _sources(Path(sysconfig.get_paths()["stdlib"])):
        taken += path.read_bytes()
        if len(taken) >= size:
            return bytes(taken[:size])
    raise ValueError(f"the standard library's sources have {len(taken)} bytes, not {size}")


def _sources(folder: Path) -> Iterator[Path]:
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _EXCLUDED)
        yield from (Path(current, name) for name in sorted(files) if name.endswith(".py"))


def byte_tokens(size: int) -> torch.Tensor:
    """Return one token per byte: int64, shape (size,), values 0..255."""
    return torch.frombuffer(bytearray(source_text(size)), dtype=torch.uint8).long()


def word_tokens(size: int, vocabulary: int) -> torch.Tensor:
    """Return one token per white-space separated word of `size` bytes, hashed into the vocabulary.

    Tokens 0 and 1 are reserved for padding and the start of a sequence.
    """
    if vocabulary <= _RESERVED:
        raise ValueError(f"a vocabulary of {vocabulary} leaves no token for text")
    words = source_text(size).split()
    return torch.tensor([_RESERVED + zlib.crc32(word) % (vocabulary - _RESERVED) for word in words])


class Windows(Dataset[torch.Tensor]):
    """Windows of a token stream: item i is the `length` tokens from i * stride on."""

    def __init__(self, tokens: torch.Tensor, length: int, stride: int) -> None:
        if not 0 < length <= len(tokens):
            raise ValueError(
                f"a sample of {length} tokens does not fit the {len(tokens)} there are"
            )
        self._tokens = tokens
        self._length = length
        self._stride = stride

    def __len__(self) -> int:
        return (len(self._tokens) - self._length) // self._stride + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._stride
        return self._tokens[start : start + self._length]
