"""Workloads that look around, or misbehave in ways of their own."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import threadpoolctl
import tiny
import torch
import torch.distributed as dist
import torch.multiprocessing

import autotune


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("this error has no text")


class StuckOutput:
    def flush(self):
        time.sleep(600)

    def write(self, text):
        pass


def _agent():
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def _stop_agent_and_raise():
    os.kill(_agent(), signal.SIGSTOP)
    raise ValueError("planted error")


def _raise_unprintable():
    raise Unprintable


def _start_nameless_grandchild():
    code = "import time; time.sleep(600)"
    subprocess.Popen(
        [sys.executable, "-c", code, os.environ["AUTOTUNE_TEST_RUN"]],
        env={},
        start_new_session=True,
    )


def _stick_at_the_end():
    sys.stdout = StuckOutput()


def _stop_agent_and_hang():
    os.kill(_agent(), signal.SIGSTOP)
    time.sleep(600)


def _print_much():
    for _ in range(64):
        sys.stdout.write("much\n" * (2**20 // 5))
    sys.stdout.write("much\n" * 1000)
    sys.stdout.flush()
    while not 2**19 < os.fstat(sys.stdout.fileno()).st_size <= 2**26:
        time.sleep(0.01)  # the log has not been cut yet, or its end is not written again
    print("and the last")


DEEDS = {
    "print much": _print_much,
    "stop agent, hang": _stop_agent_and_hang,
    "unprintable": _raise_unprintable,
    "realtime signal": lambda: os.kill(os.getpid(), 40),
    "kill fork server": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "stop agent, raise": _stop_agent_and_raise,
    "nameless grandchild": _start_nameless_grandchild,
    "stick at the end": _stick_at_the_end,
    "sys.exit": lambda: sys.exit(0),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(600),
    "error": lambda: 1 / 0,
}


def build(*, deed="", at=5, rank=1):
    """tiny, but this rank does the deed with that forward pass."""
    plain = tiny.build()
    passes = 0

    def loss(model, batch):
        nonlocal passes
        passes += 1
        if deed and passes == at and dist.get_rank() == rank:
            DEEDS[deed]()
        return plain.loss(model, batch)

    return dataclasses.replace(plain, loss=loss)


def talking(*, deed=""):
    """Prints a line as it starts, and does the deed on every rank, with the third forward pass."""
    print("hello from rank", dist.get_rank())
    print("a complaint", file=sys.stderr)
    plain = tiny.build()
    passes = 0

    def loss(model, batch):
        nonlocal passes
        passes += 1
        if deed and passes == 3:
            time.sleep(0.2)
            DEEDS[deed]()
        return plain.loss(model, batch)

    return dataclasses.replace(plain, loss=loss)


def looking(*, folder):
    """Writes down what a factory finds, and takes 7 tokens per sample."""
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "COLOUR"]
    seen = {
        "environment": {name: os.environ.get(name) for name in names},
        "of_srun": {n: v for n, v in os.environ.items() if n.startswith("SRUN_")},
        "group": [dist.get_rank(), dist.get_world_size(), dist.get_backend()],
        "workdir": str(Path.cwd()),
        "first_path": sys.path[0],
        "threads": torch.get_num_threads(),
        "pools": sorted({pool["num_threads"] for pool in threadpoolctl.threadpool_info()}),
        "processors": sorted(os.sched_getaffinity(0)),
        "draws": [random.random(), torch.rand(()).item()],
        "stdin": sys.stdin.read(),
    }
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(seen))
    return dataclasses.replace(tiny.build(), tokens_per_sample=7)


def hungry(*, megabytes):
    """Takes so much memory on rank 1, and keeps it."""
    if dist.get_rank() == 1:
        hungry.kept = torch.ones(megabytes * 2**20, dtype=torch.uint8)
    return tiny.build()


def big(*, text):
    """Needs a long argument to arrive whole."""
    assert text == "x" * len(text) and len(text) == 500_000
    return tiny.build()


def agreeing():
    """Sees to it that ranks train on different samples and step with the same gradients."""
    model = torch.nn.Linear(1, 1)

    def gathered(tensor):
        everywhere = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, tensor)
        return everywhere

    def loss(wrapped, batch):
        samples = torch.cat(gathered(batch))
        assert len(set(samples.flatten().tolist())) == samples.numel(), "a sample on two ranks"
        return (wrapped(batch) ** 2).mean()

    def optimizer(parameters):
        chosen = torch.optim.SGD(parameters, lr=1e-9)

        def compare(*_):
            for parameter in model.parameters():
                assert all(torch.equal(parameter.grad, other) for other in gathered(parameter.grad))
                assert all(torch.equal(parameter, other) for other in gathered(parameter.data))

        chosen.register_step_pre_hook(compare)
        return chosen

    data = [torch.tensor([float(number)]) for number in range(1000)]
    return autotune.Workload(model=model, dataset=data, loss=loss, optimizer=optimizer)


def one_sided():
    """Fails on rank 1 only, while the others go on to wait for it."""
    if dist.get_rank() == 1:
        raise ValueError("planted error")
    return tiny.build()


def stuck():
    """Never comes back; a file `stuck` says so."""
    Path("stuck").touch()
    time.sleep(600)


def relaxed():
    """Lets fp32 products run in TF32 by itself."""
    torch.backends.cuda.matmul.allow_tf32 = True
    return tiny.build()


def wrong_type():
    """Forgets to wrap the model."""
    return torch.nn.Linear(1, 1)


def tiny_set():
    """Has fewer samples than a step needs."""
    return dataclasses.replace(tiny.build(), dataset=[(torch.ones(16), torch.ones(1))])
