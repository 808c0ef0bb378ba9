"""A loop with Lightning's Fabric."""

import tiny
import torch
from lightning.fabric import Fabric
from torch import nn

args = tiny.arguments()
fabric = Fabric(accelerator="cpu", devices=1)
fabric.launch()
torch.manual_seed(0)
model = tiny.Transformer()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
batches = fabric.setup_dataloaders(tiny.loader(args.batch_size))
taken = 0
while taken < args.steps:
    for images, labels in batches:
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        taken += 1
        if taken == args.steps:
            break
torch.save(model.state_dict(), "model.pt")
