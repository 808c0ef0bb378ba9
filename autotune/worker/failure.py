"""Classify ends of ranks: by exit status, by exception, and by which of them explains the others."""

import contextlib
import dataclasses
import errno
import os
import signal
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from autotune.worker.protocol import Outcome, RankEnd

_OOM_KILL_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))

# A rank that runs out of memory or crashes makes its peers raise: their errors are symptoms. A hang is
# recorded only while no rank has failed; later errors come from the signal that dumps the stacks.
_SEVERITY = (Outcome.OOM, Outcome.HANG, Outcome.CRASH, Outcome.ERROR)

_SYMPTOMS = (Outcome.CRASH, Outcome.ERROR)

_BUSY = "cuda-capable device(s) is/are busy or unavailable"
"""So says a sound device, too, that admits one process at a time (EXCLUSIVE_PROCESS)."""
_BROKEN_DEVICE = (
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "no cuda-capable device is detected",
    _BUSY,
    "system not yet initialized",
    "gpu is lost",
)
"""Messages of CUDA and NVML for a broken device.

cudaGetErrorString gives the first of them for errors 214, 220, 100, 46 and 802.
"""
_SHARED_TENSOR = "</torch_"
"""Beginning of the name of a tensor in shared memory, as torch quotes it."""
_OOM_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",  # cuBLAS, cuDNN, cuSOLVER
    "cublas_status_not_initialized",  # cublasCreate, if no memory is left for its workspace
    "failed to cuda calloc",  # NCCL
    "bad_alloc",
)


_LOST_PEER = (
    "connection closed by",  # gloo, NCCL
    "connection reset by peer",
    "connection refused",
    "connection was likely closed",  # the store
    "broken pipe",
    "ncclremoteerror",
    "communicator was aborted",
)
"""Messages of a rank whose peer has gone."""


def may_follow_from_end(end: RankEnd) -> bool:
    """Return whether this end may be a consequence of ending other ranks of the trial."""
    return end.outcome in _SYMPTOMS


def broken_device(end: RankEnd, *, shared: bool) -> str:
    """Describe the failure of a rank's CUDA device; return an empty text if its end shows none.

    No configuration causes such a failure, and the device cannot be measured on until it is
    repaired.

    Args:
        end: of the rank.
        shared: whether other processes of a study use the device as well.
    """
    known = [words for words in _BROKEN_DEVICE if not (shared and words == _BUSY)]
    text = f"{end.cause}\n{end.log_tail}" if end.outcome is Outcome.CRASH else end.cause
    if end.outcome not in _SYMPTOMS:
        return ""
    lines = text.splitlines()
    line = next((ln for ln in lines if any(words in ln.lower() for words in known)), "")
    return f"a device has failed: rank {end.rank}: {line.strip()}" if line else ""


def lacks_shared_memory(cause: str) -> bool:
    """Return whether a failure says that no room was left for tensors in /dev/shm."""
    return _SHARED_TENSOR in cause and os.strerror(errno.ENOSPC) in cause


def advice(cause: str) -> str:
    """Return what to do about a failure, to be put behind its cause; empty if that is not known."""
    if not lacks_shared_memory(cause):
        return ""
    return (
        "; /dev/shm has no room for the batches of loader workers: start the container with more of it "
        "(--shm-size)"
    )


def outcome_of_exit(status: int, log_tail: str, *, kernel_killed: bool) -> tuple[Outcome, str]:
    """Return OOM or CRASH with its cause, by the exit status of a rank that reported nothing.

    Args:
        status: exit code, negative for a signal.
        log_tail: the last lines that the rank printed.
        kernel_killed: the kernel's out-of-memory killer was at work during the trial.
    """
    if status >= 0:
        return Outcome.CRASH, f"exited with status {status} in mid training"
    name = _signal_name(-status)
    if -status == signal.SIGKILL and kernel_killed:
        return Outcome.OOM, "killed by the kernel's out-of-memory killer"
    if -status == signal.SIGABRT and "bad_alloc" in log_tail:
        return Outcome.OOM, "host memory ran out (std::bad_alloc)"
    return Outcome.CRASH, f"died by {name}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal has no name


def kernel_oom_kills() -> int:
    """Return the number of kills by the kernel's out-of-memory killer so far, by its own counters."""
    for path in _OOM_KILL_COUNTERS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def cause(ends: Sequence[RankEnd]) -> RankEnd | None:
    """Return the end that explains the others; None if all went well.

    It is the gravest one; of errors, one that is no lost connection; of hung ranks, the one that the
    others wait for; then the first, by clocks that differ between nodes.
    """
    failed = [end for end in ends if end.outcome is not None]
    first = min(failed, key=_gravity, default=None)
    if first is None:
        return None
    parts = [first.cause]
    parts += ["its process is stopped"] if first.stopped else []
    parts += ["the others wait for it"] if any(e.progress > first.progress for e in failed) else []
    return dataclasses.replace(first, cause="; ".join(parts))


def _gravity(end: RankEnd) -> tuple[int, bool, int, float]:
    assert end.outcome is not None
    follows = end.outcome is Outcome.ERROR and any(w in end.cause.lower() for w in _LOST_PEER)
    return _SEVERITY.index(end.outcome), follows, end.progress, end.at


_NOT_THEIRS = (
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    Path(__file__).parents[1],
)
"""Folders of libraries, and of this package."""


def outcome_of_error(error: BaseException) -> Outcome:
    """Return OOM or ERROR for an exception of a rank."""
    import torch  # here: an agent does without it

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Outcome.OOM
    if not isinstance(error, RuntimeError | OSError):
        return Outcome.ERROR
    text = message_of(error).lower()
    return Outcome.OOM if any(phrase in text for phrase in _OOM_PHRASES) else Outcome.ERROR


def message_of(error: BaseException) -> str:
    """Return the message of an exception in one line; empty if it cannot be formatted."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return ""


def location_of(error: BaseException) -> str:
    """Return file, line and function of the user's code that raised an exception.

    The text is empty if only libraries had a part in it.
    """
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        if _is_own(file):
            found = f"{_from_here(file)}:{line}, in {frame.f_code.co_name}"
    return found


def _from_here(file: Path) -> Path:
    with contextlib.suppress(OSError, ValueError):  # the working directory is gone, or another one
        return file.relative_to(Path.cwd())
    return file


def _is_own(file: Path) -> bool:
    return file.is_absolute() and not any(map(file.is_relative_to, _NOT_THEIRS))
