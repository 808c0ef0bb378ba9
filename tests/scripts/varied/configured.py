"""Hydra, torch.compile if wanted, a checkpoint every few steps."""

import hydra
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    model = nn.Linear(8, 1)
    if config.compile:
        model = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
    several = config.trainer.accumulate_grad_batches
    while True:
        for number, (x, y) in enumerate(DataLoader(data, batch_size=config.data.batch_size)):
            (nn.functional.mse_loss(model(x), y) / several).backward()
            if (number + 1) % several == 0:
                optimizer.step()
                optimizer.zero_grad()
                torch.save(model.state_dict(), "checkpoint.pt")


if __name__ == "__main__":
    main()
