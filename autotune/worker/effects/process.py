"""Settings of a whole rank: threads, processors, environment, garbage collection.

A rank is bound to processors near its device, or to a share of its own.
"""

import contextlib
import ctypes
import functools
import gc
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from autotune.worker.cgroup import usable_cpus
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
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_PER_COLLECTIVE = (2, 24)
_UNSET = (_AUTO, 0)
"""Values with which a knob sets no variable: the library decides."""
EXPANDABLE = "expandable_segments:True"

VARIABLES_OF: Mapping[str, tuple[str, ...]] = {
    "nccl_algo": ("NCCL_ALGO",),
    "nccl_proto": ("NCCL_PROTO",),
    "nccl_channels": ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    "nccl_ctas": ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    "nccl_registration": ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",),
    "cuda_connections": ("CUDA_DEVICE_MAX_CONNECTIONS",),
    "expandable_segments": (ALLOCATOR[0],),
}
"""Knob -> variables of the environment that `environment` sets for it."""
VARIABLES = tuple(name for names in VARIABLES_OF.values() for name in names)
"""Variables that `environment` may set."""
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_PROCESSORS = Path("/sys/devices/system/cpu")
_ADDRESS_BYTES = 32
COLLECTING_STEPS = 50
"""Steps from one collection of garbage to the next: torchtitan's `training.gc_freq`."""
_YOUNG, _ALL = 1, 2
"""Generation up to which garbage is collected then, as in torchtitan; that of all garbage."""
ALL_COLLECTING_STEPS = 20 * COLLECTING_STEPS
"""Steps from one collection of all garbage to the next: of what has outlived a collection, too."""


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
    """Return the variables of these knobs, which NCCL, CUDA and its allocator read when they start.

    Args:
        nccl: version that reads them; None: that of this process.
    """
    found: dict[str, str] = {}
    for name, variables in VARIABLES_OF.items():
        if knobs[name] not in _UNSET:
            found |= dict.fromkeys(variables, _spelt(name, knobs[name], nccl))
    return found


def _spelt(name: str, value: Any, nccl: tuple[int, ...] | None) -> str:
    """Return the text of a variable that says this value of a knob."""
    if name == "nccl_algo":
        return _algorithm(value, nccl or _nccl())
    if name == "expandable_segments":
        return EXPANDABLE
    return str(int(value)) if isinstance(value, bool) else str(value)


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
        _set_allocator(settings)


def _set_allocator(settings: str) -> None:
    """Set the CUDA allocator by its newer name where torch has it, as the older one warns there."""
    now: Any = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (now or torch.cuda.memory._set_allocator_settings)(settings)


def allocator_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the allocator's variable with expandable_segments and an environment's other settings."""
    said = ",".join(environment.get(name, "") for name in ALLOCATOR).split(",")
    others = [part for part in said if part and not part.startswith("expandable_segments")]
    return {ALLOCATOR[0]: ",".join([*others, EXPANDABLE])}


def compile_workers(knobs: Knobs, ranks: int) -> None:
    """Limit a rank's compile workers to its share of the node's processors (compile).

    By itself torch starts as many workers as there are processors, in every rank.

    Args:
        ranks: number of the trial's ranks on this node.
    """
    if knobs["compile"] == "none" or "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return
    from torch._inductor import config  # takes a second, which trials that compile take anyway

    config.compile_threads = max(1, usable_cpus() // ranks)


def garbage_collection(knobs: Knobs, step: int) -> None:
    """Freeze what is there before the first step, and collect garbage at few steps (freeze_gc).

    Reference counts free almost everything else. Ranks collect at the same steps, so that none waits
    for another. Processes that are forked later, as loader workers are, take no steps: Python collects
    there.

    Args:
        step: number of the step that is about to begin, from 0.
    """
    if not knobs["freeze_gc"]:
        return
    if not step:
        _collect_in_children()
        gc.collect()
        gc.freeze()
        gc.disable()
    elif not step % COLLECTING_STEPS:
        gc.collect(_YOUNG if step % ALL_COLLECTING_STEPS else _ALL)


@functools.cache
def _collect_in_children() -> None:
    """Have Python collect garbage in the processes that this one forks from now on."""
    os.register_at_fork(after_in_child=gc.enable)


def near_device(knobs: Knobs, device: torch.device) -> None:
    """Bind this process to the processors of its device's NUMA node (numa_binding).

    Raises:
        ValueError: they are not known, or none of them may be used.
    """
    if knobs["numa_binding"]:
        bind(pci_address(device.index))


def bind(address: str, devices: Path = _PCI_DEVICES) -> None:
    """Bind all threads of this process, and those to come, to processors near a PCI device.

    Args:
        address: of the device, as in 0000:3b:00.0.
        devices: folder in which Linux describes them.

    Raises:
        ValueError: they are not known, or none of them may be used.
    """
    source = devices / address / "local_cpulist"
    try:
        listed = source.read_text()
    except OSError as error:
        raise ValueError(f"numa_binding: no processors are known to be near: {error}") from error
    near = _numbers(listed) & os.sched_getaffinity(0)
    if not near:
        raise ValueError(
            f"numa_binding: none of the processors near the device ({listed.strip()}) may be used here"
        )
    _bind_threads(near)


def own_share(knobs: Knobs, local_rank: int, ranks: int) -> None:
    """Bind this process and its children to its rank's share of the node's processors (cpu_affinity).

    They are divided evenly among the ranks, in the order of sockets and cores. Where there are
    fewer than ranks, the system goes on scheduling them.

    Args:
        local_rank: of this process, from 0.
        ranks: of its training on this node.
    """
    if knobs["cpu_affinity"] != "share":
        return
    usable = in_order(os.sched_getaffinity(0))
    if each := len(usable) // ranks:
        _bind_threads(set(usable[local_rank * each : (local_rank + 1) * each]))


def share_of_job(knobs: Knobs) -> bool:
    """Bind a rank of the user's own job to its share; return whether that was possible.

    It is not where the launcher sets no rank, or has bound the rank to processors already.
    """
    local_rank, ranks = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if not (local_rank.isdecimal() and ranks.isdecimal() and int(local_rank) < int(ranks)):
        return False
    if os.sched_getaffinity(os.getppid()) != os.sched_getaffinity(0):
        return False
    own_share(knobs, int(local_rank), int(ranks))
    return True


def in_order(numbers: Iterable[int], processors: Path = _PROCESSORS) -> list[int]:
    """Sort processors by socket, die, core and number.

    Args:
        processors: folder in which Linux describes them; a missing value counts as 0.
    """

    def level_of(number: int, what: str) -> int:
        try:
            return int((processors / f"cpu{number}" / "topology" / what).read_text())
        except (OSError, ValueError):
            return 0

    levels = ("physical_package_id", "die_id", "core_id")
    return sorted(numbers, key=lambda n: (*(level_of(n, level) for level in levels), n))


def _bind_threads(numbers: set[int]) -> None:
    """Bind all threads of this process, and those to come, to some processors."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), numbers)


def _numbers(listed: str) -> set[int]:
    """Parse a list as in 0-3,8,10-11."""
    found: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def pci_address(ordinal: int) -> str:
    """Return the PCI address of a visible device, by the driver, as older versions of torch lack it.

    Raises:
        ValueError: the driver does not know it.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_int()
    address = ctypes.create_string_buffer(_ADDRESS_BYTES)
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(handle), ordinal)
        or driver.cuDeviceGetPCIBusId(address, _ADDRESS_BYTES, handle)
    )
    if failed:
        raise ValueError(f"numa_binding: CUDA does not tell where device {ordinal} is ({failed})")
    return address.value.decode().lower()
