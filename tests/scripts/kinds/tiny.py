"""A vision transformer of a few thousand parameters, on random images, and a loop around it."""

import argparse

import seen
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 16
WIDTH = 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        seen.block_runs()
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.between(x))


class Transformer(nn.Module):
    def __init__(self, outputs=CLASSES):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, images):
        x = self.stem(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Images(Dataset):
    def __init__(self, count=512):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 3, 16, 16, generator=generator)
        self.labels = torch.randint(0, CLASSES, (count,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1_000_000)
    return parser.parse_args()


def loader(batch_size, sampler=None):
    return DataLoader(Images(), batch_size, shuffle=sampler is None, sampler=sampler)


def train(model, batches, steps):
    """Train; return the bare model's checkpoint."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    taken = 0
    while True:
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            taken += 1
            if taken == steps:
                return
