"""What the agent of a node makes of ranks that fail around the end of a trial. Nothing is trained: the
ranks are pipes that the tests write to."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from autotune.worker import processes
from autotune.worker.node.trial import NodeTrial
from autotune.worker.protocol import Outcome, Placement, RankEnd
from autotune.worker.sandbox import scratch
from tests.support.trials import of_one_rank

CLOSED = RankEnd(1, Outcome.ERROR, "RuntimeError: Connection closed by peer", at=1.0)
MEMORY = RankEnd(1, Outcome.OOM, "MemoryError", at=1.0)


class Process:
    """A process that goes on until it is joined, or for ever."""

    pid = None
    sentinel = -1
    exitcode: int | None = None
    endless = False

    def start(self) -> None:
        """Nothing to start."""

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None or not self.endless, "the agent would wait for ever"
        self.exitcode = None if self.endless else -9


class Context:
    """Makes such processes, and keeps their ends of the pipes."""

    def __init__(self) -> None:
        self.ranks: list[Connection] = []

    def Pipe(self) -> tuple[Connection, Connection]:  # noqa: N802
        ours, theirs = multiprocessing.Pipe()
        self.ranks.append(theirs)
        return ours, multiprocessing.Pipe()[1]

    def Process(self, **_: Any) -> Process:  # noqa: N802
        return Process()


@pytest.fixture
def context() -> Context:
    return Context()


@pytest.fixture
def trial(context: Context, tmp_path: Path) -> NodeTrial:
    request = of_one_rank({}, world_size=2, log_dir=str(tmp_path))
    here = Placement(0, 0, 2, "127.0.0.1", 1, "lo")
    others = processes.descendants(os.getpid())
    return NodeTrial(request, here, context, others)  # type: ignore[arg-type]


def test_what_a_rank_raises_after_the_end_was_asked_for_is_not_noted(
    context: Context, trial: NodeTrial
) -> None:
    trial.end(hung="", on_purpose=True)
    context.ranks[1].send_bytes(CLOSED.to_line())
    assert list(trial.pump()) == []
    assert trial.over()
    assert trial.clear().ends == ()


def test_what_it_raised_before_is(context: Context, trial: NodeTrial) -> None:
    context.ranks[1].send_bytes(CLOSED.to_line())
    assert list(trial.pump()) == []
    trial.end(hung="", on_purpose=True)
    assert [end.cause for end in trial.clear().ends] == [CLOSED.cause]


def test_memory_that_runs_out_is_noted_whenever_it_is_told(
    context: Context, trial: NodeTrial
) -> None:
    trial.end(hung="", on_purpose=True)
    context.ranks[1].send_bytes(MEMORY.to_line())
    assert list(trial.pump()) == []
    assert [end.outcome for end in trial.clear().ends] == [Outcome.OOM]


def test_what_a_rank_raises_after_an_end_that_a_failure_elsewhere_has_brought_is(
    context: Context, trial: NodeTrial
) -> None:
    """It may be the cause: the other node has told of its symptom first."""
    trial.end(hung="", on_purpose=False)
    context.ranks[1].send_bytes(CLOSED.to_line())
    assert list(trial.pump()) == []
    assert [end.cause for end in trial.clear().ends] == [CLOSED.cause]


def test_a_rank_that_never_ends_is_named_rather_than_waited_for(
    trial: NodeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "endless", True)
    monkeypatch.setattr(Process, "pid", os.getpid())
    assert f"process {os.getpid()} (" in trial.clear().stuck


def test_a_trial_whose_ranks_cannot_be_started_leaves_no_folder_of_its_writes(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(scratch, "_roots", lambda: [str(tmp_path)])

    def refused(_: Process) -> None:
        raise OSError("no process can be made")

    monkeypatch.setattr(Process, "start", refused)
    request = of_one_rank({}, log_dir=str(tmp_path / "logs"), may_write=False)
    here = Placement(0, 0, 1, "127.0.0.1", 1, "lo")
    with pytest.raises(OSError, match="no process"):
        NodeTrial(request, here, context, set())  # type: ignore[arg-type]
    scratch.finish(30)
    (own,) = tmp_path.glob("autotune-sandbox-*")
    assert not [*own.iterdir()]
