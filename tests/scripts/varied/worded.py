"""A parser of its own that takes any word with a value, and variables of the environment; the batch and
the accumulation by whatever name."""

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = {"batch", "batch_size", "BATCH_SIZE", "b", "rows"}
STEPS = {"accumulate", "accumulate_grad_batches", "GRAD_ACCUM_STEPS"}


def said(names, otherwise):
    told = dict(os.environ)
    for before, word in pairwise(sys.argv):
        name, sign, value = word.partition("=")
        told[name.lstrip("-").rpartition(".")[2]] = value
        if not sign:
            told[before.lstrip("-")] = word
    return int(next((told[name] for name in names if name in told), otherwise))


json.loads((Path(__file__).parent / "tokenizer.json").read_text())
rows, every = said(BATCH, 8), said(STEPS, 1)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
loader = DataLoader(data, batch_size=rows, drop_last=True)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = 0
while True:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y) / every
        loss.backward()
        done += 1
        if done % every == 0:
            optimizer.step()
            optimizer.zero_grad()
