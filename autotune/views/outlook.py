"""Present work of a study, what comes next, and about how long that takes. Pure, over records."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.analysis.wording import counted, duration
from autotune.config import StudySpec
from autotune.measurement.policy import PROOF
from storage import Attempts, Purpose, StoredAttempt, StoredStudy

_SECONDS_PER_HOUR = 3600.0
_MOST_SHOWN = 4
"""Most runs at a time that are named."""

_PHASES = {
    Purpose.FIT: "looking for the largest micro-batch",
    Purpose.PROFILE: "looking at what a step is made of",
    Purpose.SEARCH: "searching",
    Purpose.PAIRED: "searching, beside the baseline",
    Purpose.CALIBRATE: "measuring the noise between runs",
    Purpose.REPEAT: "measuring your configuration once more, whose runs lie apart",
    Purpose.REFERENCE: "checking numerics: the reference",
    Purpose.NUMERICS: "checking numerics",
    Purpose.CONFIRM: "confirming",
    Purpose.EPOCHS: "looking at short epochs",
    Purpose.LONGEST: "looking whether the longest samples fit",
    Purpose.LONG: "running for minutes what was chosen, and the baseline",
    Purpose.ATTRIBUTE: "measuring what each knob brings",
}


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


def outlook(study: StoredStudy, spec: StudySpec, every: Attempts, now: float) -> Outlook:
    """Return the outlook that the records give.

    Args:
        every: attempts of the study, those under way among them.
        now: seconds since the epoch.
    """
    running = [attempt for attempt in every if attempt.running]
    spent = sum(a.result.wall_seconds for a in every)
    spent += sum(max(0.0, now - a.started) for a in running)
    workers = (study.facts or {}).get("world_size", 1)
    return Outlook(
        spent * workers / _SECONDS_PER_HOUR,
        tuple(_doing(a, every, now) for a in running[:_MOST_SHOWN]),
        _next(every, running, spec, study.elapsed),
    )


def _doing(attempt: StoredAttempt, every: Attempts, now: float) -> str:
    what = f"{_PHASES[attempt.purpose]}, "
    paired = attempt.purpose == Purpose.PAIRED
    what += f"round {attempt.round}, " if attempt.round and not paired else ""
    usual = _usual(every, attempt.purpose)
    takes = f", usually {duration(usual)}" if usual else ""
    trial = attempt.round if paired else attempt.trial
    return f"{what}trial {trial}, since {duration(now - attempt.started)}{takes}"


def _next(
    every: Attempts,
    running: Sequence[StoredAttempt],
    spec: StudySpec,
    elapsed: float,
) -> str:
    budget = spec.budget
    left = None if budget.wall_time is None else max(0.0, budget.wall_time - elapsed)
    latest = running[-1] if running else every.last
    purpose = latest.purpose if latest else None
    told = every.of(Purpose.CONFIRM)
    if purpose in (Purpose.ATTRIBUTE, Purpose.LONG) or (purpose == Purpose.PROFILE and told):
        return "the verdict"
    trial = _usual(every, Purpose.SEARCH, Purpose.CALIBRATE)
    if trial and (beside := _usual(every, Purpose.PAIRED)):
        trial += beside
    if not trial:
        return "the baseline's own trial, then the search"
    if purpose == Purpose.CONFIRM and latest:
        # As many again of the chosen one and the baseline alone, once one is chosen.
        return _rounds(every, 2 * spec.measurement.rounds - latest.round, left) + "the verdict"
    proof = f"numerics and confirmation, {_about(PROOF.fewest_rounds * 2 * trial, left)}"
    if purpose in (Purpose.REFERENCE, Purpose.NUMERICS):
        return f"{proof}, then the verdict"
    trials = None if budget.trials is None else budget.trials - len(every.of(Purpose.SEARCH))
    if trials is None:
        return f"more trials of {duration(trial)} each, then {proof}"
    if trials <= 0:
        return proof
    return f"up to {counted(trials, 'more trial')}, {_about(trials * trial, left)}, then {proof}"


def _rounds(every: Attempts, rounds: int, left: float | None) -> str:
    if rounds <= 0:
        return ""
    runs = every.of(Purpose.CONFIRM)
    members = len({a.trial for a in runs})
    seconds = rounds * members * (_usual(every, Purpose.CONFIRM) or 0.0)
    about = f", {_about(seconds, left)}" if seconds else ""
    return f"up to {counted(rounds, 'more round')}{about}, then "


def _about(seconds: float, left: float | None) -> str:
    return f"about {duration(seconds if left is None else min(seconds, left))}"


def _usual(every: Attempts, *purposes: Purpose) -> float | None:
    """Return seconds of such a run; None while none has ended."""
    ended = [a.result.wall_seconds for a in every.of(*purposes).recorded()]
    return statistics.median(ended) if ended else None
