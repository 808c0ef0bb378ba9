"""Rendezvous of ranks: stores, the variables by which a script finds them, and exchange of numbers."""

import datetime
import itertools
import json
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from autotune.worker.protocol import Placement
from autotune.worker.rank.context import RankContext

_TIMEOUT = datetime.timedelta(minutes=30)
_kept: list[TCPStore] = []
"""Stores that must live as long as the process."""
Figures = TypeVar("Figures", bound=tuple[Any, ...])
Gather = Callable[[Any], list[Any]]
"""This rank's figures -> those of every rank, on every rank.

All of them must choose the same next block. Figures are a NamedTuple of numbers and of such
NamedTuples, of one type on every rank.
"""


def variables(placement: Placement, context: RankContext, store: Store) -> dict[str, str]:
    """Return variables that lead a script's ranks to a store of their trial alone.

    Older torch writes the ranks' keys under the number of the restart, newer torch under no prefix:
    in a store that trials share, keys of an earlier one would be taken for theirs.

    Args:
        placement: of this node, with the agent's store, which announces the new one.
        store: part of the agent's store that belongs to the trial.
    """
    if context.rank == 0:
        _kept.append(open_store(placement.store_host, _TIMEOUT))
        store.set("port", str(_kept[-1].port))
    return {
        "MASTER_ADDR": placement.store_host,
        "MASTER_PORT": store.get("port").decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def open_store(host: str, timeout: datetime.timedelta) -> TCPStore:
    """Return a store served by this process, on a free port of this address alone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listener.detach(),
    )


class RankFigures(NamedTuple):
    """Figures of one rank for a block."""

    seconds: float
    wait_seconds: float
    """Time spent waiting for the data loader."""
    loss: float
    """Last loss that was read."""
    peak_bytes: float
    """Peak since the trial began."""


def among_ranks(world_size: int) -> Gather:
    """Gather by a collective of the process group that the ranks train with."""

    def gather(mine: Figures) -> list[Figures]:
        sent = torch.tensor(list(_numbers(mine)), dtype=torch.float64)
        received = [torch.empty_like(sent) for _ in range(world_size)]
        dist.all_gather(received, sent)
        return [_filled(mine, iter(tensor.tolist())) for tensor in received]

    return gather


def over_store(store: Store, rank: int, world_size: int) -> Gather:
    """Gather through a store, independently of the process groups of the training.

    Args:
        store: in which only this function uses the keys.
        world_size: number of ranks that take part.
    """
    rounds = itertools.count()

    def gather(mine: Figures) -> list[Figures]:
        number = next(rounds)
        store.set(f"{number}/{rank}", json.dumps(list(_numbers(mine))))
        gathered = (json.loads(store.get(f"{number}/{other}")) for other in range(world_size))
        return [_filled(mine, iter(numbers)) for numbers in gathered]

    return gather


def _numbers(figures: Iterable[Any]) -> Iterator[float]:
    for figure in figures:
        if isinstance(figure, tuple):
            yield from _numbers(figure)
        else:
            yield figure


def _filled(form: Any, numbers: Iterator[float]) -> Any:
    return form._make(
        _filled(part, numbers) if isinstance(part, tuple) else next(numbers) for part in form
    )
