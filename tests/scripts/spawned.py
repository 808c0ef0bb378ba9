"""Script that starts its ranks by torch.multiprocessing.spawn, at a port of its own choice."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def work(rank: int, ranks: int, args: argparse.Namespace) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(args.port)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    rows = TensorDataset(torch.randn(512, 16), torch.randn(512, 4))
    loader = DataLoader(rows, args.batch_size, sampler=DistributedSampler(rows))
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        if epoch == 0:
            print(f"rank {rank}: {loader.num_workers} workers, {model.gradient_as_bucket_view}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--port", type=int, default=29_555)
    given = parser.parse_args()
    mp.spawn(work, (given.ranks, given), nprocs=given.ranks)
    print("all ranks have ended")
