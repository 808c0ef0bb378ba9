"""Progress of a study as lines of text: one line per event, its first three fields always the same.

They are the seconds since the study was submitted, the kind of event, and its number: that of a trial or
of a round.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.analysis.gate_runs import compared
from autotune.analysis.provenance import attempts_of
from autotune.analysis.rounds import Round, Stage, rounds_of
from autotune.analysis.standing import Present
from autotune.analysis.trial_ratios import TrialRatio, trial_ratios
from autotune.analysis.wording import Terms, difference, end_in_words, quantity
from autotune.config import secrets_withheld
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import MIB, Known, over_yours, ratio_text, short_ratio, times
from autotune.views.outlook import outlook, present_of
from autotune.views.purposes import PURPOSES
from storage import (
    UNTIMED,
    AttemptFeed,
    Attempts,
    AttemptState,
    MessageKind,
    Purpose,
    Repository,
    StoredAttempt,
    StoredMessage,
    StoredStudy,
    StudyState,
)

_CHECKED = {AttemptState.COMPLETE: "ok", AttemptState.REFUSED: "refused:"}
_NO_NUMBER = "-"
_A_PAIR = 2
"""Members of a round that does not choose: one finalist and the baseline."""


class ProgressLines:
    """Lines of what is new in a study since the last look."""

    def __init__(self, repository: Repository, study: StoredStudy) -> None:
        self._repository = repository
        self._study = study
        self._spec = secrets_withheld.as_stored(study.spec)
        self._baseline = self._spec.full_baseline()
        self._unit = self._spec.unit
        self._feed = AttemptFeed(repository.attempts, study.id)
        self._shown: set[int] = set()
        self._rounds: set[tuple[int, int | None]] = set()
        """Attempts of a finalist and the baseline whose line was shown: a repeated run has its own."""
        self._last_message = 0

    def new(self) -> Iterator[str]:
        """Yield lines for messages and recorded attempts that were not shown yet."""
        messages = self._repository.messages.of(self._study.id, self._last_message)
        recorded = self._feed.read()
        ended = [a for a in recorded if a.ended is not None and a.id not in self._shown]
        lines = [(message.at, 0, self._message(message)) for message in messages]
        if ended:
            lines += self._events(attempts_of(recorded, self._spec), ended)
        self._shown.update(attempt.id for attempt in ended)
        self._last_message = max([self._last_message, *(m.number for m in messages)])
        for at, _, text in sorted(lines):
            yield f"{max(0.0, at - self._study.created):6.0f}s  {text}"

    def headline(self) -> str:
        """Return where the study stands, in one line: trials, time, what runs, the leading trial."""
        study = self._repository.studies.named(self._study.name)
        found = present_of(self._repository, study, self._spec)
        budget, now = self._spec.budget, found.standing
        trials = f"/{budget.trials}" if budget.trials else ""
        time_ = f"/{budget.wall_time:.0f}" if budget.wall_time else ""
        text = f"{study.name}: {now.trials}{trials} trials, {study.elapsed:.0f}{time_} s"
        if now.ratio:
            known = over_yours(now.ratio, Terms.of(self._unit))
            text += f", leading: trial {now.leading}, {known}, seen once"
        slots = self._repository.studies.slots(study.id)
        seen = outlook(study, self._spec, found, self._repository.now(), slots)
        doing_now = seen.running[:1] or _before(study, found)
        text += "".join(f"; {running}" for running in doing_now)
        doing = self._repository.messages.status(study.id) if seen.running else None
        if doing:
            text += f" ({doing.text})"
        return f"{text}; next: {seen.next}" if seen.next else text

    def _events(
        self, attempts: Attempts, ended: Sequence[StoredAttempt]
    ) -> Iterator[tuple[float, int, str]]:
        """Yield time, id and line of each event that these attempts have ended."""
        noise = self._repository.noise.of(self._study.id)
        searches = any(a.purpose == Purpose.SEARCH for a in ended)
        ratios = trial_ratios(attempts, noise) if searches else {}
        trials = {a.trial: a.knobs for a in attempts.of(Purpose.SEARCH)}
        for one in ended:
            if one.purpose not in (Purpose.PAIRED, Purpose.CONFIRM):  # they have lines below
                line = self._line(one, attempts, ratios, trials.get(one.trial, {}))
                yield one.ended or 0.0, one.id, line
        if any(a.purpose == Purpose.CONFIRM for a in ended):
            yield from self._of_rounds(attempts)

    def _of_rounds(self, attempts: Attempts) -> Iterator[tuple[float, int, str]]:
        """Yield a line for every finalist of a round in which both it and the baseline have ended."""
        every = rounds_of(attempts, self._spec, self._repository.attempts.blocks)
        own = attempts.baseline()
        baseline = own.trial if own else None
        for one in every:
            runs = attempts.of(Purpose.CONFIRM).in_round(one.number).recorded()
            last = max(runs, key=lambda run: (run.ended or 0.0, run.id))
            newest: dict[int | None, int] = {run.trial: run.id for run in runs}
            for trial in sorted(_to_tell(one, baseline)):
                told = newest[trial], newest.get(baseline)
                if told not in self._rounds:
                    self._rounds.add(told)
                    yield last.ended or 0.0, last.id, self._round(one, trial, baseline)

    def _round(self, one: Round, trial: int, baseline: int | None) -> str:
        member = "yours" if trial == baseline else f"trial {trial}"
        head = f"{'round':8} {one.number:>3}  {member}"
        if trial in one.failed:
            return f"{head}  failed: {one.failed[trial]}"
        rate = f"{quantity(one.rates[trial])} {self._unit}"
        if trial == baseline:
            return f"{head}  {rate}"
        if trial not in one.ratios or baseline is None:
            why = "failed" if baseline in one.failed else "had too little time"
            return f"{head}  {rate}, yours {why}"
        text = f"{head}  {times(one.ratios[trial])}  {rate}, yours {quantity(one.rates[baseline])}"
        several = len(one.rates) + len(one.failed) > _A_PAIR
        text += "  choosing" if several and one.stage is Stage.CHOICE else ""
        return f"{text}  so far {ratio_text(one.so_far[trial])}" if trial in one.so_far else text

    def _line(
        self,
        attempt: StoredAttempt,
        attempts: Attempts,
        ratios: Mapping[int, TrialRatio],
        trial: Mapping[str, Any],
    ) -> str:
        head, what = self._label(attempt, trial)
        result = attempt.result
        if attempt.purpose in UNTIMED:
            return f"{head}  {what}{self._state(attempt, attempts)}  {result.cause}".rstrip()
        if result.rate is None:
            return f"{head}  {what}{end_in_words(result.state)}  {result.cause}".rstrip()
        rate = f"{quantity(result.rate)} {self._unit}"
        if attempt.purpose != Purpose.SEARCH:
            return f"{head}  {what}{rate}"
        memory = f"{quantity(result.peak_bytes / MIB)} MiB"
        if attempt.knobs == self._baseline:
            return f"{head}  yours  {rate}  {memory}"
        seen = ratios.get(attempt.trial)
        compared = _seen_once(seen.ratio) if seen else "not compared"
        early = "  ended early" if result.state == AttemptState.PRUNED else ""
        changed = difference(attempt.knobs, self._baseline)
        return f"{head}  {compared}  {rate}  {memory}{early}  {changed}"

    def _state(self, untimed: StoredAttempt, attempts: Attempts) -> str:
        """Return what an attempt that is not timed has come to."""
        state = untimed.result.state
        if untimed.purpose is Purpose.NUMERICS and state is AttemptState.COMPLETE:
            found = compared(untimed, attempts, self._repository.attempts.blocks)
            if found.open:
                return "open: another seed is needed"
        return _CHECKED.get(state, state)

    @staticmethod
    def _label(attempt: StoredAttempt, searched: Mapping[str, Any]) -> tuple[str, str]:
        """Return kind and number of an attempt's event, and what else names it."""
        purpose, words = attempt.purpose, PURPOSES[attempt.purpose]
        number, what = attempt.trial, words.what
        if purpose == Purpose.ABLATION:
            back = [name for name, value in attempt.knobs.items() if value != searched.get(name)]
            less = f"without {', '.join(back)}" if back else "as it is"
            number, what = attempt.round, f"trial {attempt.trial} {less}"
        elif purpose == Purpose.FIT:
            what = f"micro-batch {attempt.knobs['micro_batch']}"
        elif attempt.seed:
            what += f", seed {attempt.seed + 1}"
        return f"{words.event:8} {number:>3}", f"{what}  " if what else ""

    @staticmethod
    def _message(message: StoredMessage) -> str:
        waits = "Waiting: " if message.kind == MessageKind.WAITING else ""
        return f"{'study':8} {_NO_NUMBER:>3}  {waits}{message.text}"


def _seen_once(ratio: Ratio) -> str:
    """Return the ratio of a trial to the baseline; one that is not told apart from 1 is labelled."""
    told = short_ratio(ratio)
    return f"ratio {told}" if Known.of(ratio) is Known.UNKNOWN else told


def _before(study: StoredStudy, found: Present) -> tuple[str, ...]:
    """Return what is going on before the first run, in words; empty once there was one."""
    if found.last:
        return ()
    queued = study.state == StudyState.QUEUED
    return ("queued" if queued else "starting the processes of the trials",)


def _to_tell(one: Round, baseline: int | None) -> set[int]:
    """Return the trials of a round that can be told: finalists, once the baseline has ended in it.

    The baseline itself is told where it is measured again alone.
    """
    known = one.rates.keys() | one.failed.keys()
    if baseline is None:
        return set(known)
    if baseline not in known:
        return set()
    alone = known == {baseline} and one.stage in (Stage.CHOICE, Stage.GAIN)
    return {baseline} if alone else known - {baseline}
