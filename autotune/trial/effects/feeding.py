"""How batches reach the device."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from autotune.trial.effects.precision import PURE_BF16, batch_tensor
from autotune.trial.protocol import Knobs
from autotune.trial.workload import Workload


def loader(
    workload: Workload, knobs: Knobs, *, rank: int, world_size: int, seed: int, replicas: int = 1
) -> DataLoader[Any]:
    """micro_batch, loader_workers, persistent_workers, prefetch_factor, pin_memory: the loader of one
    rank, shuffled, each sample on one rank; a micro-batch for each of its replicas at once,
    with the workers of all of them.

    Raises:
        ValueError: the dataset cannot fill one micro-batch on every rank.
    """
    size = len(workload.dataset)  # type: ignore[arg-type]
    if size < knobs["micro_batch"] * world_size * replicas:
        raise ValueError(
            f"the dataset has {size} samples, fewer than micro_batch {knobs['micro_batch']} x "
            f"{world_size * replicas} ranks; lower micro_batch or enlarge the dataset"
        )
    workers = knobs["loader_workers"] * replicas
    sampler: DistributedSampler[Any] = DistributedSampler(
        workload.dataset, world_size, rank, shuffle=True, seed=seed, drop_last=True
    )
    return DataLoader(
        workload.dataset,
        batch_size=knobs["micro_batch"] * replicas,
        sampler=sampler,
        collate_fn=workload.collate,
        drop_last=True,
        pin_memory=knobs["pin_memory"],
        num_workers=workers,
        persistent_workers=knobs["persistent_workers"],
        prefetch_factor=knobs["prefetch_factor"] if workers else None,
        # Forked like the rank itself: torch is loaded in them at once.
        multiprocessing_context="fork" if workers else None,
    )


def endless(source: DataLoader[Any]) -> Iterator[Any]:
    """Batches of epoch after epoch, each shuffled anew."""
    epoch = 0
    while True:
        if isinstance(source.sampler, DistributedSampler):
            source.sampler.set_epoch(epoch)
        yield from source
        epoch += 1


def on_device(batches: Iterator[Any], knobs: Knobs, device: torch.device) -> Iterator[Any]:
    """stream_prefetch: batches on the device, the next one copied on a side stream if asked for;
    channels_last: tensors of four dimensions in that format; precision: floats as the weights are."""
    if knobs["channels_last"]:
        batches = (mapped(batch, _with_channels_last) for batch in batches)
    if knobs["precision"] == PURE_BF16:
        batches = (mapped(batch, batch_tensor) for batch in batches)
    if knobs["stream_prefetch"]:
        return _prefetched(batches, device)
    return (move(batch, device) for batch in batches)


def move(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it on the device."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with the function applied to every tensor; lists, tuples and dicts are followed."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        changed = [mapped(value, function) for value in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch


def _with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _prefetched(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    side = torch.cuda.Stream(device)

    def copy_next() -> Any:
        host_batch = next(batches)
        with torch.cuda.stream(side):
            return move(host_batch, device)

    upcoming = copy_next()
    while True:
        current = torch.cuda.current_stream(device)
        current.wait_stream(side)
        batch = upcoming
        _record_stream(batch, current)
        upcoming = copy_next()
        yield batch


def _record_stream(batch: Any, stream: torch.cuda.Stream) -> None:
    # Without this the allocator may hand the memory to the side stream while it is still read.
    if isinstance(batch, torch.Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _record_stream(value, stream)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _record_stream(value, stream)
