"""One trial as a script under torchrun, for overhead.py: the same loop, the same blocks.

Prints the seconds spent inside training steps.
"""

import json
import os
import sys

import torch
import torch.distributed as dist

from autotune.trial import workload
from autotune.trial.protocol import BlockPlan, TrialRequest
from autotune.trial.rank.blocks import run_blocks
from autotune.trial.rank.context import RankContext
from autotune.trial.rank.loop import TrainingLoop
from search_spaces import defaults


def main() -> None:
    device = torch.device(sys.argv[3])
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    torch.set_num_threads(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    wanted = json.loads(sys.argv[1])
    request = TrialRequest(
        trial="torchrun",
        factory=f"autotune.workloads.{wanted['name']}:build",
        args=wanted["args"],
        knobs=defaults(),
        world_size=world_size,
        seed=0,
        device=device.type,
        blocks=BlockPlan(seconds=0.1, min_steps=2, max_blocks=int(sys.argv[2])),
    )
    context = RankContext(rank, rank, world_size, (device,))
    seconds = []
    built = workload.build(request.factory, request.args)
    loop = TrainingLoop(built, request, context, lambda: None)
    loop.take(run_blocks(loop, request, context, lambda block: seconds.append(block.seconds)))
    dist.barrier()
    if rank == 0:
        print(sum(seconds), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
