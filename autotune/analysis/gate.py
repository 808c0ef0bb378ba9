"""The numerics gate: no finalist is recommended whose loss leaves the fp32 reference.

Pure functions over what is recorded: what is to be run next, and what the runs have shown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.analysis.confirmation import Candidate
from autotune.measurement.numerics import Agreement, Trajectory, agreement, trajectory
from search_spaces import CATALOGUE, defaults
from storage import Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

Blocks = Callable[[int], Sequence[StoredBlock]]
"""Attempt id -> its blocks."""
Knobs = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """A run that the gate needs.

    Attributes:
        reference: to hold it against; None: it is the reference.
    """

    purpose: Purpose
    trial: int
    knobs: dict[str, Any]
    reference: Trajectory | None = None


@dataclass(frozen=True)
class Refusal:
    """A finalist that did not pass."""

    trial: int
    knobs: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class GateRecord:
    """What the gate has found.

    Attributes:
        passed: trial -> how closely it follows the reference.
        refused: in the order in which they were checked.
        unchecked: trial -> why there is nothing to compare it with.
    """

    passed: dict[int, Agreement] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    unchecked: dict[int, str] = field(default_factory=dict)


def next_check(
    candidates: Sequence[Candidate], baseline: Knobs, attempts: Attempts, blocks: Blocks
) -> Check | None:
    """The run that is missing before these candidates may be confirmed; None if none is."""
    for candidate in candidates:
        if not touched(candidate.knobs, baseline):
            continue
        checked = checked_knobs(candidate.knobs, baseline)
        safe = reference_knobs(checked)
        reference = _reference(safe, attempts)
        if reference is None:
            return Check(Purpose.REFERENCE, candidate.trial, safe)
        done = attempts.of(Purpose.NUMERICS).of_trial(candidate.trial).recorded()
        if not done and reference.result.state == AttemptState.COMPLETE:
            expected = trajectory(blocks(reference.id))
            return Check(Purpose.NUMERICS, candidate.trial, checked, expected)
    return None


def missing_runs(
    finalists: Iterable[Knobs], baseline: Knobs, attempts: Attempts
) -> list[dict[str, Any]]:
    """The configurations that are to be run before these may be confirmed, references among them."""
    missing: list[dict[str, Any]] = []
    for knobs in finalists:
        if not touched(knobs, baseline):
            continue
        checked = checked_knobs(knobs, baseline)
        safe = reference_knobs(checked)
        if _reference(safe, attempts) is None and safe not in missing:
            missing.append(safe)
        if not attempts.of(Purpose.NUMERICS).recorded().with_knobs(checked):
            missing.append(checked)
    return missing


def record(attempts: Attempts, blocks: Blocks) -> GateRecord:
    """What the recorded runs have shown."""
    passed: dict[int, Agreement] = {}
    refused: list[Refusal] = []
    for attempt in attempts.of(Purpose.NUMERICS).recorded():
        if attempt.result.state == AttemptState.COMPLETE:
            passed[attempt.trial] = compared(attempt, attempts, blocks)
        else:
            cause = attempt.result.cause or attempt.result.state
            # It is checked with a smaller micro-batch.
            own = attempts.of(Purpose.SEARCH).of_trial(attempt.trial).first or attempt
            refused.append(Refusal(attempt.trial, own.knobs, cause))
    unchecked = {
        a.trial: f"the reference ended in {a.result.state}: {a.result.cause}"
        for a in attempts.of(Purpose.REFERENCE).recorded()
        if a.result.state != AttemptState.COMPLETE
    }
    return GateRecord(passed, tuple(refused), unchecked)


def compared(attempt: StoredAttempt, attempts: Attempts, blocks: Blocks) -> Agreement:
    """How a recorded trajectory compares with its reference, which is always recorded before it."""
    reference = _reference(reference_knobs(attempt.knobs), attempts)
    assert reference is not None
    return agreement(trajectory(blocks(attempt.id)), trajectory(blocks(reference.id)))


def touched(knobs: Knobs, baseline: Knobs) -> list[str]:
    """Knobs that may change the numbers which training computes, against baseline and defaults."""
    return [
        name
        for name, knob in CATALOGUE.items()
        if knob.numerics
        and knobs[name] not in (baseline[name], knob.default)
        and (not knob.numerics_for or knobs[name] in knob.numerics_for)
    ]


def checked_knobs(knobs: Knobs, baseline: Knobs) -> dict[str, Any]:
    """The configuration as it is checked: with a micro-batch that also fits in the reference."""
    return {**knobs, "micro_batch": min(knobs["micro_batch"], baseline["micro_batch"])}


def reference_knobs(checked: Knobs) -> dict[str, Any]:
    """The same samples in the same steps, everything else as a plain fp32 script does it."""
    trained = {name: checked[name] for name, knob in CATALOGUE.items() if knob.schedule}
    return {**defaults(), **trained}


def _reference(safe: Knobs, attempts: Attempts) -> StoredAttempt | None:
    return attempts.of(Purpose.REFERENCE).recorded().with_knobs(safe).first
