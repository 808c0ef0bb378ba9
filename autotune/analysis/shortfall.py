"""What a study lacks for a verdict, and how long that would take. Pure."""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from autotune.analysis import gate
from autotune.analysis.confirmation import ALIKE, FEWEST_ROUNDS, Confirmation, ranked
from autotune.analysis.costs import Costs
from autotune.measurement.estimate import Ratio, clearly_faster, half_width_of
from storage import Attempts, AttemptState, Purpose, StoredAttempt

_MOST_ROUNDS = 50
_FEWEST_TRIALS = 4
"""Of a search, where there is none to begin with."""


def seconds_missing(
    confirmation: Confirmation | None, attempts: Attempts, costs: Costs, baseline: Mapping[str, Any]
) -> float:
    """Seconds of the trials, checks and rounds that would lead to a verdict, about.

    Args:
        confirmation: as far as it went; None if there was nobody to confirm.
        attempts: of the study.
        costs: of its runs.
        baseline: the user's configuration.
    """
    if not costs.known:
        longest = max((a.result.wall_seconds for a in attempts.searched()), default=0.0)
        return longest * (_FEWEST_TRIALS + 2 * FEWEST_ROUNDS)
    rivals = [a.knobs for a in ranked(attempts) if a.knobs != baseline]
    if not rivals:
        trials = _FEWEST_TRIALS * costs.shortest(baseline)
        return trials + 2 * FEWEST_ROUNDS * costs.shortest(baseline)
    leader = rivals[0]
    if confirmation is not None and confirmation.rounds and confirmation.members():
        leading = confirmation.candidates[confirmation.leader()].knobs
        leader = leader if leading == baseline else leading
    checks = sum(map(costs.trajectory, gate.missing_runs([leader], baseline, attempts)))
    both = sum(_in_a_round(knobs, attempts, costs) for knobs in (baseline, leader))
    return checks + rounds_missing(confirmation) * both


def _in_a_round(knobs: Mapping[str, Any], attempts: Attempts, costs: Costs) -> float:
    """Seconds of a configuration in a round, as in those that are known: one in turn takes longer than
    the shortest run."""
    runs = attempts.of(Purpose.CONFIRM).with_knobs(knobs).recorded().complete()
    return statistics.median([run.result.wall_seconds for run in runs] or [costs.shortest(knobs)])


def lacks_time(confirmation: Confirmation | None, attempts: Attempts, *, limited: bool) -> bool:
    """Whether it was for want of time that nothing could be confirmed.

    Args:
        limited: there is an end to the time.
    """
    if not limited or (confirmation is not None and not confirmation.members()):
        return False
    if confirmation is None:
        return not any(map(_judged, attempts.searched()))
    return not confirmation.rounds or not any(
        _judged(a) for a in attempts.searched() if a.trial != confirmation.baseline
    )


def _judged(trial: StoredAttempt) -> bool:
    """Whether it has shown anything before its time was over."""
    return trial.result.state != AttemptState.PRUNED or trial.result.throughput is not None


def rounds_missing(confirmation: Confirmation | None) -> int:
    """Rounds until it is shown who is faster, a finalist or the baseline, and by how much, if they go on
    to scatter like this; at least one."""
    if confirmation is None or not confirmation.rounds or confirmation.baseline is None:
        return FEWEST_ROUNDS
    done = len(confirmation.basis)
    if not confirmation.members() or done < 2:
        return max(1, FEWEST_ROUNDS - done)
    contender, baseline = confirmation.contender(), confirmation.baseline
    both = [r for r in confirmation.basis.values() if contender in r and baseline in r]
    logs = [math.log(r[contender] / r[baseline]) for r in both if contender is not None]
    if len(logs) < 2:
        return max(1, FEWEST_ROUNDS - done)
    seen = _Seen(float(np.mean(logs)), float(np.std(logs, ddof=1)))
    needed = done + 1
    while needed < _MOST_ROUNDS and not _would_tell(confirmation, seen, needed):
        needed += 1
    return max(needed, FEWEST_ROUNDS) - done


class _Seen(NamedTuple):
    """How much faster the one is, in logarithms: mean and standard deviation of rounds."""

    mean: float
    spread: float


def _would_tell(confirmation: Confirmation, seen: _Seen, rounds: int) -> bool:
    """Whether so many rounds would; by the test that is to decide."""
    if confirmation.chosen is None:
        level = confirmation.level(rounds)
        beyond = float(special.stdtrit(rounds - 1, 1 - level)) * seen.spread / math.sqrt(rounds)
        if seen.mean + beyond <= math.log1p(ALIKE):
            return True
    else:
        beyond = half_width_of(seen.spread, rounds)
    low, high = math.exp(seen.mean - beyond), math.exp(seen.mean + beyond)
    return clearly_faster(Ratio(math.exp(seen.mean), low, high))
