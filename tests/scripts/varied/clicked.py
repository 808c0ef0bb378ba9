"""click, an iterable data set, two models with an optimizer each; no main guard, no DDP."""

import click
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(8), torch.randn(1)


@click.command()
@click.option("--bs", default=6)
@click.option("--eval-batch-size", default=4)
@click.option("--amp/--no-amp", default=False)
def main(bs, eval_batch_size, amp):
    generator = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    critic = nn.Linear(1, 1)
    first = torch.optim.SGD(generator.parameters(), lr=0.1)
    second = torch.optim.Adam(critic.parameters())
    for x, y in DataLoader(Stream(), batch_size=bs):
        nn.functional.mse_loss(generator(x), y).backward()
        first.step()
        first.zero_grad()
        critic(generator(x).detach()).mean().backward()
        second.step()
        second.zero_grad()


main()
