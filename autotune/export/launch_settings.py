"""Settings in a launch command: of the knobs that a study has tuned, and of the environment."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.config import arguments, fields
from autotune.config.arguments import ASSIGNMENT, ENVIRONMENT
from autotune.config.secrets_withheld import looks_secret
from autotune.worker.inject import constructed
from search_spaces.batch import BATCH_KNOBS
from search_spaces.knob import written

"""Knobs that make up the samples of a step: with other values the job is another one."""
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EMPTIES = ("-", "-i", "--ignore-environment")
_TAKES_VALUE = ("-u", "--unset", "-C", "--chdir")
_NOT_GIVEN = "(not given)"
_OPTION = re.compile(r"--?[A-Za-z]")
_KEY = re.compile(r"[A-Za-z_+~][\w.+/@-]*")
"""Name in front of `=` that is no option, as Hydra has it."""
_BATCH_SIZE = re.compile(r"batch_?size")
_OF_NO_TRAINING = frozenset(
    {
        *("eval", "evaluation", "val", "valid", "validation", "dev", "test", "testing"),
        *("infer", "inference", "predict", "prediction", "sample", "sampling", "generation"),
    }
)
"""Words in the names of options that are about no training."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_WORD = re.compile(r"\W+")
_NAMED = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*[=:]""")
"""Name in a text, with its value behind it."""
_MARK = "(turned)"
"""Text of the options that the study has turned."""


def present(
    flags: Mapping[str, str], words: Sequence[str], variables: Mapping[str, str], folder: Path
) -> dict[str, str | None]:
    """Return the text that sets each knob of a script, as it is typed; None where it is not set.

    Args:
        flags: of knobs, as in `fields.given`.
    """
    return {
        name: _setting(typed(flag, words), words, variables, folder) for name, flag in flags.items()
    }


def typed(flag: str, words: Sequence[str]) -> str:
    """Return a flag as it stands among the words: `--flag` and `--flag=` are the same option."""
    if not flag.startswith("-") or fields.parted(flag):
        return flag
    other = flag.removesuffix(ASSIGNMENT)
    return other if arguments.given(words, other) is not None else flag


def _setting(
    flag: str, words: Sequence[str], variables: Mapping[str, str], folder: Path
) -> str | None:
    if fields.parted(flag):
        value, _ = fields.present(flag, words, variables, [folder])
        return None if value is None else written(value)
    if flag.startswith(ENVIRONMENT):
        return variables.get(flag.removeprefix(ENVIRONMENT))
    return arguments.given(words, flag)


def other_batch(script: Mapping[str, Any], now: Mapping[str, str | None]) -> Iterator[str]:
    """Yield settings of the batch that have neither the study's former nor its recommended values.

    Args:
        script: entry of best.yaml.
        now: settings of the command, as `present` returns them.
    """
    then: Mapping[str, str | None] = script.get("today", {})
    set_by: Mapping[str, Sequence[str]] = script.get("set_by", {})
    for name in dict.fromkeys(one for knob in BATCH_KNOBS for one in set_by.get(knob, [knob])):
        if name not in then or name not in now:
            continue
        flag = script["flags"][name]
        found = written(script["turned"][name]) if name in script["turned"] else then[name]
        unset = now[name] is None and flag.startswith(ENVIRONMENT)  # the job is given it then
        if now[name] not in (then[name], found) and not unset:
            yield (
                f"{_shown(flag, now[name])} in the command, and {_shown(flag, then[name])} in the study"
            )


def untuned(
    script: Mapping[str, Any], words: Sequence[str], knobs: Mapping[str, Any]
) -> dict[str, str]:
    """Return the options of a script that no recommended value sets, each with its text.

    Words that belong to no option are under the empty name. What looks secret is left out.

    Args:
        script: entry of best.yaml.
        knobs: values that say which of them are switches.
    """
    flags = {name: typed(flag, words) for name, flag in script["flags"].items()}
    alone = dict(_switches(flags, words, knobs))
    valued = {name: flag for name, flag in flags.items() if name not in alone.values()}
    rest = [word for word in words if word not in alone]
    marked = arguments.changed(rest, valued, dict.fromkeys(valued, _MARK))
    others = {
        name: " ".join(texts)
        for name, texts in _options(marked).items()
        if not any(_MARK in text for text in (name, *texts)) and not _secret(name, texts)
    }
    set_by: Mapping[str, Sequence[str]] = script.get("set_by", {})
    sets = {*script["turned"], *(one for knob in BATCH_KNOBS for one in set_by.get(knob, [knob]))}
    kept = {flag: arguments.given(rest, flag) for name, flag in valued.items() if name not in sets}
    bare = {word: "" for word in words if word in alone and alone[word] not in sets}
    return others | bare | {flag: text for flag, text in kept.items() if text is not None}


def _switches(
    flags: Mapping[str, str], words: Sequence[str], knobs: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the options that are there or not, without a value, each with its knob."""
    for name, flag in flags.items():
        if isinstance(knobs.get(name), bool) and _is_switch(flag, arguments.given(words, flag)):
            yield from ((word, name) for word in arguments.switches(flag) or (flag,) if word)


