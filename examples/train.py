"""A plain data-parallel training script that takes its settings from best.yaml.

    torchrun --standalone --nproc-per-node 2 examples/train.py --config best.yaml

Nothing here is autotune's but the model, the data, and `autotune.load`: this is what a training job
looks like that uses what was found.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import autotune
from autotune.workloads import gpt

SIZE = {"layers": 2, "d_model": 128, "heads": 4, "length": 64}  # as in quickstart.yaml
APPLIED = (
    "micro_batch",
    "accumulation_steps",
    "precision",
    "log_interval",
    "pin_memory",
    "qkv_streams",
)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", required=True, help="best.yaml of a study")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to train")
    parser.add_argument("--json", action="store_true", help="print the throughput as JSON")
    arguments = parser.parse_args()

    config = autotune.load(arguments.config)
    if lost := config.lost_without(*APPLIED):
        raise SystemExit(f"{arguments.config}: this script does not apply {lost}")
    device = set_up()
    if dist.get_world_size() != config.world_size and dist.get_rank() == 0:
        print(f"note: found with {config.world_size} ranks, running {dist.get_world_size()}")
    samples, seconds, loss = train(config, device, arguments.seconds)
    if dist.get_rank() == 0:
        rate = samples / seconds
        if arguments.json:
            print(json.dumps({"samples_per_second": rate, "seconds": seconds, "loss": loss}))
        else:
            print(f"{rate:,.0f} samples/s over {seconds:.1f} s, loss {loss:.3f}")
    dist.barrier()
    dist.destroy_process_group()


def set_up() -> torch.device:
    """Join the group that torchrun prepared; returns this rank's device."""
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def train(
    config: autotune.BestConfig, device: torch.device, seconds: float
) -> tuple[int, float, float]:
    """Train for so long after a short warm-up; returns samples over all ranks, seconds, loss."""
    torch.set_float32_matmul_precision("high" if config["precision"] == "tf32" else "highest")
    workload = gpt.build(**SIZE)
    if config["precision"] == "pure_bf16":
        workload.model.to(torch.bfloat16)
    for module in workload.model.modules():
        if hasattr(module, "qkv_streams"):
            module.qkv_streams = config["qkv_streams"]
    model = DistributedDataParallel(
        workload.model.to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
        **config.ddp_arguments(),
    )
    optimizer = workload.optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=config["precision"] == "fp16")
    dtype = AUTOCAST.get(config["precision"])
    batches = endless_batches(workload.dataset, config, device)
    accumulation = config["accumulation_steps"]
    per_step = config["micro_batch"] * accumulation * dist.get_world_size()

    def step() -> torch.Tensor:
        for micro_batch in range(accumulation):
            last = micro_batch == accumulation - 1
            with nullcontext() if last else model.no_sync():
                with torch.autocast(device.type, dtype=dtype) if dtype else nullcontext():
                    loss = workload.loss(model, next(batches))
                scaler.scale(loss / accumulation).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    for _ in range(5):
        float(step())
    steps, last_loss = 0, float("nan")
    dist.barrier()
    started = time.perf_counter()
    while not everyone_done(time.perf_counter() - started > seconds):
        for _ in range(config["log_interval"]):
            loss = step()
            steps += 1
        last_loss = float(loss)
    return steps * per_step, time.perf_counter() - started, last_loss


def endless_batches(
    dataset: torch.utils.data.Dataset, config: autotune.BestConfig, device: torch.device
) -> Iterator[torch.Tensor]:
    """Batches of epoch after epoch, on the device."""
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    loader = DataLoader(
        dataset,
        config["micro_batch"],
        sampler=sampler,
        drop_last=True,
        pin_memory=config["pin_memory"],
    )
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for batch in loader:
            yield batch.to(device, non_blocking=True)
        epoch += 1


def everyone_done(done: bool) -> bool:
    """The same answer on all ranks: theirs may differ by a step."""
    flag = torch.tensor(float(done), device="cuda" if torch.cuda.is_available() else "cpu")
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


if __name__ == "__main__":
    main()
