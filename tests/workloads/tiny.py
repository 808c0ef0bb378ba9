"""A linear regression that trains in microseconds; `trouble` makes one rank misbehave on purpose."""

import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import autotune


def _raise():
    raise ValueError("planted error")


def _start_escaping_grandchild():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    return subprocess.Popen(
        [sys.executable, "-c", code, "escaping-grandchild"], start_new_session=True
    )


def _exhaust_memory():
    return [torch.ones(1 << 26) for _ in range(1000)]


TROUBLE = {
    "raise": _raise,
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "oom": _exhaust_memory,
    "hang": lambda: time.sleep(600),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "grandchild": _start_escaping_grandchild,
    "grandchild that is waited for": lambda: _start_escaping_grandchild().wait(),
}


def build(*, trouble="", rank=1, at=5, above=0, sleep=0.0, slow_rank=None, compiled=False):
    """Build it.

    Args:
        trouble: what goes wrong, a key of TROUBLE or 'nan'; '' for nothing.
        rank: on which rank.
        at: with which forward pass.
        above: only for batches of more samples than this.
        sleep: seconds per forward pass.
        slow_rank: only this one sleeps.
        compiled: the loss goes through torch.compile.
    """
    passes = 0
    data = torch.utils.data.TensorDataset(torch.randn(1024, 16), torch.randn(1024, 1))

    def squared(found, wanted):
        return ((found - wanted) ** 2).mean()

    if compiled:
        squared = torch.compile(squared, backend="eager")

    def loss(model, batch):
        nonlocal passes
        passes += 1
        if sleep and slow_rank in (None, dist.get_rank()):
            time.sleep(sleep)
        value = squared(model(batch[0]), batch[1])
        unlucky = passes >= at and dist.get_rank() == rank and len(batch[0]) > above
        if trouble == "nan" and unlucky:
            return value * float("nan")
        if trouble in TROUBLE and unlucky and (passes == at or above):
            TROUBLE[trouble]()
        return value

    return autotune.Workload(
        model=nn.Linear(16, 1),
        dataset=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
