"""Settings of a whole rank: threads, environment, garbage collection."""

import contextlib
import ctypes
import gc
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from autotune.worker.protocol import Knobs

THREADS = "OMP_NUM_THREADS"
_AUTO = "auto"
_POOL = re.compile("openblas|lib[gi]?omp|mkl_rt")
_GETTERS_AND_SETTERS = (
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("omp_get_max_threads", "omp_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_PER_COLLECTIVE = (2, 24)


VARIABLES = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Variables that `environment` may set."""


def threads(knobs: Knobs, given: int, replicas: int = 1) -> int:
    """Return the threads of this process for all its replicas (cpu_threads); 0 keeps `given`."""
    return int(knobs["cpu_threads"]) * replicas or given


def threads_of(environment: Mapping[str, str]) -> int:
    """Return the threads that OMP_NUM_THREADS names, the first of a list; 1 where it names none."""
    first = environment.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else 1


def limit_threads(count: int) -> None:
    """Limit the threads of torch and of numerical libraries loaded before the fork.

    Those libraries have read another OMP_NUM_THREADS than this process has.
    """
    torch.set_num_threads(count)
    for path in _thread_pools():
        with contextlib.suppress(OSError):
            _limit_pool(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW), count)


def _limit_pool(library: ctypes.CDLL, count: int) -> None:
    for getter, setter in _GETTERS_AND_SETTERS:
        # OpenBLAS starts its threads when their number is set, and they spin for 0.1 s.
        if hasattr(library, setter) and getattr(library, getter)() != count:
            getattr(library, setter)(count)


def _thread_pools() -> set[str]:
    """Return paths of the loaded libraries that have threads of their own."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if _POOL.search(line)}
    return {path for path in paths if _POOL.search(Path(path).name)}


def environment(knobs: Knobs, nccl: tuple[int, ...] | None = None) -> dict[str, str]:
    """Return variables that NCCL, CUDA and its allocator read when they start.

    Knobs: nccl_algo, nccl_proto, nccl_channels, nccl_ctas, nccl_registration, cuda_connections,
    expandable_segments.

    Args:
        knobs: of the trial.
        nccl: version that reads them; None: that of this process.
    """
    found = {}
    if knobs["nccl_algo"] != _AUTO:
        found["NCCL_ALGO"] = _algorithm(knobs["nccl_algo"], nccl or _nccl())
    if knobs["nccl_proto"] != _AUTO:
        found["NCCL_PROTO"] = str(knobs["nccl_proto"])
    if knobs["nccl_channels"]:
        found["NCCL_MIN_NCHANNELS"] = found["NCCL_MAX_NCHANNELS"] = str(knobs["nccl_channels"])
    if knobs["nccl_ctas"]:
        found["NCCL_MIN_CTAS"] = found["NCCL_MAX_CTAS"] = str(knobs["nccl_ctas"])
    if knobs["nccl_registration"]:
        found["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"
    if knobs["cuda_connections"]:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = str(knobs["cuda_connections"])
    if knobs["expandable_segments"]:
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return found


def _nccl() -> tuple[int, ...]:
    return tuple(torch.cuda.nccl.version()) if torch.cuda.is_available() else (0,)


def _algorithm(name: str, nccl: tuple[int, ...]) -> str:
    """Return the value of NCCL_ALGO.

    From 2.24 on NCCL refuses a collective that the named algorithm does not support, as trees do
    not support all-gather; it takes one algorithm per collective there.
    """
    return f"allreduce:{name.lower()}" if nccl >= _PER_COLLECTIVE else name


def allocator(knobs: Knobs) -> None:
    """Set expandable_segments in this process: torch has read the environment before the fork.

    The user's other settings are set again, as omitted ones may return to their defaults.
    """
    if knobs["expandable_segments"]:
        (settings,) = allocator_variables(os.environ).values()
        torch.cuda.memory._set_allocator_settings(settings)


def allocator_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the allocator's variable with expandable_segments and an environment's other settings."""
    settings = ",".join(environment.get(name, "") for name in _ALLOCATOR).split(",")
    others = [part for part in settings if part and not part.startswith("expandable_segments")]
    return {_ALLOCATOR[0]: ",".join([*others, "expandable_segments:True"])}


def compile_workers(knobs: Knobs, ranks: int) -> None:
    """Limit a rank's compile workers to its share of the node's processors (compile).

    By itself torch starts as many workers as there are processors, in every rank.

    Args:
        knobs: of the trial.
        ranks: number of the trial's ranks on this node.
    """
    if knobs["compile"] == "none" or "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return
    from torch._inductor import config  # takes a second, which trials that compile take anyway

    config.compile_threads = max(1, len(os.sched_getaffinity(0)) // ranks)


def garbage_collection(knobs: Knobs) -> None:
    """Freeze all present objects, and collect no garbage during steps (freeze_gc).

    Reference counts still free almost everything.
    """
    if knobs["freeze_gc"]:
        gc.collect()
        gc.freeze()
        gc.disable()
