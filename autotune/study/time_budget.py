"""The time of a study: what is left of it, and what the rest of the study will cost.

What proves a result is paid for first: the search has what numerics gate and confirmation leave, and
the closer look what is left after them. No trial is started, or goes on, in the time of the proof; where
that is not there, the search ends as soon as there is something to compare the baseline with.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.analysis.compilation import graph
from autotune.analysis.finalists import may_be_faster
from autotune.analysis.finals_price import FinalsPrice, ProofPlan
from autotune.analysis.policy import PROOF
from autotune.analysis.process_spread import ProcessSpread
from autotune.analysis.shortfall import WallTime
from autotune.measurement.measure import Measure
from autotune.study.context import BASELINE, StudyContext
from autotune.study.pairing import Residency, lost_interleaved
from autotune.study.policy import STUDY
from autotune.study.stopping import SearchEnd
from autotune.worker.protocol import NO_LIMIT, TimeLimit
from search_spaces.knob import Knobs
from storage import SEARCH_RUNS, Attempts, Purpose, SearchEndCause


class TimeBudget:
    """Time budget of one study, some of which an earlier daemon may have spent.

    Five amounts of seconds are told apart:

    - `left`: until the wall time is over; no run is planned beyond it.
    - `_until_late_end`: the same and a small share of the wall time, within which what has begun may
      end.
    - the price of the proof (`FinalsPrice.shortest`): what finals of the fastest rival cost at least.
    - `_free`: what is left without that, and without the share that is reserved for the proof at least.
    - `_for_search`: the same; all that is left, where there is no rival yet and no time for both.
    """

    def __init__(self, context: StudyContext) -> None:
        """Go on counting from what has elapsed, by the clock of the launcher."""
        self._context = context
        self._baseline = context.setup.baseline
        self._clock = context.setup.launcher.clock
        self._started = self._clock() - context.study.elapsed
        self._wall_time = context.setup.spec.budget.wall_time
        on_device = self._on_device = context.on_device
        self._residency = Residency(context)
        self._price: FinalsPrice | None = None
        self._spread_of: dict[int, ProcessSpread | None] = {}
        """Spread between processes, by the id of the attempt whose steps tell it."""
        self._calibration_share = (
            STUDY.calibration_on_device if on_device else STUDY.calibration_share
        )
        self.rounds = min(context.setup.spec.measurement.rounds, STUDY.good_rounds)
        """Number of rounds of the confirmation among which its time is divided."""

    @property
    def limited(self) -> bool:
        """True if the time has an end."""
        return self._wall_time is not None

    @property
    def left(self) -> float:
        """Seconds; infinite without a limit, below zero beyond it."""
        if self._wall_time is None:
            return math.inf
        return self._wall_time - self.elapsed

    @property
    def wall_time(self) -> WallTime | None:
        """Wall time of the study and what is left of it; None: no limit."""
        return None if self._wall_time is None else WallTime(self._wall_time, self.left)

    def may_end(self, seconds: float) -> bool:
        """Return whether what has begun may take this long."""
        return seconds <= self._until_late_end

    def share(self, of_what_is_left: float, at_least: float = 0.0) -> TimeLimit:
        """Return the time limit of a run that has this share of what is left.

        Args:
            at_least: seconds, if there are so many.
        """
        if not self.limited:
            return NO_LIMIT
        seconds = max(of_what_is_left * self.left, at_least)
        wanted = min(seconds, max(0.0, self.left))
        return TimeLimit(wanted, min(STUDY.longest_overrun * seconds, self._until_late_end))

    # The largest micro-batch

    def for_fit(self, attempts: Attempts) -> TimeLimit:
        """Return the time limit of the next run for the largest micro-batch, before the search."""
        if self._wall_time is None:
            return NO_LIMIT
        share = STUDY.fit_budget * self._wall_time - _fit_seconds(attempts)
        seconds = max(STUDY.fit_least * self._wall_time, share)
        return TimeLimit(seconds, seconds)

    def fit_is_spent(self, attempts: Attempts) -> bool:
        """Return whether the share of the budget for such runs is spent."""
        budget, seconds = self._context.setup.spec.budget, _fit_seconds(attempts)
        hours = seconds * self._context.setup.launcher.ranks / 3600
        return any(
            limit is not None and spent >= STUDY.fit_budget * limit
            for spent, limit in ((seconds, budget.wall_time), (hours, budget.device_hours))
        )

    # The search

    def for_opening(self) -> TimeLimit:
        """Return the time limit of the profile of the baseline, before anything is known.

        What is built for it is not lost where the baseline's own trial goes on from there.
        """
        if self._wall_time is None:
            return NO_LIMIT
        looks = STUDY.opening_share * self._wall_time
        built = STUDY.first_trial_most * self._wall_time if self._context.profile_stays else 0.0
        return TimeLimit(looks, min(built + looks, self._until_late_end))

    def pays_to_look(self) -> bool:
        """Return whether there is time for a profile before the search.

        A workload that cannot be reused, or anything on a CUDA device, starts anew for it.
        """
        limit = self.for_opening()
        dear = self._on_device or not self._context.setup.spec.workload.reusable
        return not dear or limit.hard >= STUDY.shortest_look

    def for_trial(self, attempts: Attempts, knobs: Knobs | None = None) -> TimeLimit:
        """Return the time limit of the next trial of the search.

        Args:
            knobs: configuration of the trial; None: the baseline's.
        """
        if self._wall_time is None:
            return NO_LIMIT
        price = self.finals_price(attempts)
        if not price.costs.known:
            measured = STUDY.first_trial_share * self._wall_time
            wanted = measured + price.costs.startup
            most = max(STUDY.first_trial_most * self._wall_time, wanted)
            return TimeLimit(wanted, min(most, self._until_late_end))
        to_come = max(1, STUDY.trials_in_short - len(attempts.searched()))
        costs = price.costs
        compiling = costs.compilation(knobs or self._baseline) - costs.compilation(self._baseline)
        return self._of_search(price, 1 / to_come, max(0.0, compiling))

    def for_calibration(self, attempts: Attempts) -> TimeLimit:
        """Return the time limit of another run of the baseline in the search."""
        price = self.finals_price(attempts)
        if self._wall_time is None or not price.costs.known:
            return self.for_trial(attempts)
        return self._of_search(price, self._calibration_share)

    def for_late_trial(self, knobs: Knobs, price: FinalsPrice) -> TimeLimit:
        """Return the time limit of a trial whose own proof follows at once."""
        if self._wall_time is None:
            return NO_LIMIT
        free = max(0.0, self._until_late_end - self._late_proof(knobs, price))
        wanted = max(free / STUDY.trials_in_short, price.costs.shortest(knobs))
        return TimeLimit(min(wanted, free), min(STUDY.longest_overrun * wanted, free))

    def lacks_for_late_trial(self, knobs: Knobs, price: FinalsPrice) -> float:
        """Return seconds that are missing for such a trial and its proof; at most 0 if none are."""
        return price.costs.shortest(knobs) + self._late_proof(knobs, price) - self._until_late_end

    def _late_proof(self, knobs: Knobs, price: FinalsPrice) -> float:
        """Return seconds of the proof that follows: of the trial or, if that fails, of a rival."""
        others = price.shortest(self._until_late_end) if price.eligible() else 0.0
        return max(price.of_untried(knobs), others)

    def _of_search(self, price: FinalsPrice, share: float, compiling: float = 0.0) -> TimeLimit:
        """Return the limit of a run that has a share of the time for the search.

        A slow launch may take more of that time, and nothing of the time of the proof.

        Args:
            compiling: seconds that the run compiles, which it has beyond its share.
        """
        free, shortest = self._for_search(price), price.costs.shortest(self._baseline)
        wanted = max(share * free, shortest)
        most = max(
            STUDY.longest_overrun * (wanted + compiling),
            STUDY.longer_launch * (shortest + compiling),
        )
        soft = max(0.0, min(wanted, free - compiling))
        return TimeLimit(soft, max(0.0, min(most, free)), compiling)

    def affordable(self, attempts: Attempts) -> Callable[[Knobs], bool]:
        """Return the function that tells whether there is time to compile and prove a configuration.

        What compiles no more than the baseline is afforded as any trial.
        """
        price, known = self.finals_price(attempts), dict[tuple[Any, ...], bool]()

        def affords(knobs: Knobs) -> bool:
            # There may be thousands of configurations, of few graphs.
            if (compiled := graph(knobs)) not in known:
                known[compiled] = self.lacks(knobs, price) <= 0
            return known[compiled]

        return affords

    def lacks(self, knobs: Knobs, price: FinalsPrice) -> float:
        """Return seconds of wall time that are missing to compile and prove a configuration.

        At most 0 where there are enough.
        """
        costs = price.costs
        dearer = costs.compilation(knobs) > costs.compilation(self._baseline)
        if self._wall_time is None or not costs.known or not dearer:
            return 0.0
        trial = max(costs.shortest(knobs), costs.expected(knobs, None))
        for_proof = trial + price.of_untried(knobs) - self._until_late_end
        # Part of any further wall time is reserved for the proof: the rest of it helps the search.
        in_search = (costs.shortest(knobs) - self._for_search(price)) / (1 - PROOF.reserved_share)
        return max(for_proof, in_search)

    def why_spent(self, attempts: Attempts) -> SearchEnd | None:
        """Return why there is no time for another trial; None while there is."""
        text = self._no_time(attempts)
        return SearchEnd(SearchEndCause.WALL_TIME, text) if text else None

    def _no_time(self, attempts: Attempts) -> str:
        """Return what the wall time is spent on, in words; empty while another trial has time."""
        price = self.finals_price(attempts)
        spent = f"{self.elapsed:.0f} s of the wall time are spent"
        if not price.costs.known:
            # No run has shown a step yet, and a shorter one than those that ended would not either.
            vain = max((a.result.wall_seconds for a in attempts.searched().recorded()), default=0.0)
            return "" if self.left > vain else f"{spent}, and no trial has come to its first step"
        if self._for_search(price) - self._wished(price) >= price.costs.shortest(self._baseline):
            return ""
        if not self.may_end(price.shortest(self._until_late_end)):
            return f"{spent}, and the rest is too short for another trial and its proof"
        return f"{spent}; the other {self.left:.0f} s are for what proves the result"

    def may_calibrate(self, attempts: Attempts) -> bool:
        """Return whether the baseline may run once more to show the noise."""
        price = self.finals_price(attempts)
        if price.plan.needed == PROOF.fewest_alone and len(self._context.setup.launcher.slots) == 1:
            return False  # its steps tell the noise, and the proof runs it again as often as needed
        share = self._calibration_share * self._free(price)
        return price.costs.shortest(self._baseline) <= share

    def for_undisturbed_run(self, attempts: Attempts) -> TimeLimit | None:
        """Return the time limit of another run of the baseline where disturbed ones leave no time.

        All that is planned is priced by the median of these runs, and a disturbed one can take many
        times as long as usual. None: the search need not end, little time is left, or most of them were
        not disturbed.
        """
        if self._wall_time is None or not self._no_time(attempts):
            return None
        own = attempts.of(*SEARCH_RUNS).of_baseline().recorded()
        runs, allowed = own.complete(), self._context.setup.spec.measurement.baseline_runs
        most_undisturbed = 2 * sum(run.result.contended for run in runs) < len(runs)
        if not runs or most_undisturbed or len(own) >= min(STUDY.disturbed_runs, allowed):
            return None
        price = self.finals_price(attempts)
        shortest = price.costs.shortest(self._baseline)
        proves = self.may_end(price.shortest(self._until_late_end))
        much = self.left >= STUDY.left_unused * self._wall_time
        fits = much and self.may_end(shortest)
        return self.share(self._calibration_share, shortest) if fits and not proves else None

    def _wished(self, price: FinalsPrice) -> float:
        """Return seconds beyond those that are needed, once a gain is beyond doubt.

        They make the proof surer, or tell more of the gain, than another trial adds to it.
        """
        own, first = price.attempts.baseline(), next(iter(price.eligible()), None)
        if own is None or first is None or may_be_faster(own, first):
            return 0.0
        if price.plan.needed >= PROOF.fewest_rounds:
            seconds, whole = price.another_seed(first.knobs), self._wall_time or math.inf
            return seconds if seconds <= STUDY.another_seed_most * whole else 0.0
        return 0.0 if price.plan.repeats else price.usual_round([own.knobs, first.knobs])

    def _free(self, price: FinalsPrice) -> float:
        """Return seconds that the proof leaves to the search."""
        if self._wall_time is None:
            return math.inf
        needed = price.shortest(self._until_late_end) + price.further_steps()
        return self.left - max(PROOF.reserved_share * self._wall_time, needed)

    def _for_search(self, price: FinalsPrice) -> float:
        """Return seconds that the search may still take.

        Without a rival there is nothing to prove; where there is no time for both the rival comes first.
        """
        free = self._free(price)
        too_short = free < price.costs.shortest(self._baseline)
        return max(0.0, self.left) if too_short and not price.eligible() else free

    # The finals

    def finals_price(self, attempts: Attempts) -> FinalsPrice:
        """Return the price of the finals by what is recorded."""
        if self._price is None or self._price.attempts is not attempts:
            self._price = self._price_by(attempts)
        return self._price

    def _price_by(self, attempts: Attempts) -> FinalsPrice:
        barred = self._context.barred()
        price = FinalsPrice(attempts, self._context.costs(), self._baseline, barred)
        if (spread := self._spread(attempts)) is None:
            return price
        repeats = STUDY.repeats_if_unsteady if spread.unsteady(BASELINE) else 0
        at_once = self._may_be_resident(price)
        return replace(price, plan=ProofPlan(PROOF.fewest_alone, repeats, at_once))

    def _may_be_resident(self, price: FinalsPrice) -> bool:
        """Return whether the fastest rival and the baseline may be resident at once."""
        own = price.attempts.baseline()
        if own is None or lost_interleaved(price.attempts):
            return False
        first = next(iter(price.eligible()), own)
        peak_bytes = own.result.peak_bytes + first.result.peak_bytes
        return not self._residency.obstacle([own.knobs, first.knobs], peak_bytes)

    def _spread(self, attempts: Attempts) -> ProcessSpread | None:
        """Return what the steps of the baseline's own trial tell, which is read once."""
        own = attempts.baseline()
        blocks = Measure.of(self._context.setup.spec).step_blocks(self._context.blocks)
        if own is None or blocks is None:
            return None
        if own.id not in self._spread_of:
            self._spread_of[own.id] = ProcessSpread.of(attempts, blocks, ())
        return self._spread_of[own.id]

    def for_proof(self, share: float, shortest: float, others: float) -> TimeLimit:
        """Return the time limit of a run of the finals.

        It is ended early only for the sake of the others, and never before the shortest run is over.

        Args:
            shortest: seconds of the shortest run.
            others: seconds of the other runs without which it proves nothing.
        """
        if not self.limited:
            return NO_LIMIT
        wanted = max(share * self.left, shortest)
        most = max(STUDY.longest_overrun * wanted, self._until_late_end - others)
        # A run that is begun has what shows something: the study may end a little later for it.
        return TimeLimit(min(wanted, max(shortest, self.left)), min(most, self._until_late_end))

    def soak_seconds(self) -> float:
        """Return how long each of the two soak runs is to measure; 0 where that shows too little."""
        rest = STUDY.soak_of_rest * self.left - self._context.costs().startup
        seconds = min(STUDY.longest_soak, STUDY.soak_of_study * self.elapsed, rest)
        return seconds if seconds >= STUDY.shortest_soak else 0.0

    def for_soak(self, knobs: Knobs, seconds: float) -> TimeLimit:
        """Return the time limit of a soak run that trains for so many seconds."""
        if not self.limited:
            return NO_LIMIT
        most = seconds + self._context.costs().shortest(knobs)
        return TimeLimit(most, most)

    @property
    def elapsed(self) -> float:
        """Seconds that the study has taken."""
        return self._clock() - self._started

    @property
    def _until_late_end(self) -> float:
        """Seconds that anything may still take."""
        return max(0.0, self.left + STUDY.late_end * (self._wall_time or 0.0))


def _fit_seconds(attempts: Attempts) -> float:
    """Return seconds that the runs for the largest micro-batch have taken."""
    return sum(run.result.wall_seconds for run in attempts.of(Purpose.FIT).recorded())
