"""Present work of a study, what comes next, and about how long that takes."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.analysis.policy import PROOF
from autotune.analysis.provenance import attempts_of
from autotune.analysis.standing import Present, StoredStanding, basis_of
from autotune.analysis.trial_ratios import trial_ratios
from autotune.analysis.wording import counted, duration
from autotune.config import StudySpec
from autotune.views.purposes import PURPOSES
from storage import TRAJECTORIES, Purpose, Repository, SlotHealth, StoredAttempt, StoredStudy

_SECONDS_PER_HOUR = 3600.0
_MOST_SHOWN = 4
"""Most runs at a time that are named."""

_IN_TURN = (Purpose.CONFIRM, Purpose.ABLATION, Purpose.SOAK)
"""Purposes whose attempts of a round take turns in one run."""


@dataclass(frozen=True)
class Outlook:
    """Outlook of a study that runs.

    Attributes:
        device_hours: device-hours of all runs so far.
        running: texts on what runs: phase, trial, since when, how long such runs take.
        next: text on what comes after it; empty where nothing is known of it.
    """

    device_hours: float
    running: tuple[str, ...]
    next: str


def present_of(repository: Repository, study: StoredStudy, spec: StudySpec) -> Present:
    """Return where a study stands, and what runs.

    That is read as its daemon has stored it, unless attempts have ended since.
    """
    baseline, noise = spec.full_baseline(), repository.noise.of(study.id)
    basis = basis_of(baseline, spec.harmless, noise)
    if known := StoredStanding.from_dict(study.standing, basis):
        since = repository.attempts.since(study.id, known.last, known.running)
        if known.holds(since):
            return Present(known.standing, since)
    attempts = attempts_of(repository.attempts.of(study.id), spec)
    return Present.of(attempts, trial_ratios(attempts, noise))


def outlook(
    study: StoredStudy, spec: StudySpec, present: Present, now: float, health: SlotHealth | None
) -> Outlook:
    """Return the outlook that the records give.

    Args:
        now: seconds since the epoch, by the database's clock.
        health: what is known of the study's slots; None: nothing is.
    """
    runs = _runs_of(present.running)
    spent = present.standing.seconds + sum(_seconds_of(run, now) for run in runs)
    slots = max(1, health.alive) if health else 1
    workers = (study.facts or {}).get("world_size", 1)
    usual = present.standing.usual
    return Outlook(
        spent * workers / _SECONDS_PER_HOUR,
        tuple(_doing(run, usual, now) for run in runs[:_MOST_SHOWN]),
        _next(present, spec, study.elapsed, slots),
    )


def _runs_of(running: Iterable[StoredAttempt]) -> list[list[StoredAttempt]]:
    """Return the attempts of each run; those that take turns in one are of one run."""
    runs: dict[Hashable, list[StoredAttempt]] = {}
    for one in running:
        runs.setdefault(_run_of(one), []).append(one)
    return list(runs.values())


def _seconds_of(run: Iterable[StoredAttempt], now: float) -> float:
    return max(max(0.0, now - one.started) for one in run)


def _run_of(one: StoredAttempt) -> Hashable:
    """Return what attempts of one run have in common: a trial with the baseline, or a round."""
    if one.purpose == Purpose.SEARCH:
        return Purpose.SEARCH, one.trial
    if one.beside is not None:
        return Purpose.SEARCH, one.beside
    return one.purpose, one.round if one.purpose in _IN_TURN else -one.id


def _doing(run: Sequence[StoredAttempt], usual: Mapping[str, float], now: float) -> str:
    """Return what a run does, since when, and how long the turns of its attempts usually take."""
    paired = any(one.purpose == Purpose.PAIRED for one in run)
    one = run[0]
    what = PURPOSES[Purpose.PAIRED if paired else one.purpose].doing
    round_ = f"round {one.round}, " if one.round and not paired else ""
    takes = sum(usual.get(each.purpose, 0.0) for each in run)
    usually = f", usually {duration(takes)}" if takes else ""
    return f"{what}, {round_}{_trials(run)}, since {duration(_seconds_of(run, now))}{usually}"


def _trials(run: Iterable[StoredAttempt]) -> str:
    """Return the trials of a run, as 'trial 3' or 'trials 0, 3'."""
    found = sorted({one.trial if one.beside is None else one.beside for one in run})
    return f"trial{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


def _next(present: Present, spec: StudySpec, elapsed: float, slots: int) -> str:
    budget, now = spec.budget, present.standing
    left = None if budget.wall_time is None else max(0.0, budget.wall_time - elapsed)
    purpose, round_ = present.last or (None, 0)
    confirms = bool(present.finalists)
    if purpose in (Purpose.ABLATION, Purpose.SOAK) or (purpose == Purpose.PROFILE and confirms):
        return "the verdict"
    if not now.usual_trial:
        return "the baseline's own trial, then the search"
    trial = now.usual_trial + now.usual.get(Purpose.PAIRED, 0.0)
    if purpose == Purpose.CONFIRM:
        # As many again of the chosen one and the baseline alone, once one is chosen.
        return _rounds(present, 2 * spec.measurement.rounds - round_, left) + "the verdict"
    proof = f"numerics and confirmation, {_about(PROOF.fewest_rounds * 2 * trial, left)}"
    if purpose in TRAJECTORIES:
        return f"{proof}, then the verdict"
    trials = None if budget.trials is None else budget.trials - present.launched
    if trials is None:
        return f"more trials of {duration(trial)} each, then {proof}"
    if trials <= 0:
        return proof
    time = _about(math.ceil(trials / slots) * trial, left)
    return f"up to {counted(trials, 'more trial')}, {time}, then {proof}"


def _rounds(present: Present, rounds: int, left: float | None) -> str:
    if rounds <= 0:
        return ""
    usual = present.standing.usual.get(Purpose.CONFIRM, 0.0)
    seconds = rounds * len(present.finalists) * usual
    about = f", {_about(seconds, left)}" if seconds else ""
    return f"up to {counted(rounds, 'more round')}{about}, then "


def _about(seconds: float, left: float | None) -> str:
    return f"about {duration(seconds if left is None else min(seconds, left))}"
