"""What an exception of a rank means, and where it was raised."""

import errno
import mmap
import os

import pytest
import torch

from autotune.worker import failure
from autotune.worker.protocol import Outcome


def exception_of(action) -> BaseException:
    with pytest.raises(BaseException) as caught:
        action()
    return caught.value


def out_of_host_memory():
    return torch.empty(2**60, dtype=torch.uint8)


def out_of_address_space():
    return mmap.mmap(-1, 2**62)


def too_long_a_list():
    return [0] * 2**60


@pytest.mark.parametrize("action", [out_of_host_memory, out_of_address_space, too_long_a_list])
def test_running_out_of_memory_for_real(action):
    assert failure.outcome_of_error(exception_of(action)) is Outcome.OOM


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        torch.distributed.DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:2058, unhandled cuda error, NCCL version 2.21.5\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
            "Failed to CUDA calloc 10485760 bytes"
        ),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("std::bad_alloc"),
        RuntimeError("NCCL error: unhandled cuda error. Cuda failure 2 'out of memory'"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("Unable to mmap 64 bytes from file <x>: Cannot allocate memory (12)"),
    ],
    ids=lambda error: str(error)[:40] or type(error).__name__,
)
def test_out_of_memory_in_all_its_words(error):
    assert failure.outcome_of_error(error) is Outcome.OOM


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory of what was said"),
        KeyError("out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "data.bin"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        AssertionError(),
        SystemExit(3),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_everything_else_is_an_error(error):
    assert failure.outcome_of_error(error) is Outcome.ERROR


def test_an_exception_without_text_is_an_error():
    class Unprintable(RuntimeError):
        def __str__(self):
            raise LookupError("no text")

    assert failure.outcome_of_error(Unprintable()) is Outcome.ERROR


def test_an_error_is_placed_in_the_users_own_code() -> None:
    def wrong() -> None:
        torch.zeros(2) @ torch.zeros(3)

    error = exception_of(wrong)
    line = wrong.__code__.co_firstlineno + 1
    assert failure.location_of(error).endswith(f"test_exceptions.py:{line}, in wrong")


def test_an_error_that_passed_through_libraries_alone_has_no_place() -> None:
    assert failure.location_of(ValueError("never raised")) == ""
    code = compile("import json; json.loads('{')", os.__file__, "exec")
    assert failure.location_of(exception_of_code(code)) == ""


def exception_of_code(code) -> BaseException:
    error = exception_of(lambda: exec(code))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # without this test's own frames
    return error
