"""What the end of a rank means: by its exit status, and among other ranks."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.worker import failure
from autotune.worker.protocol import Outcome, RankEnd
from storage import AttemptResult, AttemptState, disk

# By exit status


@pytest.mark.parametrize("status", [0, 1, 3, 86, 255])
def test_an_exit_in_mid_training_is_a_crash(status):
    outcome, cause = failure.outcome_of_exit(status, "", kernel_killed=True)
    assert outcome is Outcome.CRASH
    assert str(status) in cause


def test_every_signal_is_a_crash_that_can_be_told():
    named = {number: number.name for number in signal.Signals}
    for number in sorted(signal.valid_signals()):
        outcome, cause = failure.outcome_of_exit(-number, "", kernel_killed=False)
        assert outcome is Outcome.CRASH
        assert named.get(number, str(int(number))) in cause


def test_the_kernels_killer_is_out_of_memory():
    assert failure.outcome_of_exit(-signal.SIGKILL, "", kernel_killed=True)[0] is Outcome.OOM
    assert failure.outcome_of_exit(-signal.SIGKILL, "", kernel_killed=False)[0] is Outcome.CRASH
    assert failure.outcome_of_exit(-signal.SIGSEGV, "", kernel_killed=True)[0] is Outcome.CRASH


def test_an_abort_for_want_of_memory_is_out_of_memory():
    tail = (
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what(): std::bad_alloc"
    )
    assert failure.outcome_of_exit(-signal.SIGABRT, tail, kernel_killed=False)[0] is Outcome.OOM
    assert failure.outcome_of_exit(-signal.SIGABRT, "free(): invalid", kernel_killed=False)[0] is (
        Outcome.CRASH
    )
    assert failure.outcome_of_exit(-signal.SIGSEGV, tail, kernel_killed=False)[0] is Outcome.CRASH


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"memory.events": "low 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n"}, 3),
        ({"vmstat": "nr_free_pages 9\noom_kill 2\n"}, 2),
        ({"memory.events": "oom_kill 3\n", "vmstat": "oom_kill 5\n"}, 3),
        ({"vmstat": "nr_free_pages 9\n"}, 0),
        ({}, 0),
    ],
)
def test_the_kernels_own_counter_is_read(monkeypatch, tmp_path, files, count):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    counters = (tmp_path / "memory.events", tmp_path / "vmstat")
    monkeypatch.setattr(failure, "_OOM_KILL_COUNTERS", counters)
    assert failure.kernel_oom_kills() == count


def test_this_kernel_has_such_a_counter():
    texts = [path.read_text() for path in failure._OOM_KILL_COUNTERS if path.exists()]
    assert any("oom_kill " in text for text in texts)


SHARED = "RuntimeError: unable to write to file </torch_7_3_0>: No space left on device (28)"


@pytest.mark.parametrize(
    ("cause", "full"),
    [(SHARED, False), ("OSError: [Errno 28] No space left on device: 'model.pt'", True)],
)
def test_shared_memory_without_room_is_no_full_disk(tmp_path, cause, full):
    result = AttemptResult(AttemptState.ERROR, cause)
    assert disk.has_failed(result, tmp_path) is full
    assert ("--shm-size" in failure.advice(cause)) is not full


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


@pytest.mark.parametrize(
    "follows",
    [
        "RuntimeError: [pair.cc:547] Connection closed by peer [10.0.0.1]:4321",
        "DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network error",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_rank_that_lost_its_peer_is_no_cause_though_its_clock_is_behind(follows):
    ends = [
        RankEnd(0, Outcome.ERROR, follows, at=1.0),
        RankEnd(1, Outcome.ERROR, "ValueError: no such column", at=2.0),
    ]
    assert failure.cause(ends) == ends[1]


def test_of_hung_ranks_the_one_that_has_come_least_far_is_the_cause():
    ends = [
        RankEnd(rank, Outcome.HANG, "a step took long", at=rank, progress=progress)
        for rank, progress in enumerate([6, 5, 6])
    ]
    found = failure.cause(ends)
    assert found is not None
    assert (found.rank, found.cause) == (1, "a step took long; the others wait for it")


@given(st.lists(st.sampled_from([None, *FAILURES]), max_size=8))
def test_among_equals_the_first_is_the_cause(outcomes):
    ends = [ended(rank, outcome) for rank, outcome in enumerate(outcomes)]
    found = failure.cause(ends)
    if found is None:
        assert not any(outcomes)
    else:
        assert found.rank == outcomes.index(found.outcome)
