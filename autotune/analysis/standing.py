"""Where a study stands, in figures: what status, list and the line of a running study say. Pure.

A daemon stores them with its progress, so that a look at a study of ten thousand trials need not
read these. What is stored says of which records it tells; else it is computed from all of them.
"""

import dataclasses
import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune import __version__
from autotune.analysis.trial_ratios import TrialRatio, leading_trial, trial_ratios
from autotune.measurement.estimate import Ratio
from autotune.worker.decoding import decoded
from storage import TRIAL_RUNS, Attempts, Purpose, StoredAttempt, StoredNoise


@dataclass(frozen=True)
class Standing:
    """Where a study stands by the attempts that have ended.

    Attributes:
        trials: recorded trials of the search.
        by_state: their number by state.
        baseline: rate of the baseline's own trial; None while unknown.
        leading: trial that was seen fastest, other than the baseline; None while none may be faster.
        ratio: its speed-up over the baseline, seen once; None likewise.
        launched: attempts of the search, those that were lost or abandoned among them.
        seconds: of all attempts together.
        usual: median seconds of recorded attempts, by purpose.
        usual_trial: that of trials and repeated runs of the baseline together; None: there are none.
        finalists: trials that the confirmation has measured.
        last: purpose and round of the attempt that began last; None before there is one.
        moved: latest end of an attempt, in seconds since the epoch; None likewise.
    """

    trials: int
    by_state: dict[str, int]
    baseline: float | None
    leading: int | None
    ratio: Ratio | None
    launched: int
    seconds: float
    usual: dict[str, float]
    usual_trial: float | None
    finalists: list[int]
    last: tuple[Purpose, int] | None
    moved: float | None


def standing(attempts: Attempts, ratios: Mapping[int, TrialRatio]) -> Standing:
    """Return where a study stands.

    Args:
        attempts: of the study; those that run do not count.
        ratios: speed-up of each timed trial, see `trial_ratios`.
    """
    searched, own = attempts.searched(), attempts.baseline()
    leading = leading_trial(attempts, ratios)
    ended = [one for one in attempts if not one.running]
    took: dict[str, list[float]] = {}
    for one in ended:
        if one.recorded:
            took.setdefault(one.purpose.value, []).append(one.result.wall_seconds)
    of_trial = [second for purpose in TRIAL_RUNS for second in took.get(purpose, ())]
    return Standing(
        trials=len(searched),
        by_state=dict(Counter(one.result.state.value for one in searched)),
        baseline=own.result.rate if own else None,
        leading=leading,
        ratio=None if leading is None else ratios[leading].ratio,
        launched=sum(one.purpose == Purpose.SEARCH for one in ended),
        seconds=sum(one.result.wall_seconds for one in ended),
        usual={purpose: statistics.median(each) for purpose, each in took.items()},
        usual_trial=statistics.median(of_trial) if of_trial else None,
        finalists=sorted({one.trial for one in ended if one.purpose == Purpose.CONFIRM}),
        last=(ended[-1].purpose, ended[-1].round) if ended else None,
        moved=max((one.ended or one.started for one in ended), default=None),
    )


@dataclass(frozen=True)
class Present:
    """Where a study stands, and what runs.

    Attributes:
        standing: by the attempts that have ended.
        running: the other ones.
    """

    standing: Standing
    running: Sequence[StoredAttempt]

    @classmethod
    def of(cls, attempts: Attempts, ratios: Mapping[int, TrialRatio]) -> Self:
        """Return the present of a study by all of its attempts.

        Args:
            ratios: speed-up of each timed trial, see `trial_ratios`.
        """
        return cls(standing(attempts, ratios), [one for one in attempts if one.running])

    @property
    def last(self) -> tuple[Purpose, int] | None:
        """Purpose and round of the attempt that began last; None before there is one."""
        newest = self.running[-1] if self.running else None
        return (newest.purpose, newest.round) if newest else self.standing.last

    @property
    def launched(self) -> int:
        """Number of attempts of the search."""
        return self.standing.launched + sum(a.purpose == Purpose.SEARCH for a in self.running)

    @property
    def finalists(self) -> set[int]:
        """Trials that the confirmation measures."""
        begun = {one.trial for one in self.running if one.purpose == Purpose.CONFIRM}
        return {*self.standing.finalists, *begun}


@dataclass(frozen=True)
class StoredStanding:
    """Standing of a study as its daemon has stored it.

    Attributes:
        standing: by the attempts that had ended.
        basis: digest of what the figures rest on besides the attempts.
        last: id of the attempt that began last.
        running: ids of the attempts that ran.
    """

    standing: Standing
    basis: str
    last: int
    running: list[int]

    @classmethod
    def of(cls, attempts: Attempts, baseline: Mapping[str, Any], noise: StoredNoise | None) -> Self:
        """Return the standing by these attempts, to be stored.

        Args:
            attempts: of the study, those that run among them.
            baseline: a value for every knob.
            noise: newest run-to-run noise that the study has found.
        """
        now = standing(attempts, trial_ratios(attempts, noise))
        running = [one.id for one in attempts if one.running]
        last = attempts.last
        basis = basis_of(baseline, attempts.harmless, noise)
        return cls(now, basis, last.id if last else 0, running)

    @classmethod
    def from_dict(cls, body: dict[str, Any] | None, basis: str) -> Self | None:
        """Return what was stored; None if nothing was, or if it rests on something else.

        Args:
            body: of `as_dict`.
        """
        if not body or body.get("basis") != basis:
            return None
        return decoded(cls, body)

    def as_dict(self) -> dict[str, Any]:
        """Return it for the storage."""
        return dataclasses.asdict(self)

    def holds(self, since: Sequence[StoredAttempt]) -> bool:
        """Return whether no attempt has ended since.

        Args:
            since: attempts that ran, or that began later.
        """
        return all(one.running for one in since)


def basis_of(
    baseline: Mapping[str, Any], harmless: Collection[str], noise: StoredNoise | None
) -> str:
    """Return a digest of what the figures of a study rest on besides its attempts.

    Args:
        baseline: a value for every knob.
        harmless: names of the study's own knobs that cannot change what is computed.
        noise: newest run-to-run noise that the study has found; None: none yet.
    """
    figures = [field.name for field in dataclasses.fields(Standing)]
    found = [
        __version__,
        figures,
        sorted(baseline.items()),
        sorted(harmless),
        noise and vars(noise),
    ]
    return hashlib.sha256(json.dumps(found, default=repr).encode()).hexdigest()
