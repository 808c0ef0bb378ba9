"""Ablation of the winner: which of its changes bring nothing, and what each of the others brings."""

from collections.abc import Sequence
from typing import Any

from autotune.analysis import contributions
from autotune.analysis.confirmation import Confirmation
from autotune.analysis.contributions import Step, ablation_rounds, reduce_winner
from autotune.analysis.finalists import Candidate
from autotune.analysis.policy import PROOF
from autotune.analysis.reduced_checks import ReducedChecks
from autotune.analysis.round_results import runs_that_compare
from autotune.analysis.rounds import latest_gain_run
from autotune.analysis.sameness import Comparison, Rules
from autotune.runs.monitors import FitMonitor
from autotune.runs.policy import RUNS
from autotune.study.context import BASELINE
from autotune.study.policy import STUDY
from autotune.study.run_planner import PlannedAttempt
from autotune.study.runner import Runner
from storage import Purpose


class Ablation:
    """Ablation in one study, which goes on from wherever the records stand."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._context = runner.context
        self._setup = runner.context.setup
        self._time = runner.time

    def revert(self, confirmation: Confirmation) -> bool:
        """Make a run that shows which changes of the winner bring nothing; return whether it did.

        It is a round, or a check of what would be left. Without another run, leave out the changes that
        are known by then.
        """
        rounds = self._setup.spec.measurement.ablation_rounds
        if confirmation.selected is None or rounds < 2:
            return False
        attempts = self._context.attempts()
        if latest := latest_gain_run(confirmation, attempts):
            if not confirmation.gain_is_measured:
                confirmation.revert(latest.knobs)
            return False
        checks = self._checks(confirmation.candidates[confirmation.selected])
        found = reduce_winner(
            attempts.of_trial(confirmation.selected),
            checks.winner.knobs,
            self._setup.baseline,
            self._setup.facts,
            checks.judge,
            rounds=rounds,
            most=self._setup.spec.measurement.rounds,
        )
        if found.next and self._complete_step(confirmation, found.next):
            return True
        if found.to_check and self._check(confirmation, checks, found.to_check):
            return True
        confirmation.revert(found.knobs)
        return False

    def _checks(self, winner: Candidate) -> ReducedChecks:
        attempts, blocks = self._context.attempts(), self._context.blocks
        baseline = self._setup.baseline
        comparison = Comparison(attempts, blocks, baseline, Rules.of(self._setup.spec))
        return ReducedChecks(attempts, blocks, baseline, comparison, self._context.barred(), winner)

    def _check(
        self, confirmation: Confirmation, checks: ReducedChecks, left: dict[str, Any]
    ) -> bool:
        """Make a run that a reduced winner lacks; return False without time for it and the proof."""
        price, check = self._runner.price, checks.missing_check(left)
        seconds = price.costs.check(*check.run) if check else price.costs.profile(left)
        both = confirmation.knobs_of(confirmation.members())
        if self._time.left < seconds + price.rounds(both, confirmation.to_prove_reduced):
            return False
        if check:
            self._runner.run_check(check)
        else:
            attempt = PlannedAttempt(checks.winner.trial, left, Purpose.LONGEST)
            self._runner.run_monitored(attempt, FitMonitor(RUNS.blocks_of_fit))
        return True

    def _complete_step(self, confirmation: Confirmation, step: Step) -> bool:
        """Measure a round of variants; return False without time for it and for the proof."""
        chosen = confirmation.selected
        assert chosen is not None
        both = confirmation.knobs_of(confirmation.members())
        price = self._runner.price
        repeats = STUDY.most_repeats if confirmation.baseline_unsteady else 0
        kept = price.rounds(both, confirmation.to_prove_reduced)
        kept += repeats * price.costs.brief(self._setup.baseline)
        order = self._runner.drawn(step.configurations, "ablation", step.round)
        missing = [knobs for knobs in order if not self._is_measured(chosen, knobs, step.round)]
        rounds = max(1, PROOF.fewest_rounds + 1 - step.round) if confirmation.spread else 1
        # That many variants seldom fit in memory together: then each is launched by itself.
        if self._time.left < kept + rounds * price.one_by_one().round(missing):
            return False
        proof = len(both) * confirmation.to_prove_reduced
        self._run_round(chosen, missing, step.round, STUDY.idle_rounds, proof)
        return True

    def measure(self, chosen: int, winner: dict[str, Any], *, reduced: bool) -> None:
        """Measure the winner, and the winner less each of its changes, in rounds."""
        several = contributions.variants(winner, self._setup.baseline, self._setup.facts)
        rounds = self._setup.spec.measurement.ablation_rounds
        for number in ablation_rounds(rounds, reduced=reduced):
            order = self._runner.drawn(several, "ablation", number)
            # What an earlier daemon has measured of a round does not count once this one goes on.
            while missing := [k for k in order if not self._is_measured(chosen, k, number)]:
                # A round that is not complete compares nothing.
                if self._time.left < self._runner.price.round(missing):
                    return
                self._run_round(chosen, missing, number)

    def _run_round(
        self,
        chosen: int,
        missing: list[dict[str, Any]],
        number: int,
        rounds: int = 0,
        proof: int = 0,
    ) -> None:
        """Run the missing variants of a round, interleaved where they fit together.

        Args:
            rounds: number of such rounds that may follow; a few interleaved ones tell more than many.
            proof: number of later runs that are to have as much time each.
        """
        few = min(rounds, PROOF.fewest_rounds - 1)
        self._run_interleaved(chosen, missing, number, few * len(missing) + proof)
        after = rounds * len(missing) + proof
        for index, knobs in enumerate(missing):
            while not self._is_measured(chosen, knobs, number):
                if self._time.left <= 0:
                    return
                share = 1 / (len(missing) - index + after)
                limit = self._time.share(share, self._context.costs().shortest(knobs))
                attempt = PlannedAttempt(chosen, knobs, Purpose.ABLATION, round=number)
                self._runner.run_timed(attempt, limit)

    def _run_interleaved(
        self, chosen: int, missing: Sequence[dict[str, Any]], number: int, after: int
    ) -> None:
        """Run the variants interleaved, if they fit together and the round has not begun.

        Args:
            after: number of later runs that are to have as much time each.
        """
        attempts = self._context.attempts()
        if any(attempts.of(Purpose.ABLATION).of_trial(chosen).in_round(number)):
            return
        known = [a.result.peak_bytes for a in attempts.recorded() if a.trial in (chosen, BASELINE)]
        needed = max(known, default=0) * len(missing)
        limit = self._time.share(len(missing) / (len(missing) + after))
        members = [
            PlannedAttempt(chosen, knobs, Purpose.ABLATION, round=number) for knobs in missing
        ]
        self._runner.run_interleaved(members, limit, needed)

    def _is_measured(self, chosen: int, knobs: dict[str, Any], number: int) -> bool:
        runs = self._context.attempts().of_trial(chosen).of(Purpose.ABLATION).recorded()
        own = runs_that_compare(runs, number, self._context.lease.epoch)
        return bool(own.with_knobs(knobs))
