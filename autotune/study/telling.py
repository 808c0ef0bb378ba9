"""Results of attempts, told to Optuna."""

from autotune.search.trial_attributes import attributes_of, constraints_of, state_of
from storage import AttemptResult, AttemptState, TrialLedger

_WITH_A_VALUE = (AttemptState.COMPLETE, AttemptState.PRUNED)


def tell_result(
    ledger: TrialLedger,
    number: int,
    result: AttemptResult,
    note: str,
    *,
    standard_error: float | None = None,
    value: float | None = None,
) -> None:
    """Tell the result of a trial with its note, exactly once.

    COMPLETE and PRUNED carry their value; OOM is PRUNED without one, and violates the
    constraint; HANG, CRASH, ERROR and POWER are FAIL.

    Args:
        standard_error: relative standard error of the value; None if unknown.
        value: of the objective; None: the throughput.
    """
    end = result.state
    ledger.tell(
        number,
        state_of(end),
        note,
        value=(result.throughput if value is None else value) if end in _WITH_A_VALUE else None,
        attributes=attributes_of(
            end,
            cause=result.cause,
            peak_bytes=result.peak_bytes,
            half_width=result.half_width,
            standard_error=standard_error,
        ),
        constraints=constraints_of(end),
    )
