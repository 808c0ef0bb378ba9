"""Attempts of a study as a table, for notebooks and spreadsheets."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.analysis.rounds import Round
from autotune.views.figures import figures_of
from autotune.views.study_figures import StudyFigures
from autotune.views.trial_figures import TrialFigures
from search_spaces.knob import written
from storage import Attempts, Purpose, Repository, StoredAttempt

COLUMNS = (
    *("trial", "purpose", "round", "attempt", "state", "ratio", "ratio_low", "ratio_high"),
    *("interleaved", "reference", "reference_rate", "so_far", "so_far_low", "so_far_high", "rate"),
    *("cause", "suggested_by", "steady", "contended", "peak_bytes", "wall_seconds", "resident_of"),
    *("steps", "disturbed_share", "foreign_cpu", "clock_mhz", "watts", "sample_joules"),
    *("step_mean", "step_median", "step_p95", "step_correlation"),
)
"""Columns of the table of attempts, in order, before a column per knob."""
_FIRST_COLUMNS = COLUMNS[:5]
CSV_BEGINNING = f"{','.join(_FIRST_COLUMNS)},".encode()
"""Beginning of a table of attempts as CSV."""
_PARQUET_MARK = b"PAR1"
"""Beginning of every Parquet file, of whatever it is a table."""


def attempts_frame(repository: Repository, name: str) -> pd.DataFrame:
    """Return one row per attempt, in the order in which they were started.

    Columns:
        trial, purpose (see storage.Purpose), round, attempt, state.
        ratio, ratio_low, ratio_high: over the baseline. A trial of the search has its 95 % interval by
            what is known now, a run of the confirmation the ratio of its round.
        interleaved, reference, reference_rate: whether the two were interleaved, the baseline's attempt
            that the ratio is over, and its rate.
        so_far, so_far_low, so_far_high: running result of a confirmation.
        rate: as measured, per second or joule.
        cause, suggested_by, steady, contended, peak_bytes, wall_seconds.
        resident_of: trial whose processes it took over; empty: it had its own.
        steps, disturbed_share and so on: what was observed in the run, see storage.RunDigest.
        one per knob; a knob with the name of a column above has knob.NAME.
    """
    study = repository.studies.named(name)
    figures = figures_of(repository, study)
    attempts = repository.attempts.of(study.id)
    rows = list(_rows(figures, attempts))
    return pd.DataFrame(rows, columns=None if rows else list(COLUMNS))


def as_parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame as Parquet; a column of values of several types is text there.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
    """
    importlib.import_module("pyarrow")  # pandas would raise another error without it
    mixed = [str(name) for name in frame if frame[name].dropna().map(type).nunique() > 1]
    texts = {name: frame[name].map(written, na_action="ignore") for name in mixed}
    return frame.assign(**texts).to_parquet(index=False)


def is_parquet_table(path: Path) -> bool:
    """Return whether a file is a table of attempts as Parquet, by its first columns.

    A file that pyarrow cannot read is none.

    Raises:
        ModuleNotFoundError: it is Parquet, and pyarrow is not installed.
    """
    if not _is_parquet(path):
        return False
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        names = parquet.read_schema(path).names
    except (OSError, ValueError, NotImplementedError):
        return False
    return tuple(names[: len(_FIRST_COLUMNS)]) == _FIRST_COLUMNS


def _is_parquet(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MARK)) == _PARQUET_MARK
    except OSError:
        return False


def _rows(figures: StudyFigures, attempts: list[StoredAttempt]) -> Iterator[dict[str, Any]]:
    trials = {one.trial: one for one in figures.trials}
    rounds = {one.number: one for one in figures.rounds}
    baselines = {
        (one.purpose, one.round): one.name
        for one in Attempts(attempts, {})
        if one.trial == figures.answer.baseline
    }
    latest = {(a.trial, a.round): a.id for a in attempts if a.purpose == Purpose.CONFIRM}
    hosts: dict[int | None, int] = {attempt.id: attempt.trial for attempt in attempts}
    for one in attempts:
        result = one.result
        compared: dict[str, Any] = {}
        if one.purpose == Purpose.SEARCH and one.recorded and one.trial in trials:
            compared = _of_trial(trials[one.trial])
        elif one.purpose == Purpose.CONFIRM and result.throughput and one.round in rounds:
            if one.id == latest[one.trial, one.round]:
                compared = _of_round(rounds[one.round], one.trial, figures.answer.baseline)
            if compared:
                compared["reference"] = baselines.get((Purpose.CONFIRM, one.round), "")
        yield {
            "trial": one.trial,
            "purpose": one.purpose.value,
            "round": one.round,
            "attempt": one.attempt,
            "state": result.state.value,
            **{name: compared.get(name) for name in _COMPARED},
            "rate": result.throughput if one.purpose == Purpose.CONFIRM else result.rate,
            "cause": result.cause,
            "suggested_by": trials[one.trial].suggested_by if one.trial in trials else "",
            "steady": result.steady,
            "contended": result.contended,
            "peak_bytes": result.peak_bytes,
            "wall_seconds": result.wall_seconds,
            "resident_of": hosts.get(result.resident_of),
            **vars(one.digest),
            # A knob of a study's own may have the name of a measurement.
            **{f"knob.{k}" if k in COLUMNS else k: value for k, value in one.knobs.items()},
        }


_COMPARED = (
    *("ratio", "ratio_low", "ratio_high", "interleaved", "reference", "reference_rate"),
    *("so_far", "so_far_low", "so_far_high"),
)


def _of_trial(one: TrialFigures) -> dict[str, Any]:
    if one.ratio is None:
        return {}
    return {
        "ratio": one.ratio.value,
        "ratio_low": one.ratio.low,
        "ratio_high": one.ratio.high,
        "interleaved": one.interleaved,
        "reference": one.reference,
        "reference_rate": one.reference_rate,
    }


def _of_round(one: Round, trial: int, baseline: int | None) -> dict[str, Any]:
    if trial not in one.ratios or baseline is None:
        return {}
    so_far = one.so_far.get(trial)
    return {
        "ratio": one.ratios[trial],
        "interleaved": True,
        "reference_rate": one.rates[baseline],
        "so_far": so_far.value if so_far else None,
        "so_far_low": so_far.low if so_far else None,
        "so_far_high": so_far.high if so_far else None,
    }
