"""Configuration as arguments of the user's script: the knobs that the script sets by itself."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.config.mistakes import in_yaml
from autotune.worker.inject import constructed
from search_spaces.knob import KnobValue, written

ENVIRONMENT = "$"
ASSIGNMENT = "="
FIELD = "::"
"""Separator between the name of a file and a field in it: see `autotune.config.fields`."""
_END = "--"
_NAME = re.compile(r"(--?)?[A-Za-z_+][^\s=]*")
"""Name in front of a value in a word."""
_ATTACHED = re.compile(r"(-[A-Za-z])([0-9]+)")
"""Option of one letter and its number in one word."""
_OPTION = re.compile(r"-[A-Za-z-]")
"""Beginning of an option: that of a negative number is another one."""
_SWITCH = re.compile(r"(-{1,2}[^\s=/:]+)?/(-{1,2}[^\s=/:]+)")
"""Options that switch something on and off; without the first one its default is on."""
_WHOLE = re.compile(r"[-+]?[0-9](_?[0-9]){0,29}")
_OPPOSITES = {"true": "false", "yes": "no", "on": "off", "y": "n", "t": "f", "1": "0"}


def changed(
    arguments: Sequence[str], flags: Mapping[str, str], knobs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the arguments with these knobs set.

    `--flag` takes its value as the next argument or after `=`, and a switch is there or not; of
    `--on/--off` one is there, of `/--off` it or nothing; `key=` is an assignment in one argument
    (Hydra). An option that is not among the arguments is added at their end. Variables of the
    environment are not arguments, see `variables`; nor are fields of files and arguments of classes.

    Args:
        arguments: as the user gives them.
        flags: knob -> `--flag`, `key=` or `$VARIABLE`, a field of a file or an argument of a class.
        knobs: to be set, each with its value.
    """
    found = list(arguments)
    for name, value in knobs.items():
        flag = flags.get(name, ENVIRONMENT)
        if flag.startswith(ENVIRONMENT) or FIELD in flag or is_constructed(flag):
            continue
        text = spelt(written(value), given(found, flag))
        if pair := switches(flag):
            _choose(found, *(pair if value else reversed(pair)))
        elif flag.endswith(ASSIGNMENT):
            _assign(found, flag, text)
        elif isinstance(value, bool) and truth(given(found, flag)) is None:
            _switch(found, flag, on=value)
        else:
            _set(found, flag, text)
    return tuple(found)


def replaced(arguments: Sequence[str], flag: str, value: str, other: str) -> tuple[str, ...]:
    """Return the arguments with another value of a flag wherever it has this one.

    Args:
        flag: `--flag` or `key=`.
        value: that is replaced; the flag may be given again with others.
    """
    joined = flag if flag.endswith(ASSIGNMENT) else flag + ASSIGNMENT

    def word(before: str, given: str) -> str:
        if given == joined + value:
            return joined + other
        return other if (before, given) == (flag, value) else given

    return tuple(itertools.starmap(word, itertools.pairwise(["", *arguments])))


