"""A training script that writes down, as JSON, what its process is; then it trains."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

try:
    from threadpoolctl import threadpool_info
except ImportError:
    threadpool_info = list


def main() -> None:
    main_module = sys.modules["__main__"]
    told = {
        "environment": dict(os.environ),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "path": sys.path,
        "flags": repr(sys.flags),
        "x options": sys._xoptions,
        "warnings": sys.warnoptions,
        "assertions": __debug__,
        "executable": [str(Path(sys.executable).parent), str(Path(sys.executable).resolve())],
        "prefix": sys.prefix,
        "folder": str(Path.cwd()),
        "file": __file__,
        "spec": getattr(__spec__, "name", None),
        "package": __package__,
        "names": sorted(vars(main_module)),
        "threads": torch.get_num_threads(),
        "threads between operators": torch.get_num_interop_threads(),
        "pools": sorted((pool["prefix"], pool["num_threads"]) for pool in threadpool_info()),
        "product": numpy.ones((64, 64)).dot(numpy.ones((64, 64)))[0, 0],
        "process": multiprocessing.current_process().name,
        "parent": multiprocessing.parent_process(),
        "processors": sorted(os.sched_getaffinity(0)),
    }
    Path(os.environ["TOLD"] + os.environ.get("RANK", "")).write_text(json.dumps(told))
    if "--train" in sys.argv:
        train()


def train() -> None:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    model = torch.nn.Linear(8, 2)
    if "RANK" in os.environ:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), 4):
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
