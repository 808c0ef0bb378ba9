"""Sync of a study's note and attributes with optuna-dashboard."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from autotune.analysis.conclusion import StudyFacts, build_verdict
from autotune.analysis.levels import AT_HOME, Level, Levels
from autotune.analysis.provenance import Records
from autotune.analysis.verdict import Verdict
from autotune.study.context import StudyContext
from storage import AttemptResult, Attempts, Purpose, StoredAttempt, TrialLedger

EVERY_SECONDS = 1.0
"""Shortest interval: each update takes some ten milliseconds of a short trial."""


class DashboardTexts(Protocol):
    """Texts for optuna-dashboard; the module `autotune.views.notes` has them."""

    def trial_note(
        self,
        attempt: StoredAttempt,
        result: AttemptResult,
        unit: str,
        *,
        own: Collection[str] = (),
        confirmed: Sequence[float] = (),
        level: Level = AT_HOME,
    ) -> str:
        """Return the note of a trial."""

    def study_note(self, verdict: Verdict, own: Collection[str] = ()) -> str:
        """Return the note of a study."""

    def attributes(
        self, verdict: Verdict, attempts: Attempts, baseline: Mapping[str, Any], unit: str
    ) -> Iterable[tuple[str, str]]:
        """Return names and texts of the attributes of a study."""


class DashboardSync:
    """Notes and attributes of one study, written when they have changed."""

    def __init__(self, context: StudyContext, ledger: TrialLedger, texts: DashboardTexts) -> None:
        self._context = context
        self._ledger = ledger
        self._texts = texts
        self._unit = context.plan.spec.unit
        self._note = ""
        self._updated = -EVERY_SECONDS
        self._behind = False

    def update(self, recorded: int) -> None:
        """Show what the records support by now, unless that was done a moment ago.

        Args:
            recorded: number of attempts recorded since the last call.
        """
        self._behind |= recorded > 0
        if time.monotonic() - self._updated >= EVERY_SECONDS:
            self.catch_up()

    def catch_up(self) -> None:
        """Show what has been recorded since the last time."""
        if not self._behind:
            return
        self._updated, self._behind = time.monotonic(), False
        context = self._context
        records = Records.of(context.repository, context.attempts(), context.study.id)
        facts = StudyFacts(context.study.name, ended=False)
        self.show(build_verdict(records, context.plan.spec, facts))

    def show(self, verdict: Verdict) -> None:
        """Show an answer; a verdict also in the notes of those that were measured again for it."""
        if not verdict.provisional:
            self._note_finalists(verdict)
        attempts, plan = self._context.attempts(), self._context.plan
        shown = self._texts.attributes(verdict, attempts, plan.baseline, self._unit)
        self._ledger.set_attributes(dict(shown))
        note = self._texts.study_note(verdict, plan.spec.job_knobs)
        if note != self._note:
            self._ledger.note(note)
            self._note = note

    def _note_finalists(self, verdict: Verdict) -> None:
        attempts = self._context.attempts()
        searched = {a.trial: a for a in attempts.of(Purpose.SEARCH).recorded()}
        levels = Levels.of(attempts)
        for finalist in verdict.finalists:
            own = searched[finalist.trial]
            level, rates = levels.at(own.environment), verdict.telling(finalist)
            note = self.trial_note(own, level.applied(own.result), level, confirmed=rates)
            self._ledger.note(note, trial=finalist.trial)

    def trial_note(
        self,
        attempt: StoredAttempt,
        result: AttemptResult,
        level: Level,
        *,
        confirmed: Sequence[float] = (),
    ) -> str:
        """Return the note of a trial.

        Args:
            result: of the attempt, as if it had run where the baseline did.
            level: factor of its node, by which the result has been multiplied already.
            confirmed: its throughput by round, if it was measured again.
        """
        own = self._context.plan.spec.job_knobs
        return self._texts.trial_note(
            attempt, result, self._unit, own=own, confirmed=confirmed, level=level
        )
