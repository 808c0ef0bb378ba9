"""Sync of a study's note and attributes with optuna-dashboard."""

import time
from collections.abc import Iterator

from autotune.analysis.conclusion import StudyFacts, build_verdict
from autotune.analysis.levels import Levels, levelled
from autotune.analysis.provenance import Records
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import counted, difference
from autotune.study.context import StudyContext
from autotune.views.figure_text import range_text, ratio_text
from autotune.views.notes import study_note, trial_note
from autotune.views.verdict_text import text_of
from storage import Purpose, TrialLedger

EVERY_SECONDS = 1.0
"""Shortest interval: each update takes some ten milliseconds of a short trial."""


class DashboardSync:
    """Note and attributes of one study, written when they have changed."""

    def __init__(self, context: StudyContext, ledger: TrialLedger) -> None:
        self._context = context
        self._ledger = ledger
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
        self._ledger.set_attributes(dict(self._attributes(verdict)))
        note = study_note(verdict, self._context.plan.spec.job_knobs)
        if note != self._note:
            self._ledger.note(note)
            self._note = note

    def _attributes(self, verdict: Verdict) -> Iterator[tuple[str, str]]:
        """Yield the five attributes that fit beside the best trial on one page."""
        yield "verdict", text_of(verdict)
        if verdict.trial is None or verdict.throughput is None:
            return
        changed = difference(verdict.knobs or {}, self._context.plan.baseline)
        yield "recommended", f"trial {verdict.trial}: {changed}"
        how = "provisional" if verdict.provisional else "confirmed"
        yield "throughput", f"{how}: {range_text(verdict.own_rates, self._unit)}"
        if verdict.speedup:
            yield "speed-up", f"{how}: {ratio_text(verdict.speedup)}"
        searched = levelled(self._context.attempts()).searched().complete()
        best = max(searched, key=lambda attempt: attempt.result.throughput or 0.0)
        yield (
            "highest value",
            f"trial {best.trial}: seen once, the luckiest of {counted(len(searched), 'trial')}",
        )

    def _note_finalists(self, verdict: Verdict) -> None:
        attempts = self._context.attempts()
        searched = {a.trial: a for a in attempts.of(Purpose.SEARCH).recorded()}
        levels = Levels.of(attempts)
        for finalist in verdict.finalists:
            own = searched[finalist.trial]
            level = levels.at(own.environment)
            result, rates = level.applied(own.result), verdict.telling(finalist)
            shown = self._context.plan.spec.job_knobs
            note = trial_note(own, result, self._unit, own=shown, confirmed=rates, level=level)
            self._ledger.note(note, trial=finalist.trial)
