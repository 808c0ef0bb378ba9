"""No parser: `--name=value` sets variables of the module. Batches without a loader, DDP, evaluation in
between, gradients accumulated over all ranks together."""

import sys
from ast import literal_eval

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

batch_size = 12
block_size = 16
gradient_accumulation_steps = 4 * 2
eval_interval = 2
for argument in sys.argv[1:]:
    key, value = argument[2:].split("=")
    globals()[key] = literal_eval(value)

dist.init_process_group("gloo")
gradient_accumulation_steps //= dist.get_world_size()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens, targets=None):
        logits = self.head(self.embedding(tokens))
        return logits, nn.functional.cross_entropy(logits.view(-1, 64), targets.view(-1))


model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False)


def get_batch():
    tokens = torch.randint(64, (batch_size, block_size))
    return tokens, tokens


@torch.no_grad()
def evaluate():
    for _ in range(3):
        model(*get_batch())


step = 0
while step < 1_000_000:
    if step % eval_interval == 0:
        evaluate()
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        _, loss = model(*get_batch())
        (loss / gradient_accumulation_steps).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
