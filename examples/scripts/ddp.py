"""An image classifier under DistributedDataParallel, with a loop written by hand.

torchrun --standalone --nproc-per-node 2 ddp.py --batch-size 8
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--warmup-steps", type=int, default=100)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=2500)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def build_model(width=32, classes=10):
    layers, channels = [], 3
    for factor in (1, 2, 4):
        layers += [nn.Conv2d(channels, factor * width, 3, stride=2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(factor * width), nn.ReLU()]
        channels = factor * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def images(count, seed):
    """Stand-ins for pictures, which a linear model tells apart."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 3, 32, 32, generator=generator)
    return TensorDataset(pixels, (pixels[:, 0, :8, :8].sum((1, 2)) > 0).long())


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = torch.zeros(2, device=device)
    for pixels, labels in loader:
        found = model(pixels.to(device)).argmax(1)
        right += torch.tensor([(found == labels.to(device)).sum(), len(labels)], device=device)
    dist.all_reduce(right)
    model.train()
    return (right[0] / right[1]).item()


def main():
    args = parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)

    data = images(4096, seed=1)
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True
    )
    held_out = images(256, seed=2)
    held_out_loader = DataLoader(held_out, 64, sampler=DistributedSampler(held_out))

    model = build_model().to(device)
    model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    warmup = lambda step: min(1.0, (step + 1) / args.warmup_steps)  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)

    step = epoch = 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for number, (pixels, labels) in enumerate(loader, start=1):
            last = number % args.grad_accum == 0
            with nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(pixels.to(device)), labels.to(device))
                (loss / args.grad_accum).backward()
            if not last:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % args.eval_every == 0:
                accuracy = evaluate(model, held_out_loader, device)
                if dist.get_rank() == 0:
                    print(
                        f"step {step}: loss {loss.item():.3f}, accuracy {accuracy:.3f}", flush=True
                    )
            if step % args.save_every == 0 and dist.get_rank() == 0:
                args.output.mkdir(parents=True, exist_ok=True)
                torch.save(model.module.state_dict(), args.output / f"{step}.pt")
            if step >= args.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
