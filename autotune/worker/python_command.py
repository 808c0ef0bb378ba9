"""Parse a command line of python as python itself does."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PYTHON = re.compile(r"python[0-9.]*")
_WITH_VALUE = "WX"
"""Options whose value is the rest of the word, or the next word."""
_LONG_WITH_VALUE = "--check-hash-based-pycs"


@dataclass(frozen=True)
class Program:
    """File or module that python runs, with its arguments.

    Attributes:
        target: path of the file, or the module behind -m.
    """

    target: str
    args: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of a command behind python and its options."""
        return (*(("-m",) if self.is_module else ()), self.target, *self.args)

    @property
    def name(self) -> str:
        """Return the name of the file, or of the module."""
        return self.target if self.is_module else Path(self.target).name


@dataclass(frozen=True)
class PythonCommand(Program):
    """Parsed command line of python.

    Attributes:
        options: of the interpreter, without -m.
    """

    options: tuple[str, ...] = ()


def is_python(word: str) -> bool:
    """Return whether a word of a command is the name of a python."""
    return _PYTHON.fullmatch(Path(word).name) is not None


def parsed(words: Sequence[str]) -> PythonCommand | None:
    """Return what python runs; None where that is no file or module (-c, standard input).

    Args:
        words: arguments behind `python`.
    """
    options: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == _LONG_WITH_VALUE:
            options += [word, *rest[:1]]
            del rest[:1]
        elif word == "-" or word.startswith("--"):
            return None
        elif not word.startswith("-"):
            return PythonCommand(word, tuple(rest), options=tuple(options))
        else:
            letters, end, value = _letters(word)
            if end in ("m", "c"):
                return _of_module(options, letters, value, rest) if end == "m" else None
            options.append(word)
            if end and not value:
                options += rest[:1]
                del rest[:1]
    return None


def letters_of(options: Sequence[str]) -> str:
    """Return the one-letter options, without values."""
    found, skip = "", False
    for word in options:
        if skip or word.startswith("--"):
            skip = word == _LONG_WITH_VALUE and not skip
            continue
        letters, end, value = _letters(word)
        found += letters + end
        skip = bool(end) and not value
    return found


def _letters(word: str) -> tuple[str, str, str]:
    """Return the switches of a word such as -uOXdev, the letter that takes the rest, and that rest."""
    for place, letter in enumerate(word[1:], start=1):
        if letter in (*_WITH_VALUE, "m", "c"):
            return word[1:place], letter, word[place + 1 :]
    return word[1:], "", ""


def _of_module(
    options: list[str], letters: str, named: str, rest: list[str]
) -> PythonCommand | None:
    if letters:
        options = [*options, f"-{letters}"]
    name, args = (named, rest) if named else (rest[0] if rest else "", rest[1:])
    return PythonCommand(name, tuple(args), True, tuple(options)) if name else None
