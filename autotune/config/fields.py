"""Configuration as fields of files that the user's script reads.

The script is given copies of the files, with these fields changed.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.config import arguments, mistakes
from autotune.config.arguments import ENVIRONMENT, FIELD
from autotune.config.settings import Unusable, changed, read
from autotune.errors import BadInput
from autotune.worker.inject import constructed
from autotune.worker.protocol import FileCopy
from autotune.worker.survey_result import SETTINGS
from search_spaces.knob import KnobValue

_DIGITS = 12
"""Digits of the digest that identifies a copy."""
_FLAG = re.compile(r"-{1,2}[^\s=]+=?|/-{1,2}[^\s=]+|[^\s=$-][^\s=]*=|\$[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(rf"[^-$].*({'|'.join(map(re.escape, SETTINGS))})", re.IGNORECASE)
_FIELD = re.compile(r"[^\s.]+(\.[^\s.]+)*")


@dataclass(frozen=True)
class Given:
    """Ways by which a script is given a configuration.

    Attributes:
        arguments: of the script.
        variables: of its environment, besides those that it has.
        copies: of files that it reads.
        constructed: `Class(argument)` -> value with which it constructs objects of a framework.
    """

    arguments: tuple[str, ...]
    variables: dict[str, str]
    copies: tuple[FileCopy, ...]
    constructed: dict[str, KnobValue] = field(default_factory=dict)

    def with_copy(self, holder: "Holder", copy: FileCopy) -> "Given":
        """Return these ways with a copy in place of the file that a holder names.

        Raises:
            BadInput: the copy does not stand in for the file, and no argument is the file.
        """
        words, variables = self.arguments, self.variables
        if holder.is_file and not copy.stands_in:
            if copy.file not in words:
                raise BadInput(
                    f"no word of the command is {copy.file}: name the file as it stands there"
                )
            words = tuple(copy.path if word == copy.file else word for word in words)
        if holder.text.startswith(ENVIRONMENT):
            variables = variables | {holder.text.removeprefix(ENVIRONMENT): copy.path}
        elif not holder.is_file:
            words = arguments.replaced(words, holder.text, copy.file, copy.path)
        return replace(self, arguments=words, variables=variables, copies=(*self.copies, copy))


@dataclass(frozen=True)
class Holder:
    """Name of a file: an argument, a variable, or the file's own name."""

    text: str

    @property
    def is_file(self) -> bool:
        """Return whether it is the file's own name."""
        is_argument = self.text.startswith(("-", ENVIRONMENT)) or self.text.endswith("=")
        return not is_argument

    def file(self, given: Sequence[str], variables: Mapping[str, str]) -> str | None:
        """Return the file; None where it is not named. Of several behind one argument it is the last.

        Args:
            given: arguments of the script.
        """
        if self.is_file:
            return self.text
        if self.text.startswith(ENVIRONMENT):
            return variables.get(self.text.removeprefix(ENVIRONMENT))
        return arguments.given(given, self.text)


def parted(flag: str) -> tuple[Holder, str] | None:
    """Split a flag into the name of a file and a field; return None if it is no field of a file."""
    holder, sign, field = flag.rpartition(FIELD)
    return (Holder(holder), field) if sign else None


def of_flag(flag: str) -> str:
    """Return the mistake in the flag of a knob."""
    found = parted(flag)
    if found is None:
        if built := constructed.parted(flag):
            return _of_class(built.kind, flag)
        if _FLAG.fullmatch(flag):
            return ""
        return (
            "must be --flag, --flag=, key= or $VARIABLE, a field of a file, such as "
            "config.yaml::a.field, or an argument of a class, such as TrainingArguments(bf16), got "
            f"{mistakes.in_yaml(flag)}"
        )
    holder, field = found
    if not (_FLAG.fullmatch(holder.text) or _FILE.fullmatch(holder.text)):
        return (
            "must have --flag, --flag=, key=, $VARIABLE or a file of "
            f"{', '.join(SETTINGS)} before `::`, got {mistakes.in_yaml(flag)}"
        )
    if not _FIELD.fullmatch(field):
        return f"must have a.field after `::`, got {mistakes.in_yaml(flag)}"
    return ""


def _of_class(name: str, flag: str) -> str:
    """Return the mistake in the name of the class in a flag."""
    known = sorted({kind.name for kind in constructed.KINDS})
    if name in known:
        return ""
    return f"must be an argument of {', '.join(known)}, got {mistakes.in_yaml(flag)}"


