"""Values, notes and attributes of a running study in Optuna, and its standing, for other programs.

The value of a trial is its rate over that of the first trial that was measured: throughput, or samples
per joule where energy is the objective. That trial is the baseline, unless it fails or another one
ends before it on another slot. Samplers and the stopping rule compare values with each other only, so
that the unit changes nothing.
"""

import math
import time
from collections.abc import Mapping, Sequence

from autotune.analysis.conclusion import VerdictInputs, build_verdict
from autotune.analysis.finalists import expected_gains
from autotune.analysis.node_speeds import NodeSpeed, NodeSpeeds, pooled_baseline
from autotune.analysis.provenance import Records
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import Terms, quantity
from autotune.search.trial_attributes import attributes_of, constraints_of, state_of
from autotune.study.context import StudyContext
from autotune.views import dashboard_notes
from search_spaces import KnobValue
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt, TrialLedger

_THROUGHPUT, _EFFICIENCY = "throughput over ", "samples per joule over "
"""First words of the objective's name where values are ratios; a study that an earlier version began
has rates, and goes on with them."""
_YOURS = "yours"
_WITH_A_VALUE = (AttemptState.COMPLETE, AttemptState.PRUNED)
EVERY_SECONDS = 1.0
"""Shortest interval: each update takes some ten milliseconds of a short trial."""
LARGEST_SHARE = 0.1
"""Largest share of the search's time for updates; one of ten thousand trials takes longer."""


class ObjectiveValues:
    """Unit of the values of one study, chosen when the first one is told."""

    def __init__(self, ledger: TrialLedger, unit: str) -> None:
        self._ledger = ledger
        self._unit = unit
        self._over = _EFFICIENCY if Terms.of(unit).of_energy else _THROUGHPUT

    def of(self, told: AttemptResult, attempts: Attempts) -> float | None:
        """Return the value of a result; None if nothing was measured.

        Args:
            told: as if it had run where the baseline did.
            attempts: of the study, the one of the result among them.
        """
        if told.throughput is None:
            return None
        if not self._ledger.objective and not self._are_rates(attempts):
            self._name(attempts)
        if not self._ledger.objective.startswith(self._over):
            return told.throughput
        return told.throughput / self._rate(attempts)

    def _rate(self, attempts: Attempts) -> float:
        """Return the rate of the trial that the objective's name tells.

        The first one by the records is another one where the clock was set back since it was named.
        """
        name = self._ledger.objective.removeprefix(self._over)
        measured = attempts.searched().measured()
        named = (one for one in measured if name == _name_of(one.trial, attempts))
        first = next(named, None)
        if first is None or first.result.throughput is None:
            return _first(attempts)[1]
        return first.result.throughput

    def _are_rates(self, attempts: Attempts) -> bool:
        """Return whether values were told that are rates.

        The name of the objective does not tell it: optuna-dashboard loses it when it renames a study.
        """
        trial, rate = _first(attempts)
        value = self._ledger.value(trial)
        return value is not None and math.isclose(value, rate)

    def text(self, value: float) -> str:
        """Return a value in words."""
        if not self._ledger.objective.startswith(self._over):
            return f"{quantity(value)} {self._unit}"
        return f"{value:.2f}x {self._ledger.objective.removeprefix(self._over)}"

    def expected(self, value: float, knobs: Mapping[str, KnobValue], attempts: Attempts) -> float:
        """Return what is expected of a configuration, over all runs of the user's own in the search.

        Of one that was tried it is what is said of finalists. Values over another trial stay.

        Args:
            value: what the sampler's model expects.
            knobs: a value for every knob.
        """
        own, mean = attempts.baseline(), pooled_baseline(attempts)
        if not self._are_over_yours or own is None or mean is None:
            return value
        gains, tried = expected_gains(attempts), attempts.searched().with_knobs(knobs).first
        if tried is not None and tried.trial in gains:
            return gains[tried.trial].value
        return value * (own.result.throughput or 0.0) / (mean.result.throughput or math.inf)

    @property
    def _are_over_yours(self) -> bool:
        return self._ledger.objective == self._over + _YOURS

    def is_no_gain(self, value: float) -> bool:
        """Return True for a ratio to the user's own configuration that is at most 1."""
        return self._are_over_yours and value <= 1

    def _name(self, attempts: Attempts) -> None:
        trial, _ = _first(attempts)
        self._ledger.name_objective(self._over + _name_of(trial, attempts))


