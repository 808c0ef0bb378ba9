"""Options of a script that are named for a knob of the catalogue, and other words for them. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.config.arguments import ASSIGNMENT, FIELD, is_constructed
from autotune.standalone.flags import words_in
from autotune.worker.survey_result import Option
from search_spaces import CATALOGUE, Facts
from search_spaces.constraints import unmet_needs
from search_spaces.knob import Knob, KnobValue, Named, written

_MOST_TRIED = 2
"""Options tried per knob: each costs a start of the script."""
_PREFIXES = {"use", "enable", "disable", "no", "with", "do", "is"}
_IS_ON = {"enable", "enabled"}
"""Names of fields that switch on what the section around them is named for."""
_SELDOM = 100
"""Interval in steps from which on readings of the loss cost too little to be measured."""
_SOME_WORKERS = 2
_LONGEST = "compile"
"""Knob that takes longest to try: it comes last."""
_OFTEN = 2
"""Interval that shows within a few steps; with 1, `step % interval == 1` would never be true."""
_LESS_OFTEN = 10
"""Factor by which the loss is read less often."""


@dataclass(frozen=True)
class OtherWord:
    """Another word for an option, which may be another value of a knob.

    Attributes:
        baseline: what says the present value; None: nothing is known to.
        value: of the knob, where the word is one for it; None: what is seen decides.
    """

    knob: str
    option: Option
    word: KnobValue
    baseline: KnobValue | None
    value: KnobValue | None = None


def others(options: Sequence[Option], facts: Facts, cpus: int) -> dict[str, tuple[OtherWord, ...]]:
    """Return what to try for each knob, the most telling first.

    Args:
        facts: of this machine.
        cpus: for each rank.
    """
    found: dict[str, tuple[OtherWord, ...]] = {}
    with_names = (knob for knob in CATALOGUE.values() if knob.named)
    for knob in sorted(with_names, key=lambda knob: knob.name == _LONGEST):
        fitting = (
            [one for one in _words(knob, option, cpus) if not _lacks(knob, one, facts)]
            for option in _named(knob, options)
        )
        few = itertools.islice(filter(None, fitting), _MOST_TRIED)
        if several := tuple(one for words in few for one in words):
            found[knob.name] = several
    return found


def intervals(baseline: int) -> tuple[int, int]:
    """Return the intervals between readings of the loss that a study tries."""
    return baseline, _LESS_OFTEN * baseline


def _lacks(knob: Knob, other: OtherWord, facts: Facts) -> bool:
    """Return whether this machine lacks what a value needs; a switch is for the promising one."""
    value = knob.promising if other.value is None else other.value
    return value is not None and any(unmet_needs({knob.name: value}, facts))


# Names


def _named(knob: Knob, options: Sequence[Option]) -> list[Option]:
    """Return the options that are named for a knob, or whose help says so, the most telling first.

    Options of the script's own come before arguments of classes.
    """
    named = knob.named
    assert named is not None
    ranked = [
        (is_constructed(option.flag), rank, place)
        for place, option in enumerate(options)
        if (rank := _rank(named, option)) is not None
    ]
    return [options[place] for _, _, place in sorted(ranked)]


def _rank(named: Named, option: Option) -> int | None:
    """Return how well an option fits, 0 is best; None where neither name nor help fits."""
    ranks = [named.names.index(name) for name in _names(option) if name in named.names]
    if ranks:
        return min(ranks)
    text = option.help.lower()
    return len(named.names) if any(phrase in text for phrase in named.phrases) else None


def _names(option: Option) -> Iterator[str]:
    """Yield the names of an option, with and without what only says that it is a switch."""
    path = option.flag.removesuffix(ASSIGNMENT).rpartition(FIELD)[2].split(".")
    last = path[-2] if len(path) > 1 and path[-1] in _IS_ON else option.name
    words = words_in(last)
    yield "_".join(words)
    if words and words[0] in _PREFIXES:
        yield "_".join(words[1:])


# Words


def _words(knob: Knob, option: Option, cpus: int) -> Iterator[OtherWord]:
    """Yield other words for an option, as far as its present value tells what it takes."""
    named, value = knob.named, option.value
    assert named is not None
    if named.is_number:
        yield from _numbers(knob.name, option, cpus)
    elif isinstance(value, bool):
        yield OtherWord(knob.name, option, _truth(option, not value), _truth(option, value))
    elif spelt := [*_spelt(knob, named, option)]:
        yield spelt[0]
    elif type(value) is int and value in (0, 1):
        yield OtherWord(knob.name, option, 1 - value, value)


def _truth(option: Option, value: bool) -> KnobValue:
    """Return a boolean as an option takes it: by being there, or as Python and parsers read it."""
    valued = option.flag.startswith("-") and not option.switch and FIELD not in option.flag
    return str(value) if valued else value


def _numbers(knob: str, option: Option, cpus: int) -> Iterator[OtherWord]:
    text = str(option.value)
    if option.switch or not text.isdecimal() or CATALOGUE[knob].domain.problem(int(text)):
        return
    baseline = int(text)
    if knob == "log_interval":
        _, longer = intervals(baseline)
        tried = [] if baseline >= _SELDOM else [_OFTEN if baseline > _OFTEN else longer]
    else:
        tried = [0, baseline + 1] if baseline else [min(_SOME_WORKERS, max(1, cpus))]
    yield from (OtherWord(knob, option, number, baseline, number) for number in tried)


def _spelt(knob: Knob, named: Named, option: Option) -> Iterator[OtherWord]:
    """Yield words of the convention in which the present value is said, the promising one first."""
    present = None if option.value is None else str(option.value)
    choices = {choice.lower(): choice for choice in option.choices}
    for spelling in named.spellings:
        if present is not None and present.lower() not in spelling:
            continue
        if present is None and not choices:
            continue
        of_default = {word for word, value in spelling.items() if value == knob.default}
        if present and choices and not of_default & choices.keys():
            continue  # another convention, which shares some words
        for word in sorted(spelling, key=lambda word: _order(knob, spelling[word])):
            allowed = choices.get(word) if choices else word
            if allowed is not None and allowed != present:
                yield OtherWord(knob.name, option, allowed, present, spelling[word])


def _order(knob: Knob, value: KnobValue) -> tuple[bool, bool]:
    return value != knob.promising, value != knob.default


def spelling_of(other: OtherWord, values: tuple[KnobValue, KnobValue]) -> Mapping[str, KnobValue]:
    """Return value -> word, for the present value and another one, where the words are not the values.

    Args:
        other: the word that was given.
        values: that were seen before, and with it.
    """
    before, after = map(written, values)
    words = {after: other.word}
    if other.baseline is not None:
        words = {before: other.baseline, **words}
    said = {value: written(word) for value, word in words.items()}
    return {} if all(value == word for value, word in said.items()) else words
