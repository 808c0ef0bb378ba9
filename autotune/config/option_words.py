"""Values of knobs in the words of a script's own options: `--dtype bfloat16`, `--compile`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from autotune.config import arguments, mistakes
from search_spaces import CATALOGUE
from search_spaces.knob import Choice, Knob, KnobValue, written

Words = Mapping[str, Mapping[str, KnobValue]]
"""Knob -> value, as a text -> word of the option that turns it."""


def problems(given: Words, flags: Collection[str]) -> mistakes.Problems:
    """Return the mistakes in words by themselves.

    Args:
        given: as in the study.
    """
    problems: mistakes.Problems = {}
    for knob, words in given.items():
        path = ("workload", "words", knob)
        if knob not in flags:
            problems[path] = "is not among flags; say there by which argument it is turned"
            continue
        if knob not in CATALOGUE:
            continue  # which is a mistake of `flags`
        for text in words:
            if value_of(CATALOGUE[knob], text) is None:
                allowed = CATALOGUE[knob].domain.describe()
                problems[(*path, text)] = f"is no value of {knob}; it has {allowed}"
    return problems


def of_space(
    given: Words, space: Mapping[str, Sequence[Any]], baseline: Mapping[str, Any]
) -> mistakes.Problems:
    """Return knobs with values for which no word is given.

    The present value needs none. A number format needs fp32, with which the others are compared.

    Args:
        given: as in the study.
        space: values to try.
        baseline: a value for every knob.
    """
    problems: mistakes.Problems = {}
    for knob, words in given.items():
        entry = CATALOGUE.get(knob)
        if entry is None or knob not in space:
            continue
        compared = (entry.default,) if entry.number_format else ()
        wanted = [value for value in (*space[knob], *compared) if value != baseline[knob]]
        lacking = [written(value) for value in wanted if written(value) not in words]
        if lacking:
            problems["workload", "words", knob] = (
                f"have none for {' and '.join(dict.fromkeys(lacking))}; say how the script calls it"
            )
    return problems


def said(given: Words, knob: str, value: KnobValue) -> KnobValue:
    """Return the value of a knob in the script's words."""
    return given.get(knob, {}).get(written(value), value)


def meant(words: Mapping[str, KnobValue], knob: str, found: object) -> KnobValue | None:
    """Return the value of a knob that a script's word stands for; None: none is known.

    Args:
        words: value -> word.
        found: the word, or its text.
    """
    for text, word in words.items():
        is_truth = isinstance(word, bool) and arguments.truth(_text(found)) is word
        if is_truth or _text(found) == written(word):
            return value_of(CATALOGUE[knob], text)
    return None


def value_of(knob: Knob, text: str) -> KnobValue | None:
    """Return the value that a text stands for; None: it is none of the knob's."""
    if isinstance(knob.domain, Choice):
        return next((value for value in knob.domain.values if written(value) == text), None)
    if not text.isdecimal() or knob.domain.problem(int(text)):
        return None
    return int(text)


def _text(found: object) -> str | None:
    return written(found) if isinstance(found, bool | int | float | str) else None
