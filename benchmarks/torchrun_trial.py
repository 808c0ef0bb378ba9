"""One trial as a script under torchrun, for overhead.py and live_search.py: the same loop and blocks.

    torchrun ... torchrun_trial.py JSON BLOCKS DEVICE

Prints the seconds of each block and its samples.
"""

import json
import os
import sys

import torch
import torch.distributed as dist

from autotune.worker import workload
from autotune.worker.protocol import BlockPlan, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.training import run_blocks
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
        factory=wanted["factory"],
        args=wanted["args"],
        knobs={**defaults(), **wanted.get("knobs", {})},
        world_size=world_size,
        seed=0,
        device=device.type,
        blocks=BlockPlan(seconds=0.1, min_steps=2, max_blocks=int(sys.argv[2])),
    )
    context = RankContext(rank, rank, world_size, (device,))
    blocks = []
    built = workload.build(request.factory, request.args)
    loop = TrainingLoop(built, request, context, lambda: None)
    loop.take(run_blocks(loop, request, context, blocks.append))
    dist.barrier()
    if rank == 0:
        print(json.dumps([[block.seconds, block.samples] for block in blocks]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