def of_field(flag: str) -> str:
    """Return the mistake in the flag of a command's knob, which has no placeholder."""
    found = parted(flag)
    if found and not found[0].text.startswith(arguments.ENVIRONMENT):
        return of_flag(flag)
    return (
        "must be a field of a file that the command names, such as --config::a.field or "
        f"config.json::a.field, got {mistakes.in_yaml(flag)}; else the command takes a knob where it "
        "stands in braces"
    )


def given(
    words: Sequence[str],
    flags: Mapping[str, str],
    knobs: Mapping[str, Any],
    *,
    variables: Mapping[str, str],
    workdir: Path,
    folder: Path,
    in_process: bool = True,
) -> Given:
    """Return arguments, variables and copies of files with these knobs set.

    Args:
        words: arguments of the script, as the user gives them.
        flags: knob -> `--flag`, `key=`, `$VARIABLE`, a field of a file behind one of them, or an
            argument of a class.
        knobs: to be set, each with its value.
        workdir: working directory of the script.
        folder: for the copies, which are yet to be written.
        in_process: whether a copy can stand in for a file wherever that is opened; else the file is
            one of the words, and the copy takes its place there.

    Raises:
        BadInput: a file or a field is not there.
    """
    built = {
        flags[name]: value
        for name, value in knobs.items()
        if arguments.is_constructed(flags.get(name, ""))
    }
    found = arguments.changed(words, flags, knobs)
    set_ = Given(found, arguments.variables(flags, knobs), (), built)
    for holder, changes in _by_holder(flags, knobs):
        file = holder.file(words, variables)
        if file is None:
            raise BadInput(_unnamed(holder.text))
        text = changed_text(workdir / file, changes)
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        path = str(folder.absolute() / digest / Path(file).name)
        copy = FileCopy(file, path, text, stands_in=holder.is_file and in_process)
        set_ = set_.with_copy(holder, copy)
    return set_


def files(
    flags: Mapping[str, str], words: Sequence[str], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the name of each file with fields of knobs -> that file, from the working directory on.

    Args:
        flags: of knobs, as in `given`.
    """
    holders = {found[0] for flag in flags.values() if (found := parted(flag))}
    named = {holder.text: holder.file(words, variables) for holder in holders}
    return {text: file for text, file in sorted(named.items()) if file is not None}


def _by_holder(
    flags: Mapping[str, str], knobs: Mapping[str, Any]
) -> Iterator[tuple[Holder, dict[str, Any]]]:
    """Yield the changes of each file: field -> value."""
    changes: dict[Holder, dict[str, Any]] = {}
    for name, value in knobs.items():
        if found := parted(flags.get(name, "")):
            holder, field = found
            changes.setdefault(holder, {})[field] = value
    yield from changes.items()


def changed_text(path: Path, changes: Mapping[str, KnobValue]) -> str:
    """Return the text of a file with other values in some fields.

    Raises:
        BadInput: that is not possible.
    """
    try:
        text = path.read_text("utf-8")
        for field, value in changes.items():
            text = changed(text, path.suffix, field, value)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {_unreadable(error)}") from None
    except Unusable as problem:
        raise BadInput(f"{path}: {problem}") from None
    return text


def present(
    flag: str, given: Sequence[str], variables: Mapping[str, str], folders: Sequence[Path]
) -> tuple[Any, str | None]:
    """Return the present value of a flag that is a field of a file, and why it has none.

    Args:
        flag: as in `given`.
        given: arguments of the script.
        folders: possible working directories; the first one that has the file counts.
    """
    found = parted(flag)
    assert found is not None
    holder, field = found
    file = holder.file(given, variables)
    if file is None:
        return None, _unnamed(holder.text)
    try:
        path = next((f / file for f in folders if (f / file).is_file()), folders[0] / file)
        return read(path.read_text("utf-8"), path.suffix, field), None
    except (OSError, UnicodeDecodeError) as error:
        return None, f"{file} {_unreadable(error)}"
    except Unusable as problem:
        return None, f"{file}: {problem}"


def _unnamed(holder: str) -> str:
    if holder.startswith(ENVIRONMENT):
        return (
            f"the environment has no {holder}: have it name the file that the script reads today, in a "
            "study under env"
        )
    return (
        f"the arguments have no {holder}: give it there, or have the study name the file itself, as in "
        "config.yaml::a.field"
    )


def _unreadable(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or os.strerror(error.errno or 0)}"
    return "is not UTF-8 text"
