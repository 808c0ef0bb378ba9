"""The table of faults: what was injected, how often, and what it cost.

A test that belongs to a line is marked `@pytest.mark.fault(LINE)`. It counts as one fault that was
survived if it passes; a test that injects many says so with the fixture `tally`. `--fault-table`
prints the table at the end of a run, `--fault-table=FILE` writes it as JSON, too.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

_LINE, _TALLY = "line of the fault table", "tally of the fault table"


@dataclass(frozen=True)
class Fault:
    """A line of the table: what is injected, and what of it no test injects yet."""

    injected: str
    missing: str = ""


ALL = "not covered yet"
FAULTS = {
    1: Fault("kill -9 of the daemon: at random, before and after each commit"),
    2: Fault("kill -9 right after RUNNING, before the first heartbeat"),
    3: Fault("SIGSTOP of the daemon beyond its lease, then SIGCONT"),
    4: Fault("several daemons, one database"),
    5: Fault("kill -9 of agent, rank, launcher"),
    6: Fault("kill -9 of a Ray worker, a raylet, the head"),
    7: Fault("a rank stopped inside an all-reduce"),
    8: Fault("a rank raises, runs out of memory, aborts"),
    9: Fault("SIGTERM ignored, grandchildren in their own session"),
    10: Fault("32 readers polling the SQLite file", "the dashboard"),
    11: Fault("PostgreSQL gone in mid study, or silent for 60 s"),
    12: Fault("disk full, read-only storage"),
    13: Fault("16 first starts on one empty database"),
    14: Fault("a worker's clock 1 h off"),
    15: Fault("8 trials at once, 500 in all"),
    16: Fault("NaN, 0, negative, missing, 1e308, repeated results"),
    17: Fault("every trial out of memory, every trial failing"),
    18: Fault("bad study files"),
    19: Fault("hostile text as arguments, environment, folders"),
    20: Fault("a password in the storage URL"),
    21: Fault("port scan of what was started with defaults"),
    22: Fault("kill -9 during export"),
    23: Fault("raylet killed, head lost, cluster restarted"),
    24: Fault("node frozen, link cut, packets lost"),
    25: Fault("cluster busy, all or in part"),
    26: Fault("SIGTERM by systemd, then start; a trial out of memory"),
    27: Fault("PostgreSQL read-only, host lost in mid transaction"),
    28: Fault("rank or agent in D state", "a real D state: stopped and unkillable stand in"),
    29: Fault("package upgraded under a running daemon"),
    30: Fault(
        "a second local user, a web page",
        "one who lists the keys of a store; another writer of the same database is trusted",
    ),
    31: Fault("secrets in env and storage URL"),
    32: Fault("a suspended machine"),
    33: Fault("a name server that does not answer"),
    34: Fault("Slurm: cancelled, requeued, drained, a node or slurmctld killed"),
}


@dataclass
class Tally:
    """What a test has injected so far.

    Attributes:
        tried: faults.
        survived: of them, those after which everything held.
        lost: results that ought to be recorded and are not.
        duplicated: results that are recorded more often than once.
    """

    tried: int = 0
    survived: int = 0
    lost: int = 0
    duplicated: int = 0

    def add(self, other: "Tally") -> None:
        """Count what the other has counted as well."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)


@pytest.fixture
def tally() -> Iterator[Tally]:
    """For a test to count in; what it has tried and not survived when it fails stays so."""
    yield Tally()


class FaultTable:
    """Collects what the tests of a run report, from all of its workers."""

    def __init__(self) -> None:
        self._tallies: dict[int, Tally] = {}
        self._seconds: dict[int, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Tell the line with each report of the test."""
        item.user_properties += [(_LINE, line) for line in lines(item)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        """Tell the tally with the report of the test itself, or of a setup that failed."""
        report = yield
        decides = call.when == "call" or (call.when == "setup" and report.failed)
        if lines(item) and decides and not report.skipped:
            told = asdict(_judged(item.funcargs.get("tally"), passed=report.passed))
            report.user_properties.append((_TALLY, told))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what a report tells."""
        told = [Tally(**value) for name, value in report.user_properties if name == _TALLY]
        for name, line in report.user_properties:
            if name != _LINE:
                continue
            self._seconds[line] = self._seconds.get(line, 0.0) + report.duration
            for tally in told if report.when != "teardown" else []:
                self._tallies.setdefault(line, Tally()).add(tally)

    def rows(self) -> list[dict[str, Any]]:
        """One for each line of the table."""
        return [
            {
                "line": line,
                "injected": fault.injected,
                **(asdict(self._tallies[line]) if line in self._tallies else {}),
                "seconds": round(self._seconds.get(line, 0.0), 1),
                "missing": fault.missing if line in self._tallies else _why_empty(fault),
            }
            for line, fault in FAULTS.items()
        ]

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print the table, and write it where that was asked for."""
        asked = config.getoption("--fault-table")
        if asked is None:
            return
        terminalreporter.section("faults")
        for line in text(self.rows()):
            terminalreporter.write_line(line)
        if asked:
            Path(asked).write_text(json.dumps(self.rows(), indent=2) + "\n")


def _why_empty(fault: Fault) -> str:
    return ALL if fault.missing == ALL else "not run"


def lines(item: pytest.Item) -> list[int]:
    """The lines of the table that a test belongs to."""
    return [mark.args[0] for mark in item.iter_markers("fault")]


def _judged(counted: Tally | None, *, passed: bool) -> Tally:
    if counted is None or not counted.tried:
        counted = Tally(tried=1, survived=int(passed))
    if not passed and counted.survived == counted.tried:
        counted.survived -= 1
    return counted


def text(rows: list[dict[str, Any]]) -> list[str]:
    """The table as lines of text."""
    counts = ("tried", "survived", "lost", "duplicated")
    found = [f"{'#':>2}  {'injected':62}" + "".join(f"{c:>11}" for c in counts) + f"{'s':>7}"]
    for row in rows:
        start = f"{row['line']:>2}  {row['injected']:62}"
        if "tried" not in row:
            found.append(f"{start}  {row['missing']}")
            continue
        figures = "".join(f"{row[name]:>11,}" for name in counts) + f"{row['seconds']:>7.0f}"
        found.append(start + figures + (f"  not yet: {row['missing']}" if row["missing"] else ""))
    return found
