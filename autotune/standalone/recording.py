"""Recording of a replay table: configurations of a search space, measured in passes.

Every run goes to a journal as soon as it has ended; recording again continues the journal.
"""

import csv
import json
import math
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from autotune.analysis.wording import counted
from autotune.config import StudySpec, secrets_withheld
from autotune.config.mistakes import Inconsistent
from autotune.errors import BadInput, LauncherError
from autotune.export.writing import write_text
from autotune.runs.monitors import TimedMonitor
from autotune.runs.one_off import OneOffRuns
from autotune.runs.study_setup import StudySetup, launcher_of
from autotune.search.space import Space, key
from launchers import Launcher
from launchers.replay.tables import (
    SECONDS,
    STATE,
    THROUGHPUT,
    parsed,
    read_origin,
    shown_rate,
    shown_value,
    write_table,
)
from launchers.site import device_names
from storage import AttemptState, disk

NO_ENERGY = "objective: a table tells no energy; take samples_per_second, without power_limit"
_PASS = "pass"
_STATES = {"COMPLETE": "COMPLETE", "OOM": "OOM"}
_FIRST_BEHIND, _LAST_BEHIND = 0.25, 0.05
"""Largest distance from the best at which a configuration is run again, in the first and last pass.
"""
_ANCHORS = 24
"""Number of configurations that are run in every pass, whatever their results."""
_POLISHED = 10
"""Rounds of the median polish, which fits speeds of passes and rates of configurations in turn."""
_REPEATED = 3
"""Number of attempts at a run whose agent dies."""
_GO_ON = "what was measured is kept: once that is mended, the same command goes on"


@dataclass(frozen=True)
class Run:
    """One run of a configuration.

    Attributes:
        number: of the pass, from 0.
        params: the knobs that vary.
        throughput: of the objective, per second; None unless the state is COMPLETE.
        seconds: that the trial took, launch included.
        state: COMPLETE, OOM or ERROR.
    """

    number: int
    params: dict[str, Any]
    throughput: float | None
    seconds: float
    state: str


class Journal:
    """Runs so far, in a CSV file."""

    def __init__(self, path: Path, names: list[str]) -> None:
        """Open a journal, or begin one."""
        self._path = path
        self._columns = [_PASS, *names, THROUGHPUT, SECONDS, STATE]
        self.runs: list[Run] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        self._check_columns(content)
        if self._whole_lines(content):
            self.runs = list(self._read(names))
        else:
            self._append(self._columns)

    def add(self, run: Run) -> None:
        """Add a run; it is on disk when this returns."""
        shown = [shown_value(value) for value in run.params.values()]
        self._append(
            [run.number, *shown, shown_rate(run.throughput), f"{run.seconds:.3f}", run.state]
        )
        self.runs.append(run)

    def _check_columns(self, content: bytes) -> None:
        """Check the first line, which a crash may have left incomplete."""
        first, newline, _ = content.decode(errors="replace").partition("\n")
        own, first = ",".join(self._columns), first.rstrip("\r")
        if first == own or (not newline and own.startswith(first)):
            return
        raise BadInput(
            f"{self._path} has the columns {', '.join(first.split(',')) or 'none'}; this study records "
            f"{', '.join(self._columns)}; choose another output or move it away"
        )

    def _whole_lines(self, content: bytes) -> bool:
        """Cut off an incomplete last line, left by a crash; return whether any line remains."""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            write_text(self._path, whole.decode())
        return bool(whole)

    def _read(self, names: list[str]) -> Iterator[Run]:
        """Yield the runs."""
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            try:
                yield from (_run_of(row, names) for row in rows)
            except (csv.Error, ValueError, TypeError, AttributeError, yaml.YAMLError):
                raise BadInput(
                    f"{self._path}, line {rows.line_num}: no run of a recording; take the line out, "
                    "and the same command goes on"
                ) from None

    def _append(self, fields: Iterable[Any]) -> None:
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(fields)
            file.flush()
            os.fsync(file.fileno())


