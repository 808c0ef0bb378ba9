"""A byte-level transformer, sharded over all ranks with FSDP2, with a loop written by hand.

torchrun --standalone --nproc-per-node 2 fsdp2.py --micro-batch 4
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

DTYPES = {"fp32": None, "bf16": torch.bfloat16}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width=96, heads=4, layers=3, length=64):
        super().__init__()
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Bytes(Dataset):
    """Source text of torch, byte by byte, cut into samples of equal length."""

    def __init__(self, length=64):
        files = sorted(Path(torch.__file__).parent.glob("*.py"))
        text = bytearray(b"".join(file.read_bytes() for file in files))
        self.samples = torch.frombuffer(
            text[: len(text) // (length + 1) * (length + 1)], dtype=torch.uint8
        )
        self.samples = self.samples.view(-1, length + 1)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index].long()
        return sample[:-1], sample[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--precision", default="fp32", choices=sorted(DTYPES))
    parser.add_argument(
        "--keep-parameters", action="store_true", help="between forward and backward"
    )
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--checkpoint", default="fsdp2.pt")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh("cuda" if cuda else "cpu", (dist.get_world_size(),))
    torch.manual_seed(0)

    model = Transformer().to(mesh.device_type)
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.precision], reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(
            block, mesh=mesh, mp_policy=policy, reshard_after_forward=not args.keep_parameters
        )
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    data = Bytes()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, drop_last=True)
    step = micro_step = 0
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for ids, targets in loader:
            micro_step += 1
            last = micro_step % args.accumulate == 0
            model.set_requires_gradient_sync(last)
            logits = model(ids.to(mesh.device_type)).float()
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.to(mesh.device_type).flatten()
            )
            (loss / args.accumulate).backward()
            if not last:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == args.steps:
                state = get_model_state_dict(model)
                if dist.get_rank() == 0:
                    torch.save(state, args.checkpoint)
                dist.destroy_process_group()
                return


if __name__ == "__main__":
    main()
