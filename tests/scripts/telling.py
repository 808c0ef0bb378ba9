"""A training script that tells what it was run with and what it built: a line of JSON per rank."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = int(os.environ.get("STEPS", "100000"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        Block.dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        Block.flash = torch.backends.cuda.flash_sdp_enabled()
        attended = nn.functional.scaled_dot_product_attention(*[x[None]] * 3)[0]
        return torch.relu(self.linear(attended))


def main():
    size = int(sys.argv[sys.argv.index("--batch") + 1]) if "--batch" in sys.argv else 4
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 16), torch.randn(256, 16))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=size, sampler=sampler, drop_last=True)
    model = nn.Sequential(Block(), Block(), Block())
    wrapped = DistributedDataParallel(model) if "--bare" not in sys.argv else model
    optimizer = torch.optim.Adam(model.parameters())
    steps = 0
    while steps < STEPS:
        for x, y in loader:
            loss = nn.functional.mse_loss(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps == 2:
                tell(wrapped, loader, optimizer)
            if steps >= STEPS:
                break


def tell(model, loader, optimizer):
    told = {
        "argv": sys.argv[1:],
        "bucket": getattr(model, "bucket_bytes_cap", None),
        "view": getattr(model, "gradient_as_bucket_view", None),
        "workers": loader.num_workers,
        "fused": optimizer.param_groups[0]["fused"],
        "dtype": str(Block.dtype),
        "benchmark": torch.backends.cudnn.benchmark,
        "flash": Block.flash,
        "cwd": str(Path.cwd()),
        "path": sys.path[0],
        "main": sys.modules["__main__"].__file__,
        "environment": {
            name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        },
        "extra": os.environ.get("EXTRA"),
        "processors": sorted(os.sched_getaffinity(0)),
    }
    with open(f"{os.environ['TOLD']}-{dist.get_rank()}", "w") as file:  # noqa: PTH123
        json.dump(told, file)


if __name__ == "__main__":
    main()
if dist.is_initialized():
    dist.destroy_process_group()  # its threads end before the interpreter does