def _run_of(row: Mapping[str, str], names: list[str]) -> Run:
    rate = float(row[THROUGHPUT]) if row[THROUGHPUT] else None
    params = {name: parsed(row[name]) for name in names}
    return Run(int(row[_PASS]), params, rate, float(row[SECONDS]), row[STATE])


def record(
    spec: StudySpec,
    output: Path,
    *,
    most: int,
    passes: int,
    refine: int,
    workdir: Path,
    say: Callable[[str], None],
) -> Path:
    """Record the table of a study's search space on one slot of its launcher.

    Args:
        output: the CSV file: a column per varied knob, then throughput (median of the passes, each
            at the speed of the first: see `at_one_speed`; empty unless COMPLETE), trial_seconds (median)
            and state (COMPLETE, OOM or ERROR). A file of the same name ending in .json tells where and
            how it was recorded.
        most: configurations; a larger space is sampled at random, the baseline always included.
        passes: runs of each configuration, every pass in a new random order.
        refine: further passes of the leading ones, at first those within a quarter of the best, fewer
            from pass to pass, as the best ones lie close together.

    Returns:
        The output.

    Raises:
        BadInput: another file is where one would be written, the journal belongs to another space or
            machine, the space has nothing to vary, or the objective is energy or has a power limit.
    """
    if spec.objective.reads_energy:
        raise BadInput(NO_ENERGY)
    _check_free(output)
    with (
        tempfile.TemporaryDirectory() as logs,
        launcher_of(spec, Path(logs)) as launcher,
    ):
        one_off = OneOffRuns(StudySetup(spec, launcher), Path(logs), workdir)
        space = one_off.setup.space()
        names = sorted(space.varying)
        if not names:
            raise BadInput("search_space: nothing varies; give at least one knob two values")
        chosen = configurations(space, spec, names, most)
        journal = Journal(_journal_of(output), names)
        _check_origin(output, spec, launcher, journal.runs)
        recorder = _Recorder(one_off, space, journal)
        for number in range(passes + refine):
            several = chosen
            if number >= passes:
                several = _leading(chosen, journal.runs, (number - passes) / refine)
                several += [params for params in _anchors(journal.runs) if params not in several]
            recorder.make_pass(number, several, say)
        write_table(output, names, _rows(journal.runs))
        _write_origin(output, spec, launcher, journal.runs)
    return output


def configurations(
    space: Space, spec: StudySpec, names: list[str], most: int
) -> list[dict[str, Any]]:
    """Return feasible configurations, the baseline first: all, or a random sample."""
    baseline = spec.full_baseline()
    found = {key(first := {name: baseline[name] for name in names}): first}
    for params in space.feasible(random.Random(spec.seed)):
        if len(found) >= min(most, space.size):
            break
        knobs = space.complete(params)
        chosen = {name: knobs[name] for name in names}
        found.setdefault(key(chosen), chosen)
    return list(found.values())


def _journal_of(output: Path) -> Path:
    return output.with_suffix(".runs.csv")


def _check_free(output: Path) -> None:
    """Check that no other files are where a recording without a journal would write its own.

    Raises:
        BadInput: there is one, or the table would have the name of the file that tells its origin.
    """
    origin, journal = output.with_suffix(".json"), _journal_of(output)
    if output == origin:
        raise BadInput(f"{output}: a .json beside the table tells its origin; name the table *.csv")
    if journal.exists() and journal.stat().st_size:
        return
    if taken := next(filter(Path.exists, (output, origin)), None):
        raise BadInput(
            f"{taken} exists, and no {journal} that recorded it; name another output, or move it away"
        )


