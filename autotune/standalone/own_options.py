"""Search by trial for a script's own options that turn knobs of the catalogue, besides its batch.

Options are given another word in a run of a few steps, and kept if what is seen changes as their knob
says. A start of the script may take long, so that one run tries the first option of several knobs.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.analysis.wording import counted
from autotune.errors import BadInput, first_line
from autotune.standalone import named_options
from autotune.standalone.named_options import OtherWord
from autotune.worker.survey_result import ON, SurveyResult, agrees
from search_spaces import CATALOGUE
from search_spaces.knob import KnobValue, written

LOG_INTERVAL, COMPILE, RECOMPUTATION = "log_interval", "compile", "activation_checkpointing"
PRECISION = "precision"
COMPILING = 3.0
"""Time of a run that compiles what the unchanged command does not, over that of one which does not."""
_WORKERS = "num_workers"
_UNSEEN: Mapping[str, KnobValue] = {RECOMPUTATION: 0}
"""Knobs of which nothing is seen where they have this value."""
Tried = Mapping[str, Sequence[OtherWord]]
"""Knob -> what to try for it, the most telling first."""
RunWith = Callable[[Sequence[OtherWord]], SurveyResult]
"""Returns what rank 0 sees of the script with these words.

Raises:
    BadInput: the script fails with them.
