"""Settings in a file, of which a check ties three together, as DeepSpeed does."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

told = json.loads(Path("settings/tied.json").read_text())
batch, steps = told["train_micro_batch_size_per_gpu"], told["gradient_accumulation_steps"]
if told["train_batch_size"] != batch * steps:
    raise SystemExit("train_batch_size is not micro_batch_per_gpu * gradient_acc_step * world_size")
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 4, (256,)))
loader = DataLoader(data, batch_size=batch, drop_last=True)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = 0
while True:
    for x, y in loader:
        (nn.functional.cross_entropy(model(x), y) / steps).backward()
        done += 1
        if done % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
