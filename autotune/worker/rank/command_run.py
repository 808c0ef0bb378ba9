"""Run of a command that trains with ranks of its own, as the only rank of its trial.

The command is left when enough of its reports have come; the agent kills its processes.
"""

import functools
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from autotune.worker import failure, processes, reporting, starters
from autotune.worker.files import TrialFiles, make_private
from autotune.worker.observers import memory
from autotune.worker.observers.contention import NodeLoad
from autotune.worker.protocol import (
    BlockPlan,
    BlockReport,
    Command,
    Observed,
    Outcome,
    TrialRequest,
)
from autotune.worker.rank.line import RankLine
from autotune.worker.rank.readings import (
    FileLines,
    Lines,
    OutputLines,
    ProgressReport,
    Reading,
    UnreadableReport,
    parse_json,
    parse_match,
)
from autotune.worker.sandbox import uploads

_REPORTS = "reports.jsonl"
_TAIL_BYTES = 6000
_OUTPUT = 1
"""Descriptor of this rank's log."""
_TRACEBACK = "traceback (most recent call last)"
_KILLED = ("kill", "signal 9", "exitcode -9", "terminated")
"""Words of launchers, shells and pools of processes about one that was killed."""


@dataclass
class _Block:
    """Reports that are timed together."""

    reports: int = 0
    amount: float = 0.0
    seconds: float = 0.0
    loss: float = 0.0


@dataclass
class Blocks:
    """Cutter of reports into blocks of about the seconds that a plan asks for.

    The first block is a single report.
    """

    plan: BlockPlan
    done: int = 0
    _last: float | None = None
    _open: _Block = field(default_factory=_Block)

    def take(self, reports: Sequence[ProgressReport], now: float) -> list[_Block]:
        """Return the blocks that a batch of reports completes.

        A report without seconds is given an equal share of the time since the batch before; the
        very first batch only starts the clock.

        Args:
            reports: at least one report.
            now: seconds of a clock.
        """
        share = None if self._last is None else (now - self._last) / len(reports)
        self._last = now
        ended = []
        for one in reports:
            seconds = share if one.seconds is None else one.seconds
            if seconds is None:
                continue
            self._add(one, seconds)
            if self._is_full():
                ended.append(self._open)
                self._open = _Block()
                self.done += 1
        return ended

    def _add(self, report: ProgressReport, seconds: float) -> None:
        amount = report.amount if report.amount is not None else (report.rate or 0.0) * seconds
        self._open.reports += 1
        self._open.amount += amount
        self._open.seconds += seconds
        self._open.loss = report.loss

    def _is_full(self) -> bool:
        block = self._open
        long_enough = not self.done or block.seconds >= self.plan.seconds
        return long_enough and block.amount > 0 and block.seconds > 0