"""


@dataclass(frozen=True)
class Turned:
    """Option that was seen to turn a knob.

    Attributes:
        flag: of the script.
        baseline: present value of the knob.
        values: of the knob that it can have.
        words: value -> word of the option; empty: it takes the values.
        refused: values with which the script fails.
    """

    flag: str
    baseline: KnobValue
    values: tuple[KnobValue, ...]
    words: Mapping[str, KnobValue] = field(default_factory=dict)
    refused: tuple[KnobValue, ...] = ()


@dataclass(frozen=True)
class OwnOptions:
    """Result of the search.

    Attributes:
        turned: knob -> option that turns it.
        doubts: why other options do not, a line each.
    """

    turned: dict[str, Turned] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def values(self, knob: str, usual: Sequence[Any]) -> list[Any]:
        """Return the values to try of a knob that an option turns.

        Args:
            knob: name of it.
            usual: values that are tried from outside; without any, or where the option says values
                in another way, as it is clamped or divided, those that were seen.
        """
        own, named = self.turned[knob], CATALOGUE[knob].named
        as_usual = knob != LOG_INTERVAL and named is not None and named.is_number
        wanted = usual if as_usual and usual and not own.words else own.values
        return [value for value in wanted if value not in own.refused]

    def fitting(self, device: str) -> "OwnOptions":
        """Return the options that may help on a device, 'cpu' or 'cuda'."""
        half = self.turned.get(PRECISION)
        if device != "cpu" or half is None or half.baseline == "fp16" or "fp16" not in half.values:
            return self
        others = {knob: one for knob, one in self.turned.items() if one is not half}
        values = " and ".join(map(written, half.values))
        doubt = f"{half.flag} has {values}, and processors do not gain by fp16"
        return OwnOptions(others, (*self.doubts, doubt))


class SearchTime:
    """Time of a search by trial, within which a run has to end that begins."""

    def __init__(self, seconds: float, usual: float = 0.0) -> None:
        """Begin the search.

        Args:
            seconds: that it may take.
            usual: seconds that a run is expected to take.
        """
        self._end = time.monotonic() + seconds
        self._usual = usual

    def late(self, knob: str, flag: str = "") -> str:
        """Return that a knob, or its option, was not tried for lack of time; empty if there is time."""
        expected = self._usual * (COMPILING if knob == COMPILE else 1.0)
        if time.monotonic() + expected < self._end:
            return ""
        what = f"{flag} was not tried" if flag else "not tried"
        return f"{knob}: {what}, as init took too long"


def worth_trying(tried: Tried, seen: SurveyResult, device: str) -> Tried:
    """Return what may help on a device: recomputation saves memory of one, and costs time.

    Args:
        tried: knob -> what to try for it.
        seen: training of the unchanged command.
        device: 'cpu' or 'cuda'.
    """
    idle = device == "cpu" and shows(seen, RECOMPUTATION, _UNSEEN[RECOMPUTATION])
    return {
        knob: several for knob, several in tried.items() if not (idle and knob == RECOMPUTATION)
    }


def find_own_options(
    run: RunWith,
    seen: SurveyResult,
    tried: Tried,
    say: Callable[[str], None],
    searching: SearchTime,
) -> OwnOptions:
    """Try other words for options.

    Args:
        run: runs the script.
        seen: training of the unchanged command.
        tried: knob -> what to try for it.
        say: called with what will be tried.
        searching: its time.
    """
    if not tried:
        return OwnOptions()
    listed = "; ".join(
        f"{', '.join(dict.fromkeys(one.option.flag for one in several))} for {knob}"
        for knob, several in tried.items()
    )
    say(f"Trying options that are named for a knob: {listed}.")
    search = _OptionSearch(run, seen, searching)
    for together in _groups(tried):
        search.try_knobs(together)
    return OwnOptions(search.turned, (*search.doubts, *search.untried))


def _groups(tried: Tried) -> Iterator[Tried]:
    """Yield the knobs that one run can tell apart.

    Readings of the loss are apart from number formats, with which a loss scaler may come that reads a
    number in each step. Workers are with them, as they are refused most often. Compilation takes
    longest.
    """
    apart = ({COMPILE}, {LOG_INTERVAL, _WORKERS})
    yield {knob: tried[knob] for knob in tried if not any(knob in few for few in apart)}
    yield from ({knob: tried[knob] for knob in tried if knob in few} for few in reversed(apart))


class _OptionSearch:
    """Runs with other words, and what came of them.

    Attributes:
        turned: knob -> option that turns it.
        doubts: why others do not.
        untried: those for which there was no time.
    """

    def __init__(self, run: RunWith, seen: SurveyResult, searching: SearchTime) -> None:
        self.turned: dict[str, Turned] = {}
        self.doubts: list[str] = []
        self.untried: list[str] = []
        self._run = run
        self._seen = seen
        self._searching = searching

    def try_knobs(self, tried: Tried) -> None:
        """Try the first option of each knob in one run, and what is left open by that alone."""
        together = self._together([several[0] for several in tried.values()])
        for knob, several in tried.items():
            late = self._searching.late(knob, several[0].option.flag)
            if late and not together:
                self.untried.append(late)
            else:
                self._try_knob(several, together)

    def _together(self, first: Sequence[OtherWord]) -> SurveyResult | None:
        """Return what is seen with several words; None where it tells nothing of each."""
        if len(first) < 2 or self._searching.late(first[0].knob):
            return None
        try:
            after = self._run(first)
        except BadInput:
            return None
        return None if _batch_changed(self._seen, after) else after

    def _try_knob(self, several: Sequence[OtherWord], together: SurveyResult | None) -> None:
        """Try words until one turns the knob.

        Args:
            several: the words.
            together: what was seen with the first of them; None: it is to be tried.
        """
        refused: defaultdict[str, list[KnobValue]] = defaultdict(list)
        without_effect: set[str] = set()
        for other in several:
            flag = other.option.flag
            if flag in without_effect:
                continue
            try:
                after = together if together and other is several[0] else self._run([other])
            except BadInput as error:
                if other.value is not None:
                    refused[flag].append(other.value)
                self.doubts.append(f"{_given(other)} fails: {first_line(error)}")
                continue
            if doubt := _doubt(other, self._seen, after):
                self.doubts.append(f"{_given(other)} is not {other.knob}: {doubt}")
                without_effect.add(flag)
                continue
            self.turned[other.knob] = _turned(other, self._seen, after, tuple(refused[flag]))
            return


def _turned(
    other: OtherWord, before: SurveyResult, after: SurveyResult, refused: tuple[KnobValue, ...]
) -> Turned:
    """Return the option as a knob, by what was seen before and with another word."""
    was, value = _values(other, before, after)
    words = named_options.spelling_of(other, (was, value))
    values = _in_order(other.knob, was, value)
    return Turned(other.option.flag, was, values, words, refused)


def shows(seen: SurveyResult, knob: str, value: KnobValue) -> bool:
    """Return whether a survey shows that a knob has a value; how many readings are enough does not."""
    found = seen.own.get(knob)
    return value == _UNSEEN.get(knob) if found is None else agrees(found, value)


def _given(other: OtherWord) -> str:
    return f"{other.option.flag} {written(other.word)}"


def _batch_changed(before: SurveyResult, after: SurveyResult) -> bool:
    split = (after.micro_batch, after.accumulation_steps)
    return not before.uneven and split != (before.micro_batch, before.accumulation_steps)


def _doubt(other: OtherWord, before: SurveyResult, after: SurveyResult) -> str:
    """Return why an option does not turn its knob; empty if it does."""
    if _batch_changed(before, after):
        return (
            f"it changes the batch to {counted(after.micro_batch, 'sample')} x "
            f"{counted(after.accumulation_steps, 'micro-batch')}"
        )
    was, value = _values(other, before, after)
    if was == value:
        return f"{_shown(other.knob, before)} as before"
    domain, wanted = CATALOGUE[other.knob].domain, other.value
    if wanted not in (None, value) or any(map(domain.problem, (was, value))):
        return f"then there is {_shown(other.knob, after)}"
    if CATALOGUE[other.knob].number_format and CATALOGUE[other.knob].default not in (was, value):
        return f"it has {written(was)} and {written(value)}, and none to compare them with"
    return ""


def _shown(knob: str, seen: SurveyResult) -> str:
    """Describe what was seen of a knob."""
    if knob == COMPILE:
        return counted(seen.frames, "compiled frame")
    if knob == LOG_INTERVAL:
        return f"{counted(seen.reads, 'number')} read in {counted(seen.steps, 'step')}"
    return written(_in_force(knob, seen))


def _values(other: OtherWord, before: SurveyResult, after: SurveyResult) -> tuple[Any, Any]:
    """Return the values of a knob before an option was changed and with it, by what was seen.

    They are equal where nothing has changed.
    """
    if other.knob == COMPILE:
        on = other.value if other.value not in (None, "none") else "default"
        if after.frames == before.frames:
            return "none", "none"
        return ("none", on) if after.frames > before.frames else ("default", "none")
    if other.knob == LOG_INTERVAL:
        more = after.reads > before.reads
        heeded = after.reads != before.reads and more == (
            int(other.word) < int(str(other.baseline))
        )
        return other.baseline, other.word if heeded else other.baseline
    return _in_force(other.knob, before), _in_force(other.knob, after)


def _in_force(knob: str, seen: SurveyResult) -> KnobValue:
    """Return the value of a knob that a survey shows."""
    found: KnobValue = seen.own.get(knob, CATALOGUE[knob].default)
    # Recomputation shows, but not of how many blocks.
    return int(found == ON) if knob == RECOMPUTATION else found


def _in_order(knob: str, before: KnobValue, after: KnobValue) -> tuple[KnobValue, ...]:
    """Return the values to try: the default first, and of an interval no shorter one than at present."""
    if knob == LOG_INTERVAL:
        return named_options.intervals(int(before))
    default = CATALOGUE[knob].default
    return tuple(sorted((before, after), key=lambda value: value != default))