def variables(flags: Mapping[str, str], knobs: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the environment through which the script takes these knobs."""
    named = {name: flags[name] for name in knobs if name in flags}
    return {
        flag.removeprefix(ENVIRONMENT): written(knobs[name])
        for name, flag in named.items()
        if is_variable(flag)
    }


def is_constructed(flag: str) -> bool:
    """Return whether a flag is an argument of a class: `TrainingArguments(bf16)`."""
    return constructed.parted(flag) is not None


def switches(flag: str) -> tuple[str, str] | None:
    """Return the options of `--on/--off` or `/--off`, the first one empty there; None: another form."""
    found = _SWITCH.fullmatch(flag)
    return (found[1] or "", found[2]) if found else None


def given(arguments: Sequence[str], flag: str) -> str | None:
    """Return the last value of a flag among the arguments; None if there is none.

    That of a pair of switches is `true` or `false`.
    """
    if pair := switches(flag):
        words = [written(one == pair[0]) for one in arguments if one and one in pair]
        return words[-1] if words else None
    if flag.endswith(ASSIGNMENT):
        values = [one.removeprefix(flag) for one in arguments if one.startswith(flag)]
        return values[-1] if values else None
    values = []
    for place, one in enumerate(arguments):
        if one == flag and place + 1 < len(arguments):
            values.append(arguments[place + 1])
        elif one.startswith(f"{flag}="):
            values.append(one.removeprefix(f"{flag}="))
        elif _is_attached(one, flag):
            values.append(one.removeprefix(flag))
    return values[-1] if values else None


def in_one_word(arguments: Sequence[str], flag: str) -> str:
    """Return the mistake of an option that stands in one word with its value; empty if there is none."""
    for word in arguments if may_be_switch(flag) else ():
        name, _, value = word.partition(" ")
        if name == flag and value:
            apart = f"{in_yaml(name)}, {in_yaml(value.strip())}"
            return f"{in_yaml(word)} is one word to the script; write {apart}"
    return ""


def stands_alone(arguments: Sequence[str], flag: str) -> bool:
    """Return whether an option is there, and nowhere has a word behind it that could be its value."""
    places = [place for place, word in enumerate(arguments) if word == flag]
    behind = [arguments[place + 1 : place + 2] for place in places]
    return bool(places) and not any(words and not _OPTION.match(words[0]) for words in behind)


def names(flag: str) -> tuple[str, ...]:
    """Return the words by which a flag turns its knob: both options of `--on/--off`."""
    pair = switches(flag)
    return tuple(filter(None, pair)) if pair else (flag.removesuffix(ASSIGNMENT),)


def is_variable(flag: str) -> bool:
    """Return whether a flag is a variable of the environment."""
    return flag.startswith(ENVIRONMENT) and FIELD not in flag


def present(arguments: Sequence[str], variables: Mapping[str, str], flag: str) -> str | None:
    """Return the text of a flag in the arguments or the variables; None if there is none.

    Args:
        variables: of the script's environment, as the study sets them.
    """
    if is_variable(flag):
        return variables.get(flag.removeprefix(ENVIRONMENT))
    return given(arguments, flag)


def typed(arguments: Sequence[str]) -> Iterator[tuple[str, KnobValue]]:
    """Yield every value among the arguments, `--flag 8`, `--flag=8`, `-f8`, `key=8`, with its flag.

    The flag has the form that `changed` takes; whole numbers, true and false are no texts. No parser
    is involved: a script may have one of its own.
    """
    for before, word in itertools.pairwise(["", *arguments]):
        name, sign, value = word.partition(ASSIGNMENT)
        if sign and _NAME.fullmatch(name):
            yield name + sign, _read(value)
        elif before.startswith("-") and _NAME.fullmatch(before) and not word.startswith("-"):
            yield before, _read(word)
        elif attached := _ATTACHED.fullmatch(word):
            yield attached[1], _read(attached[2])


def _read(text: str) -> KnobValue:
    if text.isdecimal():
        return int(text)
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def _is_attached(word: str, flag: str) -> bool:
    """Return whether a number follows an option of one letter in the same word: `-b16`."""
    found = _ATTACHED.fullmatch(word)
    return found is not None and found[1] == flag


def number(text: str | None) -> int | float | None:
    """Return the finite number that a text is to a script; None if it is none.

    Digits are decimal, whatever stands in front of them: `064` is 64.
    """
    if text is None:
        return None
    try:
        found = int(text) if _WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def present_truth(flag: str, text: str | None) -> bool | None:
    """Return the meaning of the text of a flag for yes or no; None if it is none.

    A variable is written as true or false, whatever it was before, so that it has no other words.
    """
    if is_variable(flag) and (text or "").lower() not in ("true", "false"):
        return None
    return truth(text)


def truth(text: str | None) -> bool | None:
    """Return the meaning of a word for yes or no; None if it is none."""
    word = (text or "").lower()
    return True if word in _OPPOSITES else False if word in _OPPOSITES.values() else None


def valued(flag: str, text: str | None) -> tuple[str, ...]:
    """Return the words that give an option a value for yes or no; none for any other text or flag."""
    if truth(text) is None:
        return ()
    if flag.endswith(ASSIGNMENT) and FIELD not in flag:
        return (f"{flag}{text}",)
    return (flag, str(text)) if may_be_switch(flag) else ()


def may_be_switch(flag: str) -> bool:
    """Return whether a flag is an option that could stand by itself."""
    is_option = flag.startswith("-") and not flag.endswith(ASSIGNMENT) and FIELD not in flag
    return is_option and not switches(flag)


def spelt(text: str, present: str | None) -> str:
    """Return a boolean in the user's own spelling; any other text as it is.

    To Python Fire, `False` is a boolean and `false` a text, and a script that takes `off` may know
    no other word.
    """
    if present is None or truth(present) is None or text not in ("true", "false"):
        return text
    pair = next(pair for pair in _OPPOSITES.items() if present.lower() in pair)
    word = pair[0] if text == "true" else pair[1]
    return word.title() if present.istitle() else word.upper() if present.isupper() else word


def _assign(found: list[str], flag: str, value: str) -> None:
    places = [place for place, given in enumerate(found) if given.startswith(flag)]
    for place in places:
        found[place] = flag + value
    if not places:
        _add(found, flag + value)


def _set(found: list[str], flag: str, value: str) -> None:
    """Set an option everywhere: most parsers take the last one."""
    places = [
        place for place, given in enumerate(found) if given == flag and place + 1 < len(found)
    ]
    for behind in (place + 1 for place in reversed(places)):
        # An option whose value may be left out can stand in front of another option.
        is_bare = _OPTION.match(found[behind]) and not _OPTION.match(value)
        found[behind : behind if is_bare else behind + 1] = [value]
    joined = [place for place, given in enumerate(found) if given.startswith(f"{flag}=")]
    for place in joined:
        found[place] = f"{flag}={value}"
    attached = [place for place, given in enumerate(found) if _is_attached(given, flag)]
    for place in attached:
        found[place] = flag + value
    if not places and not joined and not attached:
        _add(found, flag, value)


def _choose(found: list[str], wanted: str, other: str) -> None:
    """Put one of two switches among the arguments, instead of the other."""
    found[:] = [given for given in found if given != other]
    if wanted and wanted not in found:
        _add(found, wanted)


def _switch(found: list[str], flag: str, *, on: bool) -> None:
    if flag in found and not on:
        found[:] = [given for given in found if given != flag]
    elif on and flag not in found:
        _add(found, flag)


def _add(found: list[str], *words: str) -> None:
    """Add words at the end of the options: words behind a bare `--` are none."""
    end = found.index(_END) if _END in found else len(found)
    found[end:end] = words
