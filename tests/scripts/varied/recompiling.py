"""A compiled step over rows whose number changes from step to step, if it is told so; no DDP."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--ragged", action="store_true")
arguments = parser.parse_args()
model = nn.Linear(4, 1)
compiled = torch.compile(model, backend="eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, x in enumerate(DataLoader(torch.randn(100_000, 4), batch_size=32)):
    rows = x[: 1 + step % 32] if arguments.ragged else x
    compiled(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
