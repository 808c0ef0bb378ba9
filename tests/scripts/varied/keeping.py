"""A fixed global batch: the script accumulates as often as the batch of a device asks for."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device-batch-size", type=int, default=8)
parser.add_argument("--total-batch-size", type=int, default=16)
parser.add_argument("--log-every", type=int, default=5)
arguments = parser.parse_args()
steps, rest = divmod(arguments.total_batch_size, arguments.device_batch_size)
assert not rest, "the total batch must be a multiple of the device's"

torch.set_num_threads(1)
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 4, (256,)))
loader = DataLoader(data, batch_size=arguments.device_batch_size, drop_last=True)
model = nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
done = 0
while True:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y) / steps
        loss.backward()
        done += 1
        if done % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            if done // steps % arguments.log_every == 1:
                print("loss", loss.item())
