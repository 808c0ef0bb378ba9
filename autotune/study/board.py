"""Note and attributes of a study in optuna-dashboard."""

import time
from collections.abc import Iterator

from autotune.analysis.conclusion import StudyFacts, build_verdict
from autotune.analysis.levels import Levels, levelled
from autotune.analysis.provenance import Records
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import counted, difference, quantity, rate_text
from autotune.study.job import Job
from autotune.views.notes import study_note, trial_note
from autotune.views.verdict_text import text_of
from storage import Purpose, TrialLedger

EVERY_SECONDS = 1.0
"""No reader looks more often, and each time takes some ten milliseconds of a short trial."""


class Board:
    """Kept up while the study goes on. Writes only what has changed."""

    def __init__(self, job: Job, ledger: TrialLedger) -> None:
        self._job = job
        self._ledger = ledger
        self._unit = job.plan.spec.unit
        self._note = ""
        self._updated = -EVERY_SECONDS
        self._behind = False

    def update(self, recorded: int) -> None:
        """Show what the records support by now, unless that was done a moment ago.

        Args:
            recorded: how many attempts, since it was called last.
        """
        self._behind |= recorded > 0
        if time.monotonic() - self._updated >= EVERY_SECONDS:
            self.catch_up()

    def catch_up(self) -> None:
        """Show what has been recorded since the last time."""
        if not self._behind:
            return
        self._updated, self._behind = time.monotonic(), False
        job = self._job
        records = Records.of(job.repository, job.attempts())
        facts = StudyFacts(job.study.name, ended=False)
        self.show(build_verdict(records, job.plan.spec, facts))

    def show(self, verdict: Verdict) -> None:
        """Show an answer; a verdict also in the notes of those that were measured again for it."""
        if not verdict.provisional:
            self._note_finalists(verdict)
        self._ledger.set_attributes(dict(self._attributes(verdict)))
        note = study_note(verdict)
        if note != self._note:
            self._ledger.note(note)
            self._note = note

    def _attributes(self, verdict: Verdict) -> Iterator[tuple[str, str]]:
        """Five, as many as are shown beside the best trial without turning a page."""
        yield "verdict", text_of(verdict)
        if verdict.trial is None or verdict.throughput is None:
            return
        changed = difference(verdict.knobs or {}, self._job.plan.baseline)
        yield "recommended", f"trial {verdict.trial}: {changed}"
        how = "provisional" if verdict.provisional else "confirmed"
        yield "throughput", f"{how}: {rate_text(verdict.throughput, self._unit)}"
        if verdict.speedup:
            bounds = f"{verdict.speedup.low:.2f} to {verdict.speedup.high:.2f}"
            yield "speed-up", f"{how}: {verdict.speedup.value:.2f}x (95 % interval {bounds})"
        searched = levelled(self._job.attempts()).searched().complete()
        best = max(searched, key=lambda attempt: attempt.result.throughput or 0.0)
        rate = quantity(best.result.throughput or 0.0)
        yield (
            "highest value",
            f"{rate} {self._unit}, trial {best.trial}: seen once, the luckiest of "
            f"{counted(len(searched), 'trial')}",
        )

    def _note_finalists(self, verdict: Verdict) -> None:
        attempts = self._job.attempts()
        searched = {a.trial: a for a in attempts.of(Purpose.SEARCH).recorded()}
        levels = Levels.of(attempts)
        for finalist in verdict.finalists:
            own = searched[finalist.trial]
            level = levels.at(own.environment)
            result, rates = level.applied(own.result), verdict.telling(finalist)
            note = trial_note(own, result, self._unit, confirmed=rates, level=level)
            self._ledger.note(note, trial=finalist.trial)