def _secret(name: str, texts: Sequence[str] = ()) -> bool:
    """Return whether an option may hold a secret, by its name, its texts or names in these."""
    whole = " ".join((name, *texts))
    named = [_NO_WORD.sub("_", one) for one in _NAMED.findall(whole)]
    return looks_secret(_NO_WORD.sub("_", name), " ".join(texts)) or any(
        looks_secret(one, whole) for one in ("", *named)
    )


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts of each option: behind it, behind `=`, or of `key=`.

    The word behind an option that looks secret is its value, whatever form it has.
    """
    found: dict[str, list[str]] = {}
    last = ""
    for before, word in itertools.pairwise(["", *words]):
        name, sign, text = word.partition(ASSIGNMENT)
        if before and before == last and _secret(last):
            found[last].append(word)
        elif _OPTION.match(word):
            last = "" if sign else name
            _begin(found, name).extend([text] if sign else [])
        elif sign and _KEY.fullmatch(name):
            _begin(found, name + sign).append(text)
        else:
            found.setdefault(last, []).append(word)
            last = "" if word == _MARK else last  # it is the whole value
    return found


def _begin(found: dict[str, list[str]], name: str) -> list[str]:
    """Return the texts of an option that is given (again): of a batch size the last one counts."""
    if is_batch_size(name):
        found.pop(name, None)
    return found.setdefault(name, [])


def other_arguments(script: Mapping[str, Any], now: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a command that are others than in the study, each with how it differs.

    Args:
        script: entry of best.yaml.
        now: options of the command, as `untuned` returns them.
    """
    then: Mapping[str, str] | None = script.get("arguments")
    if then is None:
        return {}  # a file of an earlier version does not say
    return {
        name: f"{_said(name, now)} in the command, and {_said(name, then)} in the study"
        for name in {**then, **now}
        if now.get(name) != then.get(name)
    }


def is_batch_size(option: str) -> bool:
    """Return whether an option is named for the samples of a step."""
    name = _plain(option)
    return bool(_BATCH_SIZE.search(name)) and _OF_NO_TRAINING.isdisjoint(name.split("_"))


def _plain(option: str) -> str:
    """Return the words of an option's name: those of `--a-b`, `--a_b`, `+a.b=` and `--aB` are alike."""
    return _NO_WORD.sub("_", _CAMEL.sub("_", option)).strip("_").lower()


def other_sizes(
    script: Mapping[str, Any], now: Mapping[str, str], others: Iterable[str]
) -> set[str]:
    """Return the options for the samples of a step that have another value than in the study.

    Args:
        script: entry of best.yaml.
        now: options of the command, as `untuned` returns them.
        others: options that differ, by `other_arguments`.
    """
    then, sizes = _sizes(script.get("arguments", {})), _sizes(now)
    return {
        name
        for name in others
        if is_batch_size(name) and then.get(_plain(name)) != sizes.get(_plain(name))
    }


