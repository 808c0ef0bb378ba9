"""A study's attempts as a table, for notebooks and spreadsheets."""

import pandas as pd

from storage import Repository


def attempts_frame(repository: Repository, name: str) -> pd.DataFrame:
    """One row per attempt, in the order in which they were started.

    Columns: trial, purpose (see storage.Purpose), round, attempt, state, cause, throughput and its
    relative half_width (95 %), of which block_half_width and sigma_run are the parts, steady, contended,
    peak_bytes, wall_seconds, resident_of (trial whose processes it took over, 0 of the baseline's own
    trial: those of the look at it; empty: it had its own), then one per knob.
    """
    attempts = repository.attempts.of(repository.studies.named(name).id)
    trials: dict[int | None, int] = {attempt.id: attempt.trial for attempt in attempts}
    rows = [
        {
            "trial": attempt.trial,
            "purpose": attempt.purpose,
            "round": attempt.round,
            "attempt": attempt.attempt,
            "state": attempt.result.state,
            "cause": attempt.result.cause,
            "throughput": attempt.result.throughput,
            "half_width": attempt.result.half_width,
            "block_half_width": attempt.result.block_half_width,
            "sigma_run": attempt.result.sigma_run,
            "steady": attempt.result.steady,
            "contended": attempt.result.contended,
            "peak_bytes": attempt.result.peak_bytes,
            "wall_seconds": attempt.result.wall_seconds,
            "resident_of": trials.get(attempt.result.resident_of),
            **attempt.knobs,
        }
        for attempt in attempts
    ]
    return pd.DataFrame(rows)
