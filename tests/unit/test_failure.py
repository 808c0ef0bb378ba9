"""What the end of a rank means: by its exception, by its exit status, and among other ranks."""

import errno
import mmap
import os
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.trial import failure
from autotune.trial.protocol import Outcome, RankEnd

# By exception


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
    assert failure.of_exception(exception_of(action)) is Outcome.OOM


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
    assert failure.of_exception(error) is Outcome.OOM


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
    assert failure.of_exception(error) is Outcome.ERROR


def test_an_exception_without_text_is_an_error():
    class Unprintable(RuntimeError):
        def __str__(self):
            raise LookupError("no text")

    assert failure.of_exception(Unprintable()) is Outcome.ERROR


# By exit status


@pytest.mark.parametrize("status", [0, 1, 3, 86, 255])
def test_an_exit_in_mid_training_is_a_crash(status):
    outcome, cause = failure.of_exit(status, "", kernel_killed=True)
    assert outcome is Outcome.CRASH
    assert str(status) in cause


def test_every_signal_is_a_crash_that_can_be_told():
    named = {number: number.name for number in signal.Signals}
    for number in sorted(signal.valid_signals()):
        outcome, cause = failure.of_exit(-number, "", kernel_killed=False)
        assert outcome is Outcome.CRASH
        assert named.get(number, str(int(number))) in cause


def test_the_kernels_killer_is_out_of_memory():
    assert failure.of_exit(-signal.SIGKILL, "", kernel_killed=True)[0] is Outcome.OOM
    assert failure.of_exit(-signal.SIGKILL, "", kernel_killed=False)[0] is Outcome.CRASH
    assert failure.of_exit(-signal.SIGSEGV, "", kernel_killed=True)[0] is Outcome.CRASH


def test_an_abort_for_want_of_memory_is_out_of_memory():
    tail = (
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what(): std::bad_alloc"
    )
    assert failure.of_exit(-signal.SIGABRT, tail, kernel_killed=False)[0] is Outcome.OOM
    assert failure.of_exit(-signal.SIGABRT, "free(): invalid", kernel_killed=False)[0] is (
        Outcome.CRASH
    )
    assert failure.of_exit(-signal.SIGSEGV, tail, kernel_killed=False)[0] is Outcome.CRASH


def test_the_kernels_counter_never_falls():
    first = failure.kernel_oom_kills()
    assert first >= 0
    assert failure.kernel_oom_kills() >= first


# Among other ranks


def ended(rank: int, outcome: Outcome | None) -> RankEnd:
    return RankEnd(rank, outcome, f"rank {rank}")


FAILURES = [Outcome.OOM, Outcome.CRASH, Outcome.HANG, Outcome.ERROR]


def test_without_failure_there_is_no_cause():
    assert failure.cause([]) is None
    assert failure.cause([ended(0, None), ended(1, None)]) is None


@pytest.mark.parametrize("outcome", FAILURES)
def test_the_only_failure_is_the_cause(outcome):
    ends = [ended(0, None), ended(1, outcome), ended(2, None)]
    assert failure.cause(ends) == ends[1]


@pytest.mark.parametrize("grave", [Outcome.OOM, Outcome.CRASH, Outcome.HANG])
def test_errors_of_peers_are_symptoms(grave):
    ends = [ended(0, Outcome.ERROR), ended(1, grave), ended(2, Outcome.ERROR)]
    assert failure.cause(ends) == ends[1]


def test_out_of_memory_explains_a_peers_crash():
    ends = [ended(0, Outcome.CRASH), ended(1, Outcome.OOM)]
    assert failure.cause(ends) == ends[1]


def test_of_hung_ranks_the_one_that_has_come_least_far_is_the_cause():
    ends = [
        RankEnd(rank, Outcome.HANG, "a step took long", at=rank, progress=progress)
        for rank, progress in enumerate([6, 5, 6])
    ]
    found = failure.cause(ends)
    assert found is not None
    assert (found.rank, found.cause) == (1, "a step took long; the others wait for it")


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([None, *FAILURES]), max_size=8))
def test_among_equals_the_first_is_the_cause(outcomes):
    ends = [ended(rank, outcome) for rank, outcome in enumerate(outcomes)]
    found = failure.cause(ends)
    if found is None:
        assert not any(outcomes)
    else:
        assert found.rank == outcomes.index(found.outcome)


# Where it was raised


def test_an_error_is_placed_in_the_users_own_code() -> None:
    def wrong() -> None:
        torch.zeros(2) @ torch.zeros(3)

    error = exception_of(wrong)
    line = wrong.__code__.co_firstlineno + 1
    assert failure.place_of(error).endswith(f"test_failure.py:{line}, in wrong")


def test_an_error_that_passed_through_libraries_alone_has_no_place() -> None:
    assert failure.place_of(ValueError("never raised")) == ""
    code = compile("import json; json.loads('{')", os.__file__, "exec")
    assert failure.place_of(exception_of_code(code)) == ""


def exception_of_code(code) -> BaseException:
    error = exception_of(lambda: exec(code))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # without this test's own frames
    return error
