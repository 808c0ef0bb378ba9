"""A training loop without autotune, as people write it: what one rank of a trial is compared with.

    python benchmarks/gpu/bare_loop.py '{"factory": ..., "args": ..., "micro_batch": ..., ...}'

Prints samples per second. Of autotune it uses the model and its data alone.
"""

import importlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader


def main() -> None:
    wanted = json.loads(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device(wanted["device"])
    module, _, name = wanted["factory"].partition(":")
    built = getattr(importlib.import_module(module), name)(**wanted["args"])
    model = built.model.to(device).train()
    optimizer = built.optimizer(model.parameters())
    batches = on_device(built, wanted["micro_batch"], device)
    half = wanted["precision"] == "bf16"

    def train(steps: int) -> float:
        synchronise(device)
        started = time.perf_counter()
        for step in range(steps):
            with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
                loss = built.loss(model, next(batches))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % wanted["log_interval"] == 0:
                float(loss)
        synchronise(device)
        return time.perf_counter() - started

    train(3)
    a_step = train(wanted["log_interval"]) / wanted["log_interval"]
    warm = max(1, round(wanted["warmup"] / a_step))
    train(warm)
    intervals = max(1, round(wanted["seconds"] / a_step / wanted["log_interval"]))
    steps = intervals * wanted["log_interval"]
    print(steps * wanted["micro_batch"] / train(steps))


def on_device(built: Any, micro_batch: int, device: torch.device) -> Iterator[Any]:
    """Batches without end, copied when they are asked for."""
    loader = DataLoader(
        built.dataset, micro_batch, shuffle=True, drop_last=True, collate_fn=built.collate
    )
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        if isinstance(batch, torch.Tensor):
            yield batch.to(device)
        else:
            yield [part.to(device) for part in batch]


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