class _Recorder:
    def __init__(self, one_off: OneOffRuns, space: Space, journal: Journal) -> None:
        self._one_off = one_off
        self._spec = one_off.setup.spec
        self._space = space
        self._journal = journal

    def make_pass(
        self, number: int, chosen: list[dict[str, Any]], say: Callable[[str], None]
    ) -> None:
        """Run the configurations that the pass lacks, without those that failed in an earlier one."""
        order = list(chosen)
        random.Random(f"{self._spec.seed}/{number}").shuffle(order)
        done = {key(r.params) for r in self._journal.runs if r.number == number}
        done |= {key(r.params) for r in self._journal.runs if r.state != "COMPLETE"}
        for place, params in enumerate(order, 1):
            if key(params) in done:
                continue
            run = self._run(number, params)
            self._journal.add(run)
            shown = f"{run.throughput:,.4g} {self._spec.unit}" if run.throughput else ""
            say(f"pass {number + 1}, {place}/{len(order)}  {run.state}  {shown}")

    def _run(self, number: int, params: dict[str, Any]) -> Run:
        """Run one configuration."""
        for again in range(_REPEATED):
            name = f"{len(self._journal.runs)}-{number}-{again}"
            judge = TimedMonitor(self._one_off.setup.search_limits())
            result = self._one_off.run(name, self._space.complete(params), judge)
            if result.state != AttemptState.LOST:
                break
        if disk.has_failed(result, self._one_off.folder):
            raise LauncherError(f"a disk is full: {result.cause}; {_GO_ON}")
        if result.state == AttemptState.LOST and result.fault.excuses:
            raise LauncherError(f"{result.cause}; {_GO_ON}")
        state = _STATES.get(result.state, "ERROR")
        return Run(number, params, result.throughput, result.wall_seconds, state)


def _leading(
    chosen: list[dict[str, Any]], runs: list[Run], progress: float
) -> list[dict[str, Any]]:
    """Return the configurations close to the best, as far as it is known; `progress` is 0 to 1."""
    behind = _FIRST_BEHIND + progress * (_LAST_BEHIND - _FIRST_BEHIND)
    rates = {key(params): _median_rate(own) for params, own in by_configuration(at_one_speed(runs))}
    best = max((rate for rate in rates.values() if rate is not None), default=0.0)
    return [params for params in chosen if (rates[key(params)] or 0.0) >= (1 - behind) * best]


def _median_rate(runs: list[Run]) -> float | None:
    rates = [run.throughput for run in runs if run.throughput is not None]
    # A configuration that ran out of memory once may do so again in a real job.
    failed = any(run.state != "COMPLETE" for run in runs)
    return statistics.median(rates) if rates and not failed else None


def _rows(runs: list[Run]) -> Iterator[dict[str, Any]]:
    for params, own in by_configuration(at_one_speed(runs)):
        failed = [run.state for run in own if run.state != "COMPLETE"]
        seconds = statistics.median(run.seconds for run in own)
        yield {
            **params,
            THROUGHPUT: _median_rate(own),
            SECONDS: seconds,
            STATE: (failed or ["COMPLETE"])[0],
        }


def _write_origin(output: Path, spec: StudySpec, launcher: Launcher, runs: list[Run]) -> None:
    origin = {
        "study": secrets_withheld.kept(spec, all_fields=False),
        "environment": launcher.site.environment,
        "workers": launcher.ranks,
        "runs": len(runs),
        "speed_of_passes": [round(speed, 4) for speed in pass_speeds(runs).values()],
        "noise": run_noise(at_one_speed(runs)),
    }
    text = json.dumps(origin, indent=2, default=str)
    write_text(output.with_suffix(".json"), text + "\n")


