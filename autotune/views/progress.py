"""A study's progress as lines of text, from what is recorded."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.analysis.wording import difference, quantity
from autotune.config import StudySpec
from autotune.views.outlook import Outlook, outlook
from storage import (
    UNTIMED,
    AttemptFeed,
    AttemptState,
    MessageKind,
    Purpose,
    Repository,
    StoredAttempt,
    StoredMessage,
    StoredStudy,
    StudyState,
    Summary,
)

_CHECKED = {AttemptState.COMPLETE: "ok", AttemptState.REFUSED: "refused:"}


@dataclass(frozen=True)
class Standing:
    """Where a study stands, in figures.

    Attributes:
        trials: recorded trials of the search.
        running: attempts under way.
        best: highest throughput of a complete trial; None while there is none.
        baseline: throughput of the baseline; None while unknown.
        confirming: round of the confirmation under way; 0 in the search.
    """

    trials: int
    by_state: dict[str, int]
    running: int
    best: float | None
    best_trial: int | None
    baseline: float | None
    confirming: int

    @property
    def speedup(self) -> float | None:
        """Best over baseline, as seen in the search."""
        return self.best / self.baseline if self.best and self.baseline else None


def standing(summary: Summary, baseline: Mapping[str, Any]) -> Standing:
    """Where a study with this baseline stands."""
    first, best = summary.first, summary.best
    today = first.result.throughput if first and first.knobs == baseline else None
    return Standing(
        trials=sum(summary.searched.values()),
        by_state={state.value: count for state, count in summary.searched.items()},
        running=summary.running,
        best=best.result.throughput if best else None,
        best_trial=best.trial if best else None,
        baseline=today,
        confirming=summary.confirming,
    )


class ProgressLines:
    """What is new since the last look."""

    def __init__(self, repository: Repository, study: StoredStudy) -> None:
        self._repository = repository
        self._study = study
        self._spec = StudySpec.model_validate(study.spec)
        self._baseline = self._spec.full_baseline()
        self._unit = self._spec.unit
        self._feed = AttemptFeed(repository.attempts, study.id)
        self._shown: set[int] = set()
        self._last_message = 0
        self._best: float = 0.0

    def new(self) -> Iterator[str]:
        """Lines for messages and recorded attempts that were not shown yet."""
        messages = self._repository.messages.of(self._study.id, self._last_message)
        attempts = self._feed.read()
        ended = [a for a in attempts if a.ended is not None and a.id not in self._shown]
        ended = [a for a in ended if a.purpose != Purpose.PAIRED]  # its trial has a line
        baseline = self._standing().baseline if ended else None  # asked several times a second
        lines = [(message.at, _told(message)) for message in messages]
        searched = {a.trial: a.knobs for a in attempts if a.purpose == Purpose.SEARCH}
        lines += [
            (a.ended or 0.0, self._line(a, baseline, searched.get(a.trial, {}))) for a in ended
        ]
        self._shown.update(attempt.id for attempt in ended)
        self._last_message = max([self._last_message, *(m.number for m in messages)])
        for _, text in sorted(lines):
            yield text

    def headline(self) -> str:
        """Return where the study stands, in one line: trials, time, what runs, how far it has come."""
        now = self._standing()
        study = self._repository.studies.named(self._study.name)
        budget = self._spec.budget
        trials = f"/{budget.trials}" if budget.trials else ""
        time_ = f"/{budget.wall_time:.0f}" if budget.wall_time else ""
        text = f"{study.name}: {now.trials}{trials} trials, {study.elapsed:.0f}{time_} s"
        if now.best:
            text += f", best {quantity(now.best)} {self._unit}"
        if now.speedup:
            text += f", {now.speedup:.2f}x baseline"
        seen = self._outlook(study)
        text += "".join(f"; {running}" for running in seen.running[:1] or self._before(study))
        doing = self._repository.messages.status(study.id) if seen.running else None
        if doing:
            text += f" ({doing.text})"
        return f"{text}; next: {seen.next}" if seen.next else text

    def _before(self, study: StoredStudy) -> tuple[str, ...]:
        """Return what is going on before the first run, in words; empty once there was one."""
        if self._feed.read():
            return ()
        queued = study.state == StudyState.QUEUED
        return ("queued" if queued else "starting the processes of the trials",)

    def _outlook(self, study: StoredStudy) -> Outlook:
        return outlook(
            self._feed.read(),
            self._baseline,
            self._spec.budget,
            self._spec.measurement,
            workers=(study.facts or {}).get("world_size", 1),
            elapsed=study.elapsed,
            now=time.time(),
        )

    def _standing(self) -> Standing:
        return standing(self._repository.attempts.summary(self._study.id), self._baseline)

    def _line(
        self, attempt: StoredAttempt, baseline: float | None, searched: dict[str, Any]
    ) -> str:
        result = attempt.result
        label = self._label(attempt, searched)
        if attempt.purpose in UNTIMED:
            return f"{label}  {_CHECKED.get(result.state, result.state)}  {result.cause}".rstrip()
        if result.throughput is None:
            return f"{label}  {result.state}  {result.cause}"
        rate = f"{quantity(result.throughput):>8} {self._unit}"
        spread = f"±{100 * (result.half_width or 0):.1f} %"
        times = f"{result.throughput / baseline:5.2f}x" if baseline else " " * 6
        changed = difference(attempt.knobs, self._baseline)
        mark = self._mark(attempt)
        return f"{label}  {rate} {spread:>8}  {times}  {mark:8}  {changed}"

    @staticmethod
    def _label(attempt: StoredAttempt, searched: dict[str, Any]) -> str:
        trial = f"trial {attempt.trial:>3}"
        if attempt.purpose == Purpose.CONFIRM:
            return f"round {attempt.round}, {trial}"
        if attempt.purpose == Purpose.REFERENCE:
            return f"{trial}, numerics: fp32 reference"
        if attempt.purpose == Purpose.NUMERICS:
            return f"{trial}, numerics: loss against fp32"
        if attempt.purpose == Purpose.ATTRIBUTE:
            back = [name for name, value in attempt.knobs.items() if value != searched.get(name)]
            less = f"without {', '.join(back)}" if back else "as it is"
            return f"round {attempt.round}, {trial} {less}"
        if attempt.purpose == Purpose.PROFILE:
            return f"{trial}, profile"
        if attempt.purpose == Purpose.LONG:
            return f"{trial}, for minutes"
        if attempt.purpose == Purpose.EPOCHS:
            return f"{trial}, short epochs"
        if attempt.purpose == Purpose.LONGEST:
            return f"{trial}, the longest samples"
        if attempt.purpose == Purpose.FIT:
            return f"{trial}, micro-batch {attempt.knobs['micro_batch']}"
        return trial

    def _mark(self, attempt: StoredAttempt) -> str:
        result = attempt.result
        searching = attempt.purpose == Purpose.SEARCH
        if attempt.purpose == Purpose.CALIBRATE:
            mark = "again"
        elif attempt.knobs == self._baseline:
            mark = "baseline"
        elif result.state == AttemptState.PRUNED:
            mark = "stopped"
        elif searching and (result.throughput or 0) > self._best:
            mark = "best"
        else:
            mark = ""
        if result.state == AttemptState.COMPLETE and searching:
            self._best = max(self._best, result.throughput or 0)
        return mark


def _told(message: StoredMessage) -> str:
    return f"Waiting: {message.text}" if message.kind == MessageKind.WAITING else message.text
