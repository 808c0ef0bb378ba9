"""Classification of an exception that a rank has raised: outcome, text and origin."""

import contextlib
import sysconfig
import traceback
from pathlib import Path

import torch

from autotune.worker.protocol import Outcome

_OOM_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",  # cuBLAS, cuDNN, cuSOLVER
    "cublas_status_not_initialized",  # cublasCreate, if no memory is left for its workspace
    "failed to cuda calloc",  # NCCL
    "bad_alloc",
)
_NOT_THEIRS = (
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    Path(__file__).parents[2],
)
"""Folders of libraries, and of this package."""


def outcome_of(error: BaseException) -> Outcome:
    """Return OOM or ERROR for an exception of a rank."""
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
