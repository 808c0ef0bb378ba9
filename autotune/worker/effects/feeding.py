"""Delivery of batches to the device."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from autotune.worker.effects.precision import PURE_BF16, batch_tensor
from autotune.worker.protocol import Knobs
from autotune.worker.workload import Batches, Workload

OF_LOADER = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
"""Knobs that are arguments of DataLoader."""
OF_WORKERS = ("persistent_workers", "prefetch_factor")
"""Arguments of DataLoader that it takes beside workers only."""


def source(
    workload: Workload, knobs: Knobs, *, rank: int, world_size: int, seed: int, replicas: int = 1
) -> Iterator[Any]:
    """Return batches of one rank without end, from its dataset's loader or made by the workload.

    Raises:
        ValueError: there is none, or a knob acts on a loader that the workload does not have.
    """
    if workload.batches is not None:
        return _made(workload.batches, knobs, rank, world_size, replicas)
    return endless(
        loader(workload, knobs, rank=rank, world_size=world_size, seed=seed, replicas=replicas)
    )


def _made(
    batches: Batches, knobs: Knobs, rank: int, world_size: int, replicas: int
) -> Iterator[Any]:
    """Return batches that the workload makes itself, checked for size and pinned (pin_memory)."""
    if knobs["num_workers"]:
        raise ValueError(
            f"num_workers={knobs['num_workers']}: the workload makes its batches itself "
            "(`batches`), without a loader; take the knob out of the search space, or give the "
            "Workload a `dataset`"
        )
    size = knobs["micro_batch"] * replicas
    given = _again_and_again(lambda _: batches(rank, world_size, size), "`batches` gave none")
    return (_pinned(_of_size(batch, size), knobs) for batch in given)


def _pinned(batch: Any, knobs: Knobs) -> Any:
    if not knobs["pin_memory"]:
        return batch
    return mapped(batch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())


def _of_size(batch: Any, size: int) -> Any:
    """Return the batch if its size is right; another size would be counted wrongly.

    Raises:
        ValueError: no dimension of its tensors has that size.
    """
    shapes: list[tuple[int, ...]] = []
    mapped(batch, lambda tensor: shapes.append(tuple(tensor.shape)) or tensor)  # type: ignore[func-returns-value]
    if shapes and not any(size in shape for shape in shapes):
        raise ValueError(
            f"`batches` was asked for {size} samples a batch and gave tensors of {shapes}, none of "
            f"which has a dimension of {size}: every batch must have the micro_batch that it is "
            "called with"
        )
    return batch


def _again_and_again(epoch_of: Callable[[int], Iterable[Any]], nothing: str) -> Iterator[Any]:
    """Yield batches of epoch after epoch.

    Raises:
        ValueError: an epoch has none; the message begins with `nothing`.
    """
    epoch = 0
    while True:
        empty = True
        for batch in epoch_of(epoch):
            empty = False
            yield batch
        if empty:
            raise ValueError(f"{nothing} in epoch {epoch + 1}: there is nothing to train on")
        epoch += 1


def loader(
    workload: Workload, knobs: Knobs, *, rank: int, world_size: int, seed: int, replicas: int = 1
) -> DataLoader[Any]:
    """Return the loader of one rank, with micro_batch and the knobs of OF_LOADER.

    It shuffles, and gives each sample to one rank. A rank with several replicas draws a micro-batch for
    each of them at once, with the workers of all. An iterable dataset is taken in its own order, and
    shares its samples among ranks and workers by itself.

    Raises:
        ValueError: the dataset cannot fill one micro-batch on every rank.
    """
    assert workload.dataset is not None
    workers = knobs["num_workers"] * replicas
    arguments = {name: knobs[name] for name in OF_LOADER}
    arguments["num_workers"] = workers
    if not workers:
        arguments["prefetch_factor"] = None
    return DataLoader(
        workload.dataset,
        batch_size=knobs["micro_batch"] * replicas,
        sampler=_sampler(workload.dataset, knobs, rank, world_size, seed, replicas),
        collate_fn=workload.collate,
        drop_last=True,
        # Forked like the rank itself: torch is loaded in them at once.
        multiprocessing_context="fork" if workers else None,
        **arguments,
    )


def _sampler(
    dataset: Dataset[Any], knobs: Knobs, rank: int, world_size: int, seed: int, replicas: int
) -> Sampler[Any] | None:
    """Return a shuffling sampler; None for an iterable dataset.

    Raises:
        ValueError: the dataset cannot fill one micro-batch on every rank.
    """
    if isinstance(dataset, IterableDataset):
        return None
    size = len(dataset)  # type: ignore[arg-type]
    if size < knobs["micro_batch"] * world_size * replicas:
        raise ValueError(
            f"the dataset has {size} samples, fewer than micro_batch {knobs['micro_batch']} x "
            f"{world_size * replicas} ranks; lower micro_batch or enlarge the dataset"
        )
    return DistributedSampler(dataset, world_size, rank, shuffle=True, seed=seed, drop_last=True)


def endless(source: DataLoader[Any]) -> Iterator[Any]:
    """Yield batches of epoch after epoch, each shuffled anew.

    Raises:
        ValueError: an epoch has none.
    """

    def epoch_of(number: int) -> Iterable[Any]:
        if isinstance(source.sampler, DistributedSampler):
            source.sampler.set_epoch(number)
        return source

    size = source.batch_size
    return _again_and_again(
        epoch_of, f"the dataset gave no micro-batch of {size} samples to this rank"
    )


def on_device(batches: Iterator[Any], knobs: Knobs, device: torch.device) -> Iterator[Any]:
    """Return batches on the device (stream_prefetch, channels_last, precision).

    stream_prefetch copies the next batch on a side stream; channels_last gives tensors of four
    dimensions that format; precision gives floats the weights' format. Both formats are set on the
    device: a batch that the host has changed is not pinned any more.
    """

    def prepared(batch: Any) -> Any:
        batch = move(batch, device)
        if knobs["channels_last"]:
            batch = mapped(batch, with_channels_last)
        if knobs["precision"] == PURE_BF16:
            batch = mapped(batch, batch_tensor)
        return batch

    if knobs["stream_prefetch"]:
        return _prefetched(batches, prepared, device)
    return map(prepared, batches)


def move(batch: Any, device: torch.device) -> Any:
    """Return the batch with every tensor in it on the device."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a function to every tensor of a batch, in lists, tuples and dicts."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        changed = [mapped(value, function) for value in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch


def with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return a batch of images with the channel innermost, and any other tensor as it is."""
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _prefetched(
    batches: Iterator[Any], prepared: Callable[[Any], Any], device: torch.device
) -> Iterator[Any]:
    side = torch.cuda.Stream(device)

    def copy_next() -> Any:
        host_batch = next(batches)
        with torch.cuda.stream(side):
            return prepared(host_batch)

    upcoming = copy_next()
    while True:
        current = torch.cuda.current_stream(device)
        current.wait_stream(side)
        batch = mapped(upcoming, functools.partial(_read_on, current))
        upcoming = copy_next()
        yield batch


def _read_on(stream: torch.cuda.Stream, tensor: torch.Tensor) -> torch.Tensor:
    # Without this the allocator may hand the memory to the side stream while it is still read.
    tensor.record_stream(stream)
    return tensor
