"""A script with arguments that are in no catalogue, whose ranks draw the same batch and share it."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--mode", choices=["slow", "fast"], default="slow")
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    world = dist.get_world_size()
    size = 16 * args.tensor_parallel // world
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 8))
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        for x, y in DataLoader(data, batch_size=size, drop_last=True):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            optimizer.step()
            time.sleep(0.02 if args.mode == "slow" else 0.005)


if __name__ == "__main__":
    main()
