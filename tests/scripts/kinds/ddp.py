"""The model in DistributedDataParallel."""

import tiny
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

args = tiny.arguments()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = tiny.Transformer()
sampler = DistributedSampler(tiny.Images())
tiny.train(DistributedDataParallel(model), tiny.loader(args.batch_size, sampler), args.steps)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