def _name_of(trial: int, attempts: Attempts) -> str:
    own = attempts.baseline()
    return _YOURS if own is not None and own.trial == trial else f"trial {trial}"


def _first(attempts: Attempts) -> tuple[int, float]:
    """Return trial and rate of the result that was recorded first: the records alone decide."""
    return attempts.derived(_find_first)


def _find_first(attempts: Attempts) -> tuple[int, float]:
    measured = attempts.searched().measured()
    first = min(measured, key=lambda one: (one.ended or 0.0, one.id))
    assert first.result.throughput is not None
    return first.trial, first.result.throughput


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


class DashboardSync:
    """Notes, attributes and standing of one study, written when they have changed."""

    def __init__(self, context: StudyContext, ledger: TrialLedger) -> None:
        self._context = context
        self._ledger = ledger
        self._unit = context.setup.spec.unit
        self._note = ""
        self._next = -math.inf
        self._behind = False

    def update(self, recorded: bool) -> None:
        """Show what the records support by now, unless that was done a moment ago.

        Args:
            recorded: True if an attempt has been recorded since the last call.
        """
        self._behind |= recorded
        if time.monotonic() >= self._next:
            self.catch_up()

    def catch_up(self) -> None:
        """Show what has been recorded since the last time."""
        if not self._behind:
            return
        began, self._behind = time.monotonic(), False
        context = self._context
        records = Records.of(context.repository, context.attempts(), context.study.id)
        facts = VerdictInputs(context.study.name, ended=False)
        self.show(build_verdict(records, context.setup.spec, facts))
        context.record_standing()
        took = time.monotonic() - began
        self._next = began + max(EVERY_SECONDS, took / LARGEST_SHARE)

    def show(self, verdict: Verdict) -> None:
        """Show an answer; a verdict also in the notes of those that were measured again for it."""
        if not verdict.provisional:
            self._note_finalists(verdict)
        attempts, setup = self._context.attempts(), self._context.setup
        shown = dashboard_notes.attributes(verdict, attempts, setup.baseline, self._unit)
        self._ledger.set_attributes(dict(shown))
        note = dashboard_notes.study_note(verdict, setup.spec.job_knobs)
        if note != self._note:
            self._ledger.note(note)
            self._note = note

    def _note_finalists(self, verdict: Verdict) -> None:
        attempts = self._context.attempts()
        searched = {a.trial: a for a in attempts.of(Purpose.SEARCH).recorded()}
        speeds = NodeSpeeds.of(attempts)
        for finalist in verdict.finalists:
            own = searched[finalist.trial]
            speed, rates = speeds.at(own.environment), verdict.telling(finalist)
            note = self.trial_note(own, speed.applied(own.result), speed, confirmed=rates)
            self._ledger.note(note, trial=finalist.trial)

    def trial_note(
        self,
        attempt: StoredAttempt,
        result: AttemptResult,
        speed: NodeSpeed,
        *,
        confirmed: Sequence[float] = (),
    ) -> str:
        """Return the note of a trial.

        Args:
            result: of the attempt, as if it had run where the baseline did.
            speed: factor of its node, by which the result has been multiplied already.
            confirmed: its throughput by round, if it was measured again.
        """
        own = self._context.setup.spec.job_knobs
        return dashboard_notes.trial_note(
            attempt, result, self._unit, own=own, confirmed=confirmed, speed=speed
        )