class CommandRun:
    """Run of a command."""

    def __init__(self, request: TrialRequest, command: Command, line: RankLine) -> None:
        self._request = request
        self._command = command
        self._line = line
        self._kernel_kills = failure.kernel_oom_kills()
        self._blocks = Blocks(request.blocks)
        self._reports = 0
        self._peak_bytes = 0

    def run(self) -> NoReturn:
        """Run the command until enough reports have come."""
        if self._request.trajectory or self._request.profile:
            self._line.leave(
                Outcome.ERROR, "the loss of a command is not seen, nor what its step is made of"
            )
        folder = Path(self._command.folder)
        shutil.rmtree(folder, ignore_errors=True)
        make_private(folder)
        process = self._start()
        if self._request.memory_per_rank is not None and self._request.device == "cpu":
            limit = (self._request.memory_per_rank,) * 2
            resource.prlimit(process.pid, resource.RLIMIT_DATA, limit)
        self._load = NodeLoad()
        lines, reading = self._source(process)
        while True:
            status = process.poll()  # before the last lines are read
            self._listen(lines, reading)
            if status is not None:
                self._ended(status)
            lines.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        output = subprocess.PIPE if self._command.pattern else None
        try:
            return subprocess.Popen(
                starters.named(self._command.argv),
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                env=self._environment(),
            )
        except OSError as error:
            self._line.leave(
                Outcome.ERROR, f"{self._command.argv[0]} cannot be run: {error.strerror or error}"
            )

    def _environment(self) -> dict[str, str]:
        found = {**os.environ}
        if self._command.pattern:
            found["PYTHONUNBUFFERED"] = "1"  # a rate must arrive when it is printed
        elif not self._command.json_lines:
            found[reporting.VARIABLE] = str(Path(self._command.folder) / _REPORTS)
        return {**found, **uploads.OFFLINE, **processes.study_variables(self._request.env)}

    def _source(self, process: subprocess.Popen[bytes]) -> tuple[Lines, Reading]:
        if process.stdout is not None:
            pattern = re.compile(self._command.pattern)
            return OutputLines(process.stdout, _OUTPUT), functools.partial(
                parse_match, pattern=pattern
            )
        file = self._command.json_lines or str(Path(self._command.folder) / _REPORTS)
        return FileLines(Path(file)), functools.partial(parse_json, tokens=self._command.tokens)

    def _listen(self, lines: Lines, reading: Reading) -> None:
        """Take in new reports; end the run if they are enough."""
        try:
            reports = [report for line in lines.read() if (report := reading(line)) is not None]
        except UnreadableReport as wrong:
            self._line.leave(Outcome.ERROR, f"a report of the command cannot be read: {wrong}")
        if not reports:
            return
        self._reports += len(reports)
        self._line.progressed()
        before = self._blocks.done
        for place, block in enumerate(self._blocks.take(reports, time.perf_counter())):
            self._line.report(self._of_block(before + place, block))
            if before + place + 1 >= self._request.blocks.max_blocks:
                self._line.leave(None, "finished")

    def _of_block(self, index: int, block: _Block) -> BlockReport:
        # Counts are whole; the rate stays what it was.
        count = max(1, round(block.amount))
        seconds = block.seconds * count / block.amount
        self._peak_bytes = max(self._peak_bytes, self._peak())
        shares = self._load.shares()
        return BlockReport(
            trial=self._request.trial,
            index=index,
            steps=block.reports,
            samples=count,
            tokens=count if self._command.tokens else 0,
            seconds=seconds,
            rank_seconds=(seconds,),
            wait_seconds=0.0,
            loss=block.loss,
            peak_bytes=self._peak_bytes,
            observed=Observed(foreign_cpu=shares.foreign, idle_cpu=shares.idle),
        )

    def _peak(self) -> int:
        """Return the peak of the largest process, bytes; 0 on CUDA, where it is not known."""
        if self._request.device != "cpu":
            return 0
        return max(map(_largest_resident, processes.descendants(os.getpid())), default=0)

    def _ended(self, status: int) -> NoReturn:
        about = f"{self._reports} reports, before enough was seen"
        if not status:
            self._line.leave(
                Outcome.ERROR,
                f"the command ended with exit status 0 after {about}; have it run for longer",
                ended_after=self._reports,
            )
        outcome, how = self._failed(status, self._log_tail())
        self._line.leave(outcome, f"the command {how} after {about}")

    def _failed(self, status: int, tail: str) -> tuple[Outcome, str]:
        """Return outcome and cause, as the end of a sentence, of a command that has failed."""
        struck = failure.kernel_oom_kills() > self._kernel_kills
        if status < 0:
            return failure.outcome_of_exit(status, tail, kernel_killed=struck)
        how = f"ended with exit status {status}"
        # A launcher, or a shell, outlives the process that is killed below it. Of others on the
        # machine, which may be killed as well, it says nothing.
        if struck and not _is_plain_error(tail):
            return Outcome.OOM, f"{how}, as the kernel's out-of-memory killer was at work,"
        return _of_failure(tail), how

    def _log_tail(self) -> str:
        return TrialFiles(Path(self._request.log_dir)).tail(0, _TAIL_BYTES)


def _is_plain_error(tail: str) -> bool:
    """Return whether a command has printed an error of Python, and of no process that it was killed."""
    text = tail.lower()
    return _TRACEBACK in text and not any(sign in text for sign in _KILLED)


def _of_failure(tail: str) -> Outcome:
    """Return the outcome of a failed command by the end of its output."""
    if "MemoryError" in tail:  # Python's own, NumPy's, torch's
        return Outcome.OOM
    return failure.outcome_of_error(RuntimeError(tail))


def _largest_resident(pid: int) -> int:
    """Return the peak resident memory of a process, bytes; 0 if it is gone."""
    try:
        return memory.peak_resident(Path(f"/proc/{pid}/status"))
    except OSError:
        return 0