def _sizes(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each batch size, which is the first word of its texts."""
    return {
        _plain(name): text.partition(" ")[0] for name, text in texts.items() if is_batch_size(name)
    }


def _said(name: str, texts: Mapping[str, str]) -> str:
    return _shown(name, texts.get(name)).strip()


def changes(
    script: Mapping[str, Any],
    knobs: Mapping[str, Any],
    now: Mapping[str, str | None],
    words: Sequence[str],
) -> Iterator[str]:
    """Yield changes for the job, a line each: settings of its script, and knobs from outside.

    Args:
        script: entry of best.yaml.
        knobs: recommended values.
        now: settings of the command, as `present` returns them.
        words: arguments of the command.
    """
    for name, value in script["turned"].items():
        flag = script["flags"][name]
        if part := constructed.parted(flag):
            yield f"{name}: {part.kind}({part.argument}={value!r})"
        elif isinstance(value, bool) and _is_switch(flag, now.get(name)):
            yield from (f"{name}: {change}" for change in _switched(flag, words, on=value))
        elif now.get(name) != (text := _as_given(flag, value, now.get(name))):
            yield f"{name}: {_shown(flag, now.get(name))} -> {text}"
    then = script.get("today", {})
    for name in script["changes"]:
        before = f"{written(then[name])} -> " if name in then else ""
        yield f"{name}: {before}{written(knobs[name])} (from outside)"


def _as_given(flag: str, value: Any, text: str | None) -> str:
    """Return the text of a value that a job is given, where it has another text now."""
    is_argument = bool(arguments.valued(flag, text))  # variables and files have one spelling
    return arguments.spelt(written(value), text if is_argument else None)


def _is_switch(flag: str, text: str | None) -> bool:
    """Return whether a flag is there or not, instead of having a value."""
    may_be = arguments.may_be_switch(flag) and arguments.truth(text) is None
    return may_be or arguments.switches(flag) is not None


def _switched(flag: str, words: Sequence[str], *, on: bool) -> Iterator[str]:
    """Yield which switch is taken away and which is added, if any is."""
    found = arguments.changed(words, {"": flag}, {"": on})
    gone = [word for word in words if word not in found]
    added = [word for word in found if word not in words]
    if gone or added:
        yield f"{' '.join(gone) or _NOT_GIVEN} -> {' '.join(added) or _NOT_GIVEN}"


def _shown(flag: str, text: str | None) -> str:
    shown = _NOT_GIVEN if text is None else text
    return f"{flag}{shown}" if flag.endswith(ASSIGNMENT) else f"{flag} {shown}"


# The words before the script


def assigned(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that the words before a script set for it, as `env A=1` does."""
    found = (_VARIABLE.fullmatch(word) for word in words)
    return {one[1]: one[2] for one in found if one}


def with_variables(words: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words before a script with some variables set.

    An assignment among the words would override the environment, and `env -i` or `env -u` would
    drop the variables.
    """
    found = list(words)
    for place, word in enumerate(found):
        one = _VARIABLE.fullmatch(word)
        if one and one[1] in variables:
            found[place] = f"{one[1]}={variables[one[1]]}"
    if not found or Path(found[0]).name != "env":
        return tuple(found)
    end = _end_of_env(found)
    dropped = _dropped(found[1:end])
    there = assigned(found[1:end])
    added = [
        f"{name}={text}"
        for name, text in variables.items()
        if name not in there and (dropped is None or name in dropped)
    ]
    return (*found[:end], *added, *found[end:])


def _end_of_env(words: Sequence[str]) -> int:
    """Return the place of the program that `env` runs."""
    place = 1
    while place < len(words):
        word = words[place]
        if word in _TAKES_VALUE:
            place += 1
        elif not (word.startswith("-") or _VARIABLE.fullmatch(word)):
            break
        place += 1
    return min(place, len(words))


def _dropped(options: Sequence[str]) -> set[str] | None:
    """Return names of variables that options of `env` drop; None: all."""
    if any(option in _EMPTIES for option in options):
        return None
    joined = {word.partition("=")[2] for word in options if word.startswith("--unset=")}
    joined |= {word[2:] for word in options if word.startswith("-u") and len(word) > len("-u")}
    named = itertools.pairwise(options)
    return joined | {name for option, name in named if option in ("-u", "--unset")}
