"""Rounds of a confirmation, as the records show them: replayed in order, and told one by one.

Pure. The result so far of a round is the confirmation's own: after the last round it is the verdict's.
Rounds that chose show none once only later rounds give the speed-up.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.analysis.barred import Barred
from autotune.analysis.confirmation import Basis, Confirmation
from autotune.analysis.finalists import (
    Selection,
    candidates,
)
from autotune.analysis.policy import PROOF
from autotune.analysis.process_spread import ProcessSpread
from autotune.analysis.round_results import runs_that_compare
from autotune.config import StudySpec
from autotune.measurement.estimate import Ratio
from autotune.measurement.measure import Measure
from storage import Attempts, Blocks, Purpose, StoredAttempt


class Stage(StrEnum):
    """Part of a confirmation that a round belongs to."""

    CHOICE = "choice"
    """Rounds of all finalists, which choose."""
    GAIN = "gain"
    """Rounds of the choice and the baseline, which tell by how much it is faster."""
    BEFORE = "before"
    """Rounds that do not count: the search went on after them, or the machine was another one."""
    OPEN = "open"
    """A round that is not complete."""


_STAGES = {
    Basis.CHOICE: (Stage.CHOICE,),
    Basis.GAIN: (Stage.GAIN,),
    Basis.ALL: (Stage.CHOICE, Stage.GAIN),
}
"""Stages whose rounds the speed-up rests on."""


@dataclass(frozen=True)
class Round:
    """Round of a confirmation.

    Attributes:
        rates: throughput by trial, the baseline's among them.
        ratios: throughput over that of the baseline in the same round, by trial.
        counts: True if the speed-up rests on it.
        so_far: speed-up over the baseline by the rounds that count, up to this one, by trial; without
            those of which nothing is known yet.
        disturbed: trials whose run was disturbed by other processes.
        failed: cause by trial.
    """

    number: int
    stage: Stage
    counts: bool = False
    rates: Mapping[int, float] = field(default_factory=dict)
    ratios: Mapping[int, float] = field(default_factory=dict)
    so_far: Mapping[int, Ratio] = field(default_factory=dict)
    disturbed: tuple[int, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Standing:
    stage: Stage
    counts: bool = False
    so_far: Mapping[int, Ratio] = field(default_factory=dict)


def rounds_of(
    attempts: Attempts, spec: StudySpec, blocks: Blocks, *, ended: bool = False
) -> list[Round]:
    """Return all rounds in which a run has ended, in order.

    Args:
        ended: True if the study is done, so that the last round is looked at for the last time.
    """
    runs = attempts.of(Purpose.CONFIRM).recorded()
    if not runs:
        return []
    confirmation = _begin_of_study(attempts, spec, blocks)
    if confirmation is None:
        return []
    standings = {
        number: _standing(confirmation) for number in closed_rounds(confirmation, attempts)
    }
    if ended and standings:
        confirmation.end()
        standings[max(standings)] = _standing(confirmation)
    stages = _STAGES[confirmation.basis]
    if (
        confirmation.basis is Basis.ALL
        and confirmation.gain_rounds
        and confirmation.gain_rounds.earlier_tell
    ):
        # Those of a single finalist chose nothing; their intervals were those of looks.
        told = {
            n: found.so_far if found.stage is Stage.GAIN else {} for n, found in standings.items()
        }
        standings = {n: _Standing(Stage.GAIN, counts=True, so_far=told[n]) for n in standings}
    standings = {
        number: found if found.stage in stages else _Standing(found.stage)
        for number, found in standings.items()
    }
    baseline, first = confirmation.baseline, first_round(attempts)
    grouped: dict[int, dict[int, StoredAttempt]] = {
        number: {run.trial: run for run in runs_that_compare(runs, number)}
        for number in {run.round for run in runs}
    }
    last = max(grouped)
    return [
        _round(number, grouped[number], baseline, standings[number])
        if number in standings
        else _uncounted(number, grouped[number], baseline, is_open=first <= number == last)
        for number in sorted(grouped)
    ]


def _standing(confirmation: Confirmation) -> _Standing:
    fresh = confirmation.selected is not None and bool(confirmation.fresh)
    stage = Stage.GAIN if fresh else Stage.CHOICE
    baseline = confirmation.baseline
    waits = (
        fresh and confirmation.basis is Basis.CHOICE
    )  # its result is still that of earlier rounds
    if waits or baseline is None or not confirmation.rates(baseline):
        return _Standing(stage, counts=True)
    rivals = [t for t in confirmation.members() if t != baseline and confirmation.rates(t)]
    gains = {trial: confirmation.gain(trial) for trial in rivals}
    known = {t: g for t, g in gains.items() if 0 < g.high < PROOF.widest_bounds * g.low}
    return _Standing(stage, counts=True, so_far=known)


def _round(
    number: int, runs: Mapping[int, StoredAttempt], baseline: int | None, found: _Standing
) -> Round:
    rates = {t: run.result.throughput for t, run in runs.items() if run.result.throughput}
    reference = None if baseline is None else rates.get(baseline)
    return Round(
        number,
        found.stage,
        found.counts,
        rates,
        {t: rate / reference for t, rate in rates.items() if t != baseline} if reference else {},
        found.so_far,
        tuple(t for t, run in runs.items() if run.result.contended),
        {t: run.result.cause for t, run in runs.items() if not run.result.throughput},
    )


def _uncounted(
    number: int, runs: Mapping[int, StoredAttempt], baseline: int | None, *, is_open: bool
) -> Round:
    stage = Stage.OPEN if is_open else Stage.BEFORE
    return _round(number, runs, baseline, _Standing(stage))


def replay(
    attempts: Attempts,
    selection: Selection,
    most_rounds: int,
    barred: Collection[int] = (),
    blocks: Blocks | None = None,
) -> Confirmation | None:
    """Return the confirmation as the records show it, without an incomplete round.

    Trials that the numerics gate has refused are no candidates. Rounds from before the search went on
    do not count, because only interleaved rounds compare; nor do rounds that ran elsewhere than the last
    run. A finalist that has run in the first round stays, whatever the time allows.

    Args:
        attempts: attempts of a study whose search has ended.
        most_rounds: see measurement.rounds.
        barred: trials that are no candidates either.
        blocks: blocks of an attempt, whose steps tell the spread between processes; None: they do not.

    Returns:
        None if no trial of the search is complete.
    """
    return _replayed(begin_confirmation(attempts, selection, most_rounds, barred, blocks), attempts)


def replay_study(
    attempts: Attempts,
    spec: StudySpec,
    blocks: Blocks,
    selection: Selection | None = None,
    barred: Collection[int] | None = None,
) -> Confirmation | None:
    """Return the confirmation of a study by its settings, see `replay`.

    Args:
        attempts: attempts of a study whose search has ended.
        selection: choice of the finalists; None: by the records.
        barred: trials that are no candidates; None: by the records.
    """
    return _replayed(_begin_of_study(attempts, spec, blocks, selection, barred), attempts)


def _replayed(confirmation: Confirmation | None, attempts: Attempts) -> Confirmation | None:
    if confirmation is not None:
        for _ in closed_rounds(confirmation, attempts):
            pass
    return confirmation


def _begin_of_study(
    attempts: Attempts,
    spec: StudySpec,
    blocks: Blocks,
    selection: Selection | None = None,
    barred: Collection[int] | None = None,
) -> Confirmation | None:
    """Return the confirmation before its first round; for arguments see `replay_study`."""
    if selection is None:
        selection = Selection.by_records(attempts, spec.measurement.finalists)
    if barred is None:
        barred = Barred.of_study(attempts, blocks, spec).trials
    steps = Measure.of(spec).step_blocks(blocks)
    return begin_confirmation(attempts, selection, spec.measurement.rounds, barred, steps)


def begin_confirmation(
    attempts: Attempts,
    selection: Selection,
    most_rounds: int,
    barred: Collection[int],
    blocks: Blocks | None,
) -> Confirmation | None:
    """Return the confirmation before its first round; for arguments and result see `replay`."""
    first = first_round(attempts)
    several, baseline_trial = candidates(attempts, barred, selection, first)
    if not several:
        return None
    spread = blocks and ProcessSpread.of(attempts, blocks, [one.trial for one in several])
    return Confirmation(several, baseline_trial, most_rounds, first, spread or None)


def closed_rounds(confirmation: Confirmation, attempts: Attempts) -> Iterator[int]:
    """Close the recorded rounds one by one; yield the number of each, once it is taken in."""
    while members := confirmation.members():
        results, number = confirmation.recorded(attempts), confirmation.next_round
        if confirmation.is_void(attempts):
            confirmation.void.add(number)
        elif len(results) == len(members):
            confirmation.close_round(results)
            latest, chosen = latest_gain_run(confirmation, attempts), confirmation.selected
            if latest is not None and chosen is not None:
                reduced = latest.knobs != confirmation.candidates[chosen].knobs
                confirmation.measure_reduced(reduced=reduced)
            yield number
        else:
            break
    latest = latest_gain_run(confirmation, attempts)
    if latest is not None and confirmation.gain_is_measured:
        confirmation.revert(latest.knobs)


def latest_gain_run(confirmation: Confirmation, attempts: Attempts) -> StoredAttempt | None:
    """Return the last run of the choice in fresh rounds; None if there is none."""
    if confirmation.selected is None:
        return None
    runs = attempts.of(Purpose.CONFIRM).of_trial(confirmation.selected).recorded()
    since = confirmation.next_round - len(confirmation.fresh)
    fresh = [run for run in runs if run.round >= since]
    return fresh[-1] if fresh else None


def first_round(attempts: Attempts) -> int:
    """Return the number of the first round after the search has last gone on."""
    last_search = attempts.of(Purpose.SEARCH).last
    before = [
        a.round for a in attempts.of(Purpose.CONFIRM) if last_search and a.id < last_search.id
    ]
    return 1 + max(before, default=0)
