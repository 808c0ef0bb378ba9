"""Which of a script's own options turn a knob: by their names, then by what they do. Pure."""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config import settings
from autotune.config.arguments import ASSIGNMENT, FIELD
from autotune.worker.surveyed import Option, Surveyed

_MOST_TRIED = 3
_ELSEWHERE = {"eval", "evaluation", "val", "valid", "validation", "test", "generation"}
"""Words of options that are about something besides training."""
_GLOBAL = {"global", "total"}


@dataclass(frozen=True)
class Trial:
    """Another value of an option, and how the script must answer if it turns the knob."""

    option: Option
    value: int


def candidates(seen: Surveyed) -> dict[str, tuple[Trial, ...]]:
    """Return knob -> options that may turn it, the most probable first, each with a value to try; none
    where batches vary, as no option says how many samples they have."""
    if seen.varies:
        return {}
    own = {"micro_batch": seen.micro_batch, "accumulation_steps": seen.accumulation_steps}
    found = {}
    for knob, today in own.items():
        if today:
            fitting = sorted(_fitting(knob, seen.options), key=lambda o: _doubt(o, today))
            tried = tuple(
                Trial(option, _another(knob, today)) for option in fitting if not option.switch
            )
            found[knob] = tried[:_MOST_TRIED]
    return {knob: several for knob, several in found.items() if several}


def fields(
    file: str, text: str, words: Sequence[str], variables: Mapping[str, str]
) -> Iterator[Option]:
    """The settings in a file that the script has read: each by what names the file, then by its own
    name.

    Args:
        file: as it is named from the working directory on.
        text: of the file.
        words: arguments of the script.
        variables: that the command sets for it.
    """
    holders = [*_naming(file, words, variables), file]
    for field, value in settings.scalars(text, Path(file).suffix):
        for holder in holders:
            yield Option(f"{holder}{FIELD}{field}", field.rpartition(".")[2], value)


def _naming(file: str, words: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Arguments and variables whose value is the file."""
    for before, word in itertools.pairwise(["", *words]):
        name, sign, value = word.partition(ASSIGNMENT)
        if sign and _is(file, value):
            yield name if name.startswith("-") else name + sign
        elif before.startswith("-") and ASSIGNMENT not in before and _is(file, word):
            yield before
    yield from (f"${name}" for name, value in variables.items() if _is(file, value))


def _is(file: str, named: str) -> bool:
    return os.path.normpath(file) == os.path.normpath(named)


def answers(knob: str, trial: Trial, before: Surveyed, after: Surveyed) -> bool:
    """Whether the script did with that value what the knob is."""
    seen = after.micro_batch if knob == "micro_batch" else after.accumulation_steps
    other = (before.accumulation_steps, after.accumulation_steps)
    if knob == "accumulation_steps":
        other = (before.micro_batch, after.micro_batch)
    return seen == trial.value and other[0] == other[1]


def turned_round(trial: Trial, before: Surveyed, after: Surveyed) -> bool:
    """Whether an option for the batch turns the columns of what the model is given, and not its rows: a
    sequence comes first there (torch.nn.RNN's way)."""
    changed = after.columns == trial.value != before.columns
    return changed and not before.loader and after.micro_batch == before.micro_batch


def shared(knob: str, trial: Trial, after: Surveyed, workers: int) -> bool:
    """Whether the option may count for all ranks together what the knob counts for one."""
    seen = after.micro_batch if knob == "micro_batch" else after.accumulation_steps
    return workers > 1 and seen * workers == trial.value


def _fitting(knob: str, options: Sequence[Option]) -> Iterator[Option]:
    fits = _KNOBS[knob]
    for option in options:
        holder, _, field = option.flag.rpartition(FIELD)
        words = set(_words(option.name)) | (set() if holder else set(_words(option.flag)))
        around = words | set(_words(field))
        if fits(words) and not around & _ELSEWHERE and _whole(option.value):
            yield option


def knob_named(option: str) -> str | None:
    """The knob that an option is named for; None if for none."""
    words = set(_words(option))
    if words & _ELSEWHERE:
        return None
    return next((knob for knob, fits in _KNOBS.items() if fits(words)), None)


def _is_micro_batch(words: set[str]) -> bool:
    sized = bool(words & {"size", "per", "micro", "local"}) or words <= {"batch", "train", "b"}
    return bool(words & {"bs", "mbs", "batchsize"}) or ("batch" in words and sized)


def _is_accumulation(words: set[str]) -> bool:
    if any(word.startswith("accum") for word in words):
        return True
    return bool(words & {"gas"})


_KNOBS: Mapping[str, Callable[[set[str]], bool]] = {
    "micro_batch": _is_micro_batch,
    "accumulation_steps": _is_accumulation,
}


def _doubt(option: Option, today: int) -> tuple[bool, bool, bool, int]:
    """The less of it, the sooner an option is tried."""
    words = set(_words(option.name))
    named = not words & {"micro", "per", "train", "local"}
    return str(option.value) != str(today), bool(words & _GLOBAL), named, len(option.name)


def _another(knob: str, today: int) -> int:
    """That surely fits in memory."""
    if knob == "micro_batch":
        return today // 2 if today > 1 else 2
    return 2 * today


def _whole(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, str) and value.isdecimal())


def _words(name: str) -> list[str]:
    split = re.sub(r"([a-z])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^a-z0-9]+", split.lower()) if word]
