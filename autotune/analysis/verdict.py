"""Data of a verdict: what a study answers, and what that rests on. Its text is in views.verdict_text."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from autotune.analysis.batches import BatchChange
from autotune.analysis.gate import Refusal
from autotune.analysis.memory import Memory, Outgrown
from autotune.analysis.outcomes import Failure, Outcomes, SearchBest
from autotune.analysis.policy import PROOF
from autotune.measurement.estimate import Ratio
from autotune.measurement.numerics import Agreement
from autotune.worker.decoding import decoded

VERSION = 2
"""Version of the stored data. Version 1 had a sentence in place of the data that tell it."""


class Kind(StrEnum):
    """Outcome of a study."""

    BETTER = "better"
    NOTHING_BETTER = "nothing_better"
    UNDECIDED = "undecided"
    """The noise is larger than the difference."""
    NO_BASELINE = "no_baseline"
    """The baseline cannot run."""
    NO_RESULT = "no_result"
    NOT_ENOUGH_TIME = "not_enough_time"
    """Nothing could be confirmed in the available time."""


@dataclass(frozen=True)
class Finalist:
    """Candidate of the confirmation.

    Attributes:
        baseline: True for the user's configuration.
        rates: throughput by round.
        ratio_to_recommended: its throughput over that of the recommended configuration: for the
            baseline in the rounds that the speed-up rests on, for others in those that chose; None if
            it never ran.
        dropped_after_round: counted from one; None if it stayed to the end.
    """

    trial: int
    knobs: dict[str, Any]
    baseline: bool
    rates: tuple[float, ...]
    ratio_to_recommended: Ratio | None
    dropped_after_round: int | None


@dataclass(frozen=True)
class Contender:
    """Fastest alternative to a baseline that is kept.

    Attributes:
        gain: its speed-up over the baseline, with interval.
        contradicted_by: number of fresh rounds, too few for a figure of their own, in which it was
            not faster; 0 otherwise.
    """

    trial: int
    knobs: dict[str, Any]
    gain: Ratio
    contradicted_by: int = 0


@dataclass(frozen=True)
class Numerics:
    """Agreement of a configuration with the fp32 reference.

    Attributes:
        loss_distance: of the mean losses in the last quarter of the steps, relative; None if it could
            not be checked.
        norm_ratio: median gradient norm over the reference's; None likewise.
        unverified: reason why it could not be checked; empty if it was.
        share_of_progress: the distance in units of the reference's progress, which is judged; None
            where that was too small to compare with.
    """

    loss_distance: float | None = None
    norm_ratio: float | None = None
    unverified: str = ""
    steps: int = 0
    share_of_progress: float | None = None

    @classmethod
    def of(cls, found: Agreement) -> Self:
        """Return the figures of a comparison."""
        return cls(
            found.loss_distance,
            found.norm_ratio,
            steps=found.steps,
            share_of_progress=found.share_of_progress,
        )


@dataclass(frozen=True)
class FasterUnverified:
    """Configuration that the search saw faster than the answer, and that may compute something else.

    Attributes:
        ratio: its speed-up over the baseline, as the tables of trials have it; over the answer if the
            baseline has no rate.
        touched: names of the knobs that may change the loss.
    """

    knobs: dict[str, Any]
    ratio: Ratio
    touched: tuple[str, ...]


@dataclass(frozen=True)
class SoakResult:
    """Result of a pair of long runs.

    Attributes:
        seconds: length of each.
        ratio: throughput of the recommended configuration over the baseline's.
        shift: that ratio over the ratio of the short runs.
    """

    seconds: float
    ratio: Ratio
    shift: Ratio

    @property
    def contradicts(self) -> bool:
        """True if the short runs told something else."""
        return self.shift.distinguishable


@dataclass(frozen=True)
class Verdict:
    """Answer of a study, as data.

    Attributes:
        trial: trial of the recommended configuration; None if nothing is recommended.
        knobs: the recommended configuration.
        throughput: its rate with interval, per second.
        speedup: over the baseline, with interval; None if the baseline did not run.
        baseline: the baseline's rate with interval; None likewise.
        finalists: all candidates of the confirmation.
        rounds: number of rounds that throughput, speed-up and the baseline's rate rest on. Where
            steps are timed one by one, runs of the baseline by itself add to them.
        chosen_in: number of earlier rounds, of all finalists, that chose; 0: the same rounds.
        numerics: agreement of the recommended configuration; None if it was not compared.
        refused: configurations that do not follow the reference.
        provisional: True until the study has ended.
        missing_seconds: approximate time that would lead further; None if no time would, or it is
            unknown.
        missing_rounds: approximate number of rounds that would lead further, where the study may not
            have as many; None elsewhere, and if no number would.
        measured_on: name of the machine; empty if nothing was measured.
        memory: memory of the recommended configuration; None if it changes nothing.
        soak: result of a pair of long runs; None if there was none.
        trials: number of recorded trials of the search.
        baseline_failure: how the baseline ended; None if it completed or did not run.
        baseline_rounds: number of rounds in which the baseline ran.
        contender: fastest alternative where the baseline is kept; None if there is none.
        most_gain: highest relative gain over the baseline that the rounds leave possible.
        behind: relative distance to the best of the finalists, at most; None if that is unknown.
        reverted: changes of the winner that bring nothing, with the values of the baseline.
        failed: finalists that failed in the confirmation.
        batch: change of the global batch; None if there is none.
        touched: changed knobs that may change the loss.
        risks: what is not shown of data, graph and statistics, in sentences.
        exhausted: True if all rounds that are allowed have been measured.
        hindrance: failure or reason because of which no time would help; None if none is known.
        outgrown: trials refused for their memory; None if there are none.
        outcomes: ends of the attempts; None if something was measured.
        search_best: fastest trial of the search where nothing was confirmed; None elsewhere.
        unmeasured_leader: trial of the search that looked fastest and was not measured again, where
            nothing was; None elsewhere.
        unverified: faster configuration that may compute something else; None if there is none.
        soak_failure: failure of the long run; None if it did not fail.
        version: version of these data.
        told: text of a verdict of version 1.
    """

    kind: Kind
    trial: int | None = None
    knobs: dict[str, Any] | None = None
    throughput: Ratio | None = None
    speedup: Ratio | None = None
    baseline: Ratio | None = None
    finalists: tuple[Finalist, ...] = ()
    rounds: int = 0
    chosen_in: int = 0
    numerics: Numerics | None = None
    refused: tuple[Refusal, ...] = ()
    provisional: bool = False
    missing_seconds: float | None = None
    missing_rounds: int | None = None
    measured_on: str = ""
    memory: Memory | None = None
    soak: SoakResult | None = None
    unit: str = ""
    study: str = ""
    baseline_knobs: dict[str, Any] = field(default_factory=dict)
    trials: int = 0
    baseline_failure: Failure | None = None
    baseline_rounds: int = 0
    contender: Contender | None = None
    most_gain: float | None = None
    behind: float | None = None
    reverted: dict[str, Any] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    batch: BatchChange | None = None
    touched: tuple[str, ...] = ()
    risks: str = ""
    exhausted: bool = False
    hindrance: Failure | None = None
    outgrown: Outgrown | None = None
    outcomes: Outcomes | None = None
    search_best: SearchBest | None = None
    unmeasured_leader: Contender | None = None
    unverified: FasterUnverified | None = None
    soak_failure: Failure | None = None
    version: int = VERSION
    told: str = ""

    @property
    def confirmed(self) -> bool:
        """True if rounds of the confirmation support the answer, and not only trials of the search."""
        return not self.provisional or self.rounds >= PROOF.fewest_rounds

    @property
    def told_by_choice(self) -> bool:
        """True if rounds that chose one of several finalists are among those that tell the speed-up."""
        several = sum(not one.baseline for one in self.finalists) > 1
        better = self.kind is Kind.BETTER and not self.provisional
        return better and several and not self.chosen_in

    def telling(self, finalist: Finalist) -> tuple[float, ...]:
        """Return a finalist's throughput in the rounds that the figures rest on.

        For one that did not run in those, it is the throughput in the rounds that chose.
        """
        alone = len(finalist.rates) > self.chosen_in
        return finalist.rates[self.chosen_in :] if alone else finalist.rates

    @property
    def own_rates(self) -> tuple[float, float]:
        """Lowest and highest rate of the answer in the rounds that its figures rest on."""
        assert self.throughput is not None
        own = (self.telling(one) for one in self.finalists if one.trial == self.trial)
        rates = next(own, ()) or (self.throughput.value,)
        return min(rates), max(rates)

    def as_dict(self) -> dict[str, Any]:
        """Return the data for JSON; an infinite bound, which one round gives, becomes None."""
        body: dict[str, Any] = _finite(asdict(self))
        return body

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> Self:
        """Return the verdict that `as_dict` wrote; one of version 1 has fewer data, and its text."""
        return decoded(cls, body)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
