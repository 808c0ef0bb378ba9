"""Live view of a running study on a terminal: one screen of few lines, redrawn in place."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from autotune.analysis.provenance import attempts_of
from autotune.analysis.rounds import Round, Stage, rounds_of
from autotune.analysis.standing import Present
from autotune.analysis.trial_ratios import (
    TrialRatio,
    leading_trial,
    precedence,
    trial_ratios,
)
from autotune.analysis.wording import Terms, counted, difference, duration, end_in_words, quantity
from autotune.config import StudySpec, secrets_withheld
from autotune.views.figure_text import (
    MIB,
    UNKNOWN,
    range_text,
    said_ratio,
    short_ratio,
    times,
)
from autotune.views.outlook import outlook
from autotune.views.purposes import PHASES, PURPOSES
from autotune.views.terminal import plain
from autotune.views.trust import RESTLESS
from storage import (
    SEARCH_RUNS,
    AttemptFeed,
    Attempts,
    AttemptState,
    Purpose,
    Repository,
    StoredAttempt,
    StoredStudy,
)

_ROWS = 8
"""Trials or rounds that are shown at a time."""
_ANY_HEIGHT = 1000
"""Lines of a terminal that has room for everything."""
_FAILED = 2
"""Failed trials that are shown, the newest."""
_RATIO = 24
"""Columns of a speed-up with its interval."""
_RULER = (0.85, 1.45, 21)
"""Lowest and highest ratio that the strip beside a round has at least, and its columns."""
_WIDE = 100
"""Columns from which on a round has a strip."""


@dataclass(frozen=True)
class LiveMoment:
    """A study at one moment, as far as the screen shows it.

    Attributes:
        attempts: of the study, those under way among them.
        ratios: speed-up of each timed trial by its number.
        doing: how far it has come, in words; empty if nothing says so.
    """

    study: StoredStudy
    spec: StudySpec
    attempts: Attempts
    ratios: Mapping[int, TrialRatio]
    rounds: Sequence[Round]
    running: tuple[str, ...]
    doing: str
    next: str

    @property
    def phase(self) -> str:
        """Part of the study that it is in."""
        open_ = [one for one in self.attempts if one.running]
        last = open_[-1] if open_ else self.attempts.last
        if last is None:
            return "look"
        if last.purpose == Purpose.PROFILE and self.rounds:
            return "explain"
        return PURPOSES[last.purpose].phase

    @property
    def baseline(self) -> int | None:
        """Trial of the baseline; None before it is complete."""
        own = self.attempts.baseline()
        return own.trial if own else None


class LiveView:
    """Screen of one study; the figures are computed again only when an attempt has begun or ended."""

    def __init__(self, repository: Repository, study: StoredStudy) -> None:
        self._repository = repository
        self._name = study.name
        self._spec = secrets_withheld.as_stored(study.spec)
        self._feed = AttemptFeed(repository.attempts, study.id)
        self._known: tuple[int, int] = (-1, -1)
        self._present = Present.of(attempts_of([], self._spec), {})
        self._ratios: Mapping[int, TrialRatio] = {}
        self._rounds: Sequence[Round] = ()

    def screen(self, width: int, height: int) -> Group:
        """Return the screen as it is now, for a terminal of this size."""
        return Group(*lines(self.moment(), width, height))

    def moment(self) -> LiveMoment:
        """Return the study as it is now."""
        study = self._repository.studies.named(self._name)
        recorded = self._feed.read()
        attempts = attempts_of(recorded, self._spec)
        known = len(recorded), sum(one.running for one in recorded)
        if known != self._known:
            self._known = known
            noise = self._repository.noise.of(study.id)
            self._ratios = trial_ratios(attempts, noise)
            self._present = Present.of(attempts, self._ratios)
            self._rounds = rounds_of(attempts, self._spec, self._repository.attempts.blocks)
        slots = self._repository.studies.slots(study.id)
        seen = outlook(study, self._spec, self._present, self._repository.now(), slots)
        doing = self._repository.messages.status(study.id) if seen.running else None
        return LiveMoment(
            study,
            self._spec,
            attempts,
            self._ratios,
            self._rounds,
            seen.running,
            doing.text if doing else "",
            seen.next,
        )


@dataclass(frozen=True)
class _Body:
    """Middle of the screen.

    Attributes:
        rows: the most important one first.
        below: what the rows come to.
        newest_last: True if the rows are shown the other way round.
    """

    title: Text
    rows: Sequence[Text]
    below: Sequence[Text]
    newest_last: bool = False

    def lines(self, most: int) -> list[Text]:
        """Return the lines, without the last of the rows where they are more than so many."""
        room = max(0, most - 1 - len(self.below))
        rows = self.rows[:room]
        return [self.title, *(reversed(rows) if self.newest_last else rows), *self.below]


def lines(moment: LiveMoment, width: int, height: int = _ANY_HEIGHT) -> Iterator[Text]:
    """Yield the lines of the screen, none of them wider than the terminal.

    Rows are left out where it is too low for all, and never what they come to, what runs or what
    comes next.
    """
    body = _proof(moment, width) if _proves(moment) else _search(moment, width)
    head, foot = list(_head(moment, width)), list(_foot(moment, width))
    for line in (*head, *body.lines(height - len(head) - len(foot)), *foot):
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
        yield line


def _proves(moment: LiveMoment) -> bool:
    return bool(moment.rounds) and moment.phase in ("prove", "explain")


def _head(moment: LiveMoment, width: int) -> Iterator[Text]:
    study, budget = moment.study, moment.spec.budget
    left = Text(plain(study.name), "bold")
    ranks = (study.facts or {}).get("world_size")
    if ranks:
        left.append(f"   {counted(ranks, 'rank')}", "dim")
    if Terms.of(moment.spec.unit).of_energy:
        left.append("   ratios in samples/J", "dim")
    limit = f" of {duration(budget.wall_time)}" if budget.wall_time else ""
    right = f"{duration(study.elapsed)}{limit}   Ctrl-C leaves it running"
    left.append(" " * max(2, width - len(left) - len(right)))
    left.append(right, "dim")
    yield left
    yield _phases(moment)
    yield Text("─" * width, "dim")


def _phases(moment: LiveMoment) -> Text:
    at = PHASES.index(moment.phase)
    line = Text(" ")
    for place, phase in enumerate(PHASES):
        if place < at:
            line.append(f"✓ {phase}   ", "green")
        elif place == at:
            line.append(f"● {phase}{_extra(moment, phase)}   ", "bold cyan")
        else:
            line.append(f"○ {phase}   ", "dim")
    return line


def _extra(moment: LiveMoment, phase: str) -> str:
    if phase == "search":
        most = moment.spec.budget.trials
        return f" {len(moment.attempts.searched())}{f'/{most}' if most else ''}"
    if phase == "prove" and moment.rounds:
        return f" round {moment.rounds[-1].number}"
    return ""


def _search(moment: LiveMoment, width: int) -> _Body:
    title = Text(f"{'trial':>5}  {'over yours':{_RATIO}} {'MiB':>6}  changes", "dim")
    others, lead = _best_first(moment)[:_ROWS], leading_trial(moment.attempts, moment.ratios)
    rows = []
    for one in others:
        ratio = moment.ratios[one.trial]
        style = "bold" if one.trial == lead else "" if ratio.interleaved else "dim"
        rows.append(Text(_trial_row(one, short_ratio(ratio.ratio), moment, width), style))
    return _Body(title, rows, list(_below_trials(moment, others, lead)))


def _below_trials(
    moment: LiveMoment, shown: Sequence[StoredAttempt], lead: int | None
) -> Iterator[Text]:
    if not all(moment.ratios[one.trial].ratio.distinguishable for one in shown):
        yield Text(f"       ?: {UNKNOWN}", "dim")
    failed = [one for one in moment.attempts.searched() if one.result.rate is None]
    for one in failed[-_FAILED:]:
        yield Text(
            plain(f"{one.trial:>5}  {end_in_words(one.result.state)}: {one.result.cause}"), "red"
        )
    if len(failed) > _FAILED:
        yield Text(f"       {len(failed)} trials have failed", "dim")
    yield Text("")
    terms = Terms.of(moment.spec.unit)
    if lead is not None:
        seen = said_ratio(moment.ratios[lead].ratio, terms)
        yield Text(f" Leading: trial {lead}, {seen}, seen once; proof comes later.")
    elif shown:
        yield Text(f" Nothing was seen to be {terms.better} than yours yet.")
    else:
        yield Text(" Nothing has been compared with yours yet.")
    own = moment.attempts.of(*SEARCH_RUNS).of_baseline()
    yield from _restless(moment, [run.result.rate for run in own])


def _best_first(moment: LiveMoment) -> list[StoredAttempt]:
    """Return the timed trials without the baseline, the fastest first; those ended early are last."""

    def place(one: StoredAttempt) -> tuple[bool, bool, float]:
        complete = one.result.state == AttemptState.COMPLETE
        return complete, *precedence(moment.ratios[one.trial].ratio)

    timed = [one for one in moment.attempts.searched() if one.trial in moment.ratios]
    return sorted((one for one in timed if one.trial != moment.baseline), key=place, reverse=True)


def _trial_row(one: StoredAttempt, ratio: str, moment: LiveMoment, width: int) -> str:
    memory = quantity(one.result.peak_bytes / MIB)
    row = f"{one.trial:>5}  {ratio:{_RATIO}} {memory:>6}  "
    early = ["ended early"] if one.result.state == AttemptState.PRUNED else []
    changes = difference(one.knobs, moment.spec.full_baseline()).split(", ")
    return plain(row + _fitting([*early, *changes], width - len(row)))


def _fitting(changes: Sequence[str], room: int) -> str:
    """Return as many changes as there is room for, as 'micro_batch=32, precision=bf16 +2'."""
    for count in range(len(changes), 1, -1):
        more = f" +{len(changes) - count}" if count < len(changes) else ""
        text = ", ".join(changes[:count]) + more
        if len(text) <= room:
            return text
    return changes[0] + (f" +{len(changes) - 1}" if len(changes) > 1 else "")


def _proof(moment: LiveMoment, width: int) -> _Body:
    baseline = moment.baseline
    trials = [t for t in moment.rounds[-1].rates if t != baseline]
    strip = width >= _WIDE
    head = f"{'round':>5}  {'trial':>5} {'ratio':>7}  {'rate':>9} {'yours':>9}"
    shown = moment.rounds[-_ROWS:]
    ends = _ends([ratio for one in shown for ratio in one.ratios.values()])
    rows = []
    for one in shown:
        for trial, ratio in one.ratios.items():
            rates = f"{quantity(one.rates[trial]):>9} {quantity(one.rates[baseline or 0]):>9}"
            row = Text(f"{one.number:>5}  {trial:>5} {times(ratio):>7}  {rates}")
            row.stylize("red" if ratio < 1 else "", 12, 20)
            if strip:
                row.append(f"  {_strip(ratio, ends)}", "cyan")
            rows.append(row)
    title = Text(f"{head}  {_ruler(ends) if strip else ''}", "dim")
    return _Body(title, rows[::-1], list(_below_rounds(moment, trials)), newest_last=True)


def _below_rounds(moment: LiveMoment, trials: Sequence[int]) -> Iterator[Text]:
    yield Text("")
    yield from _so_far(moment, trials)
    baseline = moment.baseline
    since = [one for one in moment.rounds if one.stage is not Stage.BEFORE]
    yield from _restless(moment, [one.rates.get(baseline) for one in since if baseline is not None])


def _restless(moment: LiveMoment, rates: Iterable[float | None]) -> Iterator[Text]:
    """Yield a warning if the rates of the baseline tell that the machine changes its pace."""
    several = [rate for rate in rates if rate is not None]
    if several and max(several) > RESTLESS * min(several):
        ran = range_text((min(several), max(several)), moment.spec.unit)
        yield Text(f" ! restless machine: yours ran at {ran}; the ratio counts", "yellow")


def _so_far(moment: LiveMoment, trials: Sequence[int]) -> Iterator[Text]:
    counted_ = [one for one in moment.rounds if one.counts]
    last = next((one for one in reversed(counted_) if one.so_far), None)
    terms = Terms.of(moment.spec.unit)
    for trial in trials:
        if last is not None and trial in last.so_far:
            ratios = [one.ratios[trial] for one in counted_ if trial in one.ratios]
            won = (
                f"{terms.better} in {sum(r > 1 for r in ratios)} of {counted(len(ratios), 'round')}"
            )
            yield Text(
                f" So far: trial {trial}, {said_ratio(last.so_far[trial], terms)}; {won}", "bold"
            )
    chose = [one.number for one in moment.rounds if one.stage is Stage.CHOICE]
    if chose and moment.rounds[-1].stage is Stage.GAIN:
        yield Text(f" Rounds up to {chose[-1]} chose; the later ones tell by how much.", "dim")


def _foot(moment: LiveMoment, width: int) -> Iterator[Text]:
    for text in moment.running[:2]:
        yield from _wrapped(f" ▸ {text}", width, "cyan")
    if moment.running and moment.doing:
        yield from _wrapped(f"   {moment.doing}", width, "dim")
    if moment.next:
        yield from _wrapped(f" Next: {moment.next}", width, "dim")


def _wrapped(text: str, width: int, style: str) -> Iterator[Text]:
    for line in textwrap.wrap(plain(text), width, subsequent_indent="   "):
        yield Text(line, style)


def _ends(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a strip that has room for these ratios."""
    low, high, _ = _RULER
    return min([low, *ratios]), max([high, *ratios])


def _place(ratio: float, ends: tuple[float, float]) -> int:
    return round((ratio - ends[0]) / (ends[1] - ends[0]) * (_RULER[2] - 1))


def _strip(ratio: float, ends: tuple[float, float]) -> str:
    cells = [" "] * _RULER[2]
    cells[_place(1.0, ends)] = "┊"
    cells[_place(ratio, ends)] = "◆"
    return "".join(cells)


def _ruler(ends: tuple[float, float]) -> str:
    cells = [" "] * (_RULER[2] + 3)
    for value in (1.0, (1.0 + ends[1]) / 2, ends[1]):
        at = max(1, _place(value, ends))
        cells[at - 1 : at + 2] = f"{value:^3.2g}"
    return "".join(cells)
