"""DDP with all its settings in a file: one that --config names, or one at a fixed place."""

import argparse
import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--config")
arguments = parser.parse_args()
if arguments.config:
    settings = yaml.safe_load(Path(arguments.config).read_text())["training"]
else:
    with (Path(__file__).parent / "settings" / "train.toml").open("rb") as file:
        settings = tomllib.load(file)["training"]
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 8), torch.randint(0, 4, (4096,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=settings["batch_size"], sampler=sampler, drop_last=True)
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=settings["optimizer"]["lr"])
for _ in range(100_000):
    for number, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / settings["accumulate"]).backward()
        if (number + 1) % settings["accumulate"] == 0:
            optimizer.step()
            optimizer.zero_grad()
