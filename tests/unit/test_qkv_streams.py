"""In which order Q, K and V are issued to CUDA streams. The streams are stand-ins for torch.cuda's,
which note what is asked of them: what a device makes of it is in tests/gpu."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autotune.workloads import attention
from autotune.workloads.attention import Attention

LAYERS = ("query", "key", "value")


class Stream:
    """Notes who waits for whom."""

    def __init__(self, notes: list[str], name: str) -> None:
        self.notes, self.name = notes, name

    def wait_stream(self, other: "Stream") -> None:
        self.notes.append(f"{self.name} waits for {other.name}")


class Streams:
    """torch.cuda, as far as streams go."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.made = 0
        self.main = self.current = Stream(self.notes, "main")

    def make(self, _: torch.device) -> Stream:
        self.made += 1
        return Stream(self.notes, f"side {self.made}")

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.main


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    found = Streams()
    attention._side_streams.cache_clear()
    monkeypatch.setattr(torch.cuda, "Stream", found.make)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: found.main)
    monkeypatch.setattr(torch.cuda, "stream", found.on)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    yield found
    attention._side_streams.cache_clear()


def noting(streams: Streams) -> Attention:
    module = Attention(8, 2)
    module.qkv_streams = True
    for name in LAYERS:

        def note(*_: Any, name: str = name) -> None:
            streams.notes.append(f"{name} on {streams.current.name}")

        getattr(module, name).register_forward_hook(note)
    return module


def test_all_projections_are_under_way_before_one_is_waited_for(streams: Streams) -> None:
    module, batch = noting(streams), torch.randn(2, 3, 8)
    module(batch, batch)
    sides = (1, 2, 3)
    forks = [f"side {n} waits for main" for n in sides]
    launches = [f"{name} on side {n}" for name, n in zip(LAYERS, sides, strict=True)]
    joins = [f"main waits for side {n}" for n in sides]
    assert streams.notes == [*forks, *launches, *joins]


def test_the_streams_are_kept(streams: Streams) -> None:
    batch = torch.randn(2, 3, 8)
    for module in (noting(streams), noting(streams)):
        for _ in range(2):
            module(batch, batch)
    assert streams.made == 3


def test_they_change_no_number(streams: Streams) -> None:
    module, batch, memory = noting(streams), torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    side_by_side = module(batch, memory)
    module.qkv_streams = False
    assert torch.equal(side_by_side, module(batch, memory))
