"""Result of a confirmation, taken from its state machine once."""

from dataclasses import dataclass
from typing import Any

from autotune.measurement.estimate import Ratio


@dataclass(frozen=True)
class FinalistResult:
    """Result of one finalist.

    Attributes:
        rates: throughput, round by round, fresh rounds last.
        figures: throughput in the rounds that figures are taken from; in all, if it ran in none.
        own_rate: rate with the interval of its own runs; None where the spread between processes is
            not known, or it never ran.
        gain: its speed-up over the baseline; None where one of the two failed or did not run.
        ratio_to_choice: its throughput over that of the choice; None if it never ran.
        dropped_after_round: counted from one; None if it stayed to the end.
    """

    trial: int
    knobs: dict[str, Any]
    rates: tuple[float, ...]
    figures: tuple[float, ...]
    own_rate: Ratio | None
    gain: Ratio | None
    ratio_to_choice: Ratio | None
    dropped_after_round: int | None


@dataclass(frozen=True)
class ConfirmationResult:
    """Result of a confirmation.

    Attributes:
        choice: trial to recommend.
        baseline: trial of the baseline; None if it is no candidate.
        baseline_fails: True if the baseline failed in the rounds, or is no candidate.
        finalists: result of each candidate, the baseline among them.
        rounds: number of rounds that figures are taken from.
        chosen_in: number of earlier rounds, which chose; 0: the same rounds.
        contender: fastest alternative, where the baseline is the choice; None if there is none.
        most_gain: highest relative gain over the baseline that the rounds leave possible; None where
            the baseline is not the choice.
        behind: relative distance of the choice to the best of the finalists, at most; None where it
            is the baseline, or has no rival.
        contradicted_by: number of fresh rounds that do not show the speed-up of the rounds that chose,
            and are too few for a figure of their own.
        exhausted: True if all rounds that are allowed have been measured.
        reverted: changes of the choice that were taken back, with the values that it has now.
        failed: trials that failed in a round, without the baseline.
    """

    choice: int
    baseline: int | None
    baseline_fails: bool
    finalists: dict[int, FinalistResult]
    rounds: int
    chosen_in: int
    contender: int | None
    most_gain: float | None
    behind: float | None
    contradicted_by: int
    exhausted: bool
    reverted: dict[str, Any]
    failed: tuple[int, ...]

    @property
    def chosen(self) -> FinalistResult:
        """The choice's own result."""
        return self.finalists[self.choice]
