"""A job that starts its ranks by itself, as no launcher of ours would: a classifier under
DistributedDataParallel, one process per rank by torch.multiprocessing.

python spawned.py --ranks 2 --batch-size 8 --metrics metrics.jsonl
"""

import argparse
import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--log-every", type=int, default=5)
    parser.add_argument("--metrics", type=Path, default=Path("metrics.jsonl"))
    return parser.parse_args()


def train(rank, args, meeting):
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    began = time.perf_counter()
    for step in range(1, args.steps + 1):
        for part in range(args.grad_accum):
            x = torch.randn(args.batch_size, 64, generator=generator)
            y = (x[:, :5].sum(1) > 0).long()
            with model.no_sync() if part + 1 < args.grad_accum else nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
                (loss / args.grad_accum).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % args.log_every == 0:
            now = time.perf_counter()
            done = args.log_every * args.grad_accum * args.batch_size * args.ranks
            line = {"step": step, "samples": done, "seconds": now - began, "loss": loss.item()}
            with args.metrics.open("a") as file:
                file.write(json.dumps(line) + "\n")
            began = now


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (args, f"{folder}/meeting"), nprocs=args.ranks)


if __name__ == "__main__":
    main()
