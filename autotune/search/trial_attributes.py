"""Attributes, constraint and state of a trial in Optuna's storage: written by its study, and read."""

import math
from typing import Any

from optuna.trial import FrozenTrial, TrialState

OUT_OF_MEMORY = "out_of_memory"
"""Constraint (`trial.set_constraint`) that is above 0 for a trial that ran out of memory: other
samplers learn from it."""

_END, _CAUSE, _PEAK_BYTES = "end", "cause", "peak_bytes"
_HALF_WIDTH, _STANDARD_ERROR = "half_width", "standard_error"
_COMPLETE, _PRUNED, _OOM = "COMPLETE", "PRUNED", "OOM"


def attributes_of(
    end: str,
    *,
    cause: str = "",
    peak_bytes: float = 0,
    half_width: float | None = None,
    standard_error: float | None = None,
) -> dict[str, Any]:
    """Return the user attributes of a trial; what is not known has none.

    Args:
        end: state of its attempt.
        peak_bytes: largest memory of a rank.
        half_width: that of the 95 % interval of its value by the normal distribution, relative.
        standard_error: that of its value, relative.
    """
    found: dict[str, Any] = {_END: end}
    if cause:
        found[_CAUSE] = cause
    if peak_bytes:
        found[_PEAK_BYTES] = peak_bytes
    if half_width is not None:
        found[_HALF_WIDTH] = half_width
    if standard_error is not None:
        found[_STANDARD_ERROR] = standard_error
    return found


def constraints_of(end: str) -> dict[str, float]:
    """Return the constraints of a trial, by the state of its attempt."""
    return {OUT_OF_MEMORY: 1.0 if end == _OOM else -1.0}


def state_of(end: str) -> TrialState:
    """Return Optuna's state of a trial, by the state of its attempt."""
    if end == _COMPLETE:
        return TrialState.COMPLETE
    return TrialState.PRUNED if end in (_PRUNED, _OOM) else TrialState.FAIL


def value_of(trial: FrozenTrial) -> float | None:
    """Return the objective of a trial, for a pruned one the last reported; None if it has none."""
    value = None
    if trial.state == TrialState.COMPLETE:
        value = trial.value
    elif trial.state == TrialState.PRUNED and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    return value if value is not None and math.isfinite(value) and value > 0 else None


def end_of(trial: FrozenTrial) -> str | None:
    """Return the state of a trial's attempt; None while it is not told."""
    return trial.user_attrs.get(_END)


def cause_of(trial: FrozenTrial) -> str:
    """Return the cause of a trial's end; empty if there is none."""
    return str(trial.user_attrs.get(_CAUSE, ""))


def peak_bytes_of(trial: FrozenTrial) -> float:
    """Return the largest memory of a rank of a trial; not a number if unknown."""
    return trial.user_attrs.get(_PEAK_BYTES) or math.nan


def half_width_of(trial: FrozenTrial) -> float | None:
    """Return the relative half-width of the interval of a trial's value; None if unknown."""
    return _positive(trial.user_attrs.get(_HALF_WIDTH))


def standard_error_of(trial: FrozenTrial) -> float | None:
    """Return the relative standard error of a trial's value; None if unknown."""
    return _positive(trial.user_attrs.get(_STANDARD_ERROR))


def is_out_of_memory(trial: FrozenTrial) -> bool:
    """Return whether a trial ran out of memory."""
    return end_of(trial) == _OOM


def was_cut_short(trial: FrozenTrial) -> bool:
    """Return whether a trial was ended before its first step."""
    cut = trial.state == TrialState.PRUNED and end_of(trial) == _PRUNED
    return cut and value_of(trial) is None


def _positive(told: Any) -> float | None:
    return float(told) if isinstance(told, int | float) and told > 0 else None