def _check_origin(output: Path, spec: StudySpec, launcher: Launcher, runs: list[Run]) -> None:
    """Record the origin of a new journal, or check that of an old one.

    Raises:
        BadInput: its runs are of another study or machine, or the file is none that tells an origin.
    """
    path = output.with_suffix(".json")
    if not (runs and path.exists()):
        _write_origin(output, spec, launcher, runs)
        return
    began = read_origin(output)
    instead = "choose another output, or move it and its .runs.csv away"
    try:
        then_set = StudySpec.model_validate(began.study)
    except (ValidationError, Inconsistent):
        raise BadInput(f"{path} was recorded by another version of autotune; {instead}") from None
    recorded, given = (secrets_withheld.kept(one, all_fields=False) for one in (then_set, spec))
    if recorded != given:
        raise BadInput(f"{path} was recorded with other settings; {instead}")
    environment = launcher.site.environment
    then = _machine(began.environment, began.workers or launcher.ranks)
    if then != (now := _machine(environment, launcher.ranks)):
        raise BadInput(f"{path} was recorded by {then}, and here are {now}; {instead}")


def _machine(environment: Mapping[str, Any], workers: int) -> str:
    """Return what decides the figures of a machine, in words: its ranks and kinds of device."""
    nodes = [environment, *environment.get("others", ())]
    names = sorted({name for node in nodes for name in device_names(node)})
    return f"{counted(workers, 'rank')} on {' and '.join(names)}"


def at_one_speed(runs: list[Run]) -> list[Run]:
    """Return the runs with rates corrected to the machine's speed in the first pass.

    The speed of a shared machine varies, and a configuration that took part in fast passes only
    would look better.
    """
    speeds = pass_speeds(runs)
    return [
        replace(run, throughput=run.throughput / speeds[run.number]) if run.throughput else run
        for run in runs
    ]


def pass_speeds(runs: list[Run]) -> dict[int, float]:
    """Return the machine's speed in each pass relative to the first.

    It is a median polish of rate = configuration x pass over the configurations that are run in all
    passes, whatever their results. Those that are run again because they were fast are slower the
    next time on any machine, and would bias it. A journal without such configurations is judged by
    all that were run in several passes.
    """
    timed = [(key(run.params), run.number, run.throughput) for run in runs if run.throughput]
    anchors = [key(params) for params in _anchors(runs)]
    lasting = {which for which, number, _ in timed if number == max(run.number for run in runs)}
    if lasting.issuperset(anchors):
        timed = [one for one in timed if one[0] in anchors]
    logs = [(which, number, math.log(rate)) for which, number, rate in timed]
    speeds = dict.fromkeys(sorted({run.number for run in runs}), 0.0)
    for _ in range(_POLISHED):
        rates = _medians((which, rate - speeds[number]) for which, number, rate in logs)
        speeds |= _medians((number, rate - rates[which]) for which, number, rate in logs)
    first = next(iter(speeds.values()), 0.0)
    return {number: math.exp(speed - first) for number, speed in speeds.items()}


def _anchors(runs: list[Run]) -> list[dict[str, Any]]:
    """Return the first completed configurations of the first pass, which is in random order."""
    first = [run.params for run in runs if run.number == 0 and run.throughput]
    return first[:_ANCHORS]


def _medians(found: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    grouped: dict[Any, list[float]] = {}
    for group, value in found:
        grouped.setdefault(group, []).append(value)
    return {group: statistics.median(values) for group, values in grouped.items()}


def run_noise(runs: list[Run]) -> float | None:
    """Return the relative standard deviation between runs of a configuration, pooled over all (A/A)."""
    spreads = []
    for _, own in by_configuration(runs):
        rates = [run.throughput for run in own if run.throughput is not None]
        if len(rates) > 1:
            spreads.append((statistics.stdev(rates) / statistics.mean(rates)) ** 2)
    return statistics.mean(spreads) ** 0.5 if spreads else None


def by_configuration(runs: list[Run]) -> Iterator[tuple[dict[str, Any], list[Run]]]:
    """Yield each configuration with its runs, in the order of their first."""
    grouped: dict[Any, list[Run]] = {}
    for run in runs:
        grouped.setdefault(key(run.params), []).append(run)
    return ((own[0].params, own) for own in grouped.values())
