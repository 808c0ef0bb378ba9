"""Checks of a reduced winner: what is left must train the same, and fit, as the winner does. Pure."""

from dataclasses import dataclass
from typing import Any

from autotune.analysis.barred import Barred
from autotune.analysis.contributions import CheckOutcome
from autotune.analysis.finalists import Candidate
from autotune.analysis.gate_plan import Check, next_check
from autotune.analysis.gate_runs import checkable, compared, first_references
from autotune.analysis.sameness import Comparison
from search_spaces.knob import Knobs
from search_spaces.numerics import touched
from storage import Attempts, AttemptState, Blocks, Purpose


@dataclass(frozen=True)
class ReducedChecks:
    """Checks of what is left of one winner.

    Attributes:
        attempts: attempts of the study.
        baseline: a value for every knob.
    """

    attempts: Attempts
    blocks: Blocks
    baseline: Knobs
    comparison: Comparison
    barred: Barred
    winner: Candidate

    def judge(self, left: Knobs) -> CheckOutcome:
        """Return whether the winner may be reduced to this configuration."""
        if self._known_bad(left) or not self.comparison.holds_without(self.winner.knobs, left):
            return CheckOutcome.REFUSED
        if self.missing_check(left) or self.lacks_longest(left):
            return CheckOutcome.OPEN
        return CheckOutcome.PASSED if self._agrees(left) else CheckOutcome.REFUSED

    def missing_check(self, left: Knobs) -> Check | None:
        """Return the run that the numerics gate lacks; None if it lacks none."""
        if not self._computes_otherwise(left):
            return None
        candidate = Candidate(self.winner.trial, dict(left), self.winner.peak_bytes)
        return next_check([candidate], self.baseline, self.attempts, self.blocks)

    def lacks_longest(self, left: Knobs) -> bool:
        """Return whether the winner has run on the longest samples, and what is left has not."""
        runs = self.attempts.of(Purpose.LONGEST).of_trial(self.winner.trial).conclusive()
        return bool(runs.with_knobs(self.winner.knobs)) and not runs.with_knobs(left)

    def _known_bad(self, left: Knobs) -> bool:
        """Return whether another trial with these knobs, or of their kind, is refused.

        A run on the longest samples that failed counts, whatever trial it was made for.
        """
        longest = self.attempts.of(Purpose.LONGEST).conclusive().with_knobs(left)
        refused = {*self.barred.trials, *self.barred.numerics}
        return (
            any(run.result.state != AttemptState.COMPLETE for run in longest)
            or any(run.trial in refused for run in self.attempts.searched().with_knobs(left))
            or self.barred.covers(left, self.baseline)
        )

    def _computes_otherwise(self, left: Knobs) -> bool:
        """Return whether what is left may change the numbers, and not as the winner does."""
        own = self._touched(left)
        return bool(own) and own != self._touched(self.winner.knobs)

    def _touched(self, knobs: Knobs) -> dict[str, Any]:
        names = touched(knobs, self.baseline, self.attempts.harmless)
        return {name: knobs[name] for name in names}

    def _agrees(self, left: Knobs) -> bool:
        """Return whether the last check of what is left has passed, or none is needed."""
        if not self._computes_otherwise(left):
            return True
        checked, _ = checkable(left, self.baseline, first_references(self.attempts))
        checks = self.attempts.of(Purpose.NUMERICS).conclusive().of_trial(self.winner.trial)
        last = checks.with_knobs(checked).last
        if last is None or last.result.state != AttemptState.COMPLETE:
            return False
        agreed = compared(last, self.attempts, self.blocks)
        return not agreed.open and not agreed.unproven
