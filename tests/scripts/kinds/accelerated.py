"""A loop with Accelerate."""

import tiny
import torch
from accelerate import Accelerator
from torch import nn

args = tiny.arguments()
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = tiny.Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, batches = accelerator.prepare(model, optimizer, tiny.loader(args.batch_size))
taken = 0
while taken < args.steps:
    for images, labels in batches:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
        taken += 1
        if taken == args.steps:
            break
torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
