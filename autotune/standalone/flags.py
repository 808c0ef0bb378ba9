"""Candidates among a script's settings for its micro-batch or accumulation, and their tests. Pure.

A setting is a candidate if its present value equals what was seen; its name only decides how soon
it is tried. The proof is what the script does with another value.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config import arguments, settings
from autotune.config.arguments import ASSIGNMENT, ENVIRONMENT, FIELD, is_constructed, typed
from autotune.config.fields import of_flag
from autotune.worker.survey_result import Option, SurveyResult
from search_spaces.batch import ACCUMULATION, BATCH_KNOBS, MICRO_BATCH, granule, other_batch_knob

_MOST_TRIED = 3
"""Settings tried per knob: each costs a start of the script."""
_MOST_IN_PROPORTION = 2
_SAYS_NOTHING = 1
"""Value that occurs everywhere in a command: with it the name must fit as well."""
_ELSEWHERE = {"eval", "evaluation", "val", "valid", "validation", "test", "generation"}
"""Words of options for something besides training."""
_GLOBAL = {"global", "total"}
_SHORT = {"b", "bs", "mb", "mbs"}


@dataclass(frozen=True)
class OtherValue:
    """Another value of a setting, and the value of a knob that it should cause.

    Attributes:
        value: of the knob, for one rank.
        ranks: number of ranks whose samples the setting counts together: all of them, or one.
    """

    option: Option
    value: int
    ranks: int = 1

    @property
    def given(self) -> int:
        """Return the value to give to the setting."""
        return self.value * self.ranks


# Candidates for a knob


def settings_of(
    seen: SurveyResult,
    words: Sequence[str],
    variables: Mapping[str, str],
    fields: Sequence[Option] = (),
) -> tuple[Option, ...]:
    """Return all settings that may give the script a value.

    They are options of its parsers, words of its command line, variables that the command sets,
    fields of files, and at last guesses. What no study file can name, as with a space in it, is left
    out.

    Args:
        variables: of its environment, as the command sets them.
        fields: of the files that it reads.
    """
    sure = [option for option in seen.options if option.sure]
    guessed = [option for option in seen.options if not option.sure]
    given = [Option(flag, _last(flag), value) for flag, value in typed(words)]
    set_ = [
        Option(f"{ENVIRONMENT}{name}", name, int(text))
        for name, text in variables.items()
        if text.isdecimal()
    ]
    found: dict[str, Option] = {}
    for option in (*sure, *given, *set_, *fields, *guessed):
        found.setdefault(option.flag.removesuffix(ASSIGNMENT), option)
    return tuple(option for option in found.values() if not of_flag(option.flag))


def fields(
    file: str, text: str, words: Sequence[str], variables: Mapping[str, str]
) -> Iterator[Option]:
    """Yield the settings in a file that the script has read.

    Each is named by the argument or variable that names the file, then by the file's own name.

    Args:
        file: path from the working directory.
        variables: that the command sets for it.
    """
    holders = [*_naming(file, words, variables), file]
    for field, value in settings.scalars(text, Path(file).suffix):
        for holder in holders:
            yield Option(f"{holder}{FIELD}{field}", _last(field), value)


def _naming(file: str, words: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield arguments and variables whose value is the file; of several values the last counts."""
    flags = dict.fromkeys(flag for flag, value in _values(words) if _is(file, value))
    yield from (flag for flag in flags if _is(file, arguments.given(words, flag) or ""))
    yield from (f"${name}" for name, value in variables.items() if _is(file, value))


def _values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield arguments that may name a file, each with its value."""
    for before, word in itertools.pairwise(["", *words]):
        name, sign, value = word.partition(ASSIGNMENT)
        if sign:
            yield name if name.startswith("-") else name + sign, value
        if before.startswith("-") and ASSIGNMENT not in before:
            yield before, word


def _is(file: str, named: str) -> bool:
    return os.path.normpath(file) == os.path.normpath(named)


def _last(name: str) -> str:
    return name.removesuffix(ASSIGNMENT).rpartition(".")[2]


def candidates(seen: SurveyResult, workers: int = 1) -> dict[str, tuple[OtherValue, ...]]:
    """Return the settings that may set each knob, the most probable first, each with a value to try.

    Args:
        seen: survey of the script, its settings among the options.
        workers: number of ranks that ran it.
    """
    split = another_split(seen)
    baseline = {MICRO_BATCH: seen.micro_batch, ACCUMULATION: seen.accumulation_steps}
    found = {}
    for knob, value in zip(BATCH_KNOBS, split, strict=True):
        fitting = [
            OtherValue(option, value, ranks)
            for option in seen.options
            if (ranks := _ranks(knob, option, seen, baseline[knob], workers))
        ]
        fitting.sort(key=lambda other: _order(knob, other))
        found[knob] = tuple(fitting[:_MOST_TRIED])
    return {knob: several for knob, several in found.items() if several}


def parts(seen: SurveyResult) -> tuple[dict[str, int], ...]:
    """Return groups of settings that may make up a micro-batch together, each with its value.

    They are all that are named for it where they sum up to it, or one of which it is a multiple
    (`--batch-size 4 --ratio 3`). Where no loader tells the micro-batch, it may be any that is named.

    Args:
        seen: survey of the script, its settings among the options.
    """
    size = seen.micro_batch
    named = {
        option.flag: value
        for option in seen.options
        if option.sure and not option.switch and is_named(MICRO_BATCH, option)
        if (value := _whole(option)) not in (0, size)
    }
    smaller = {flag: value for flag, value in named.items() if value < size}
    if len(smaller) > 1 and sum(smaller.values()) == size:
        return (smaller,)
    told = seen.loader and not seen.guessed
    single = ({flag: v} for flag, v in named.items() if size % v == 0 or not told)
    return tuple(itertools.islice(single, _MOST_IN_PROPORTION))


def named(knob: str, seen: SurveyResult) -> dict[str, int]:
    """Return the settings that are named for a knob and have its value; a field of a file once.

    Args:
        knob: micro_batch or accumulation_steps.
        seen: survey of the script, its settings among the options.
    """
    baseline = _of(knob, seen)
    found = {
        option.flag.rpartition(FIELD)[2]: option.flag
        for option in reversed(seen.options)
        if option.sure and not option.switch and is_named(knob, option)
        if _whole(option) == baseline
    }
    return dict.fromkeys(found.values(), baseline)


def other_whole(size: int, settings: Mapping[str, int]) -> int:
    """Return another micro-batch for which all settings that make it up are whole numbers."""
    step = granule(size, settings.values())
    return max(step, size // 2 // step * step) if size > step else 2 * size


def another_split(seen: SurveyResult) -> tuple[int, int]:
    """Return another micro-batch and accumulation, with as many samples a step if possible.

    A script may insist on that number. The micro-batch is a smaller one, which fits in memory.
    """
    size, samples = seen.micro_batch, seen.samples
    smaller = (part for part in range(size // 2, 0, -1) if samples % part == 0)
    larger = (part for part in range(2, samples + 1) if samples % part == 0)
    micro_batch = next(smaller, next(larger, 2))
    steps, rest = divmod(samples, micro_batch)
    known = seen.accumulation_steps
    return micro_batch, 2 * known if rest or steps in (0, known) else steps


def doubled(other: OtherValue, seen: SurveyResult) -> OtherValue | None:
    """Return another value of twice the baseline's micro-batch; None where that was tried.

    A script may fail with a smaller one, or do something else with a single sample.

    Args:
        other: value of a setting of the micro-batch.
    """
    if other.value >= seen.micro_batch or not other.option.sure:
        return None
    return dataclasses.replace(other, value=2 * seen.micro_batch)


def _ranks(knob: str, option: Option, seen: SurveyResult, baseline: int, workers: int) -> int:
    """Return the number of ranks that a setting counts together; 0 if it does not fit the knob."""
    value = _whole(option)
    if option.switch or not value or not baseline:
        return 0
    named = is_named(knob, option)
    if not named and (baseline <= _SAYS_NOTHING or not option.sure):
        return 0
    sequence_first = knob == MICRO_BATCH and named and not seen.loader
    if value == baseline or (sequence_first and value == seen.columns):
        return 1
    return workers if value == baseline * workers else 0


def _order(knob: str, other: OtherValue) -> tuple[bool, bool, bool, bool, bool, bool, bool, int]:
    """Return a sort key; the least is tried first."""
    option, words = other.option, _words_of(other.option)
    return (
        not is_named(knob, option),
        is_constructed(option.flag),
        not option.sure,
        bool(words & _ELSEWHERE),
        other.ranks > 1,
        bool(words & _GLOBAL),
        not words & {"micro", "per", "train", "local", "device"},
        len(option.name),
    )


def knob_named(option: str) -> str | None:
    """Return the knob that an option is named for; None if there is none."""
    words = set(words_in(option))
    if words & _ELSEWHERE:
        return None
    return next((knob for knob, fits in _KNOBS.items() if fits(words)), None)


def is_named(knob: str, option: Option) -> bool:
    """Return whether a setting is named for a knob."""
    words = _words_of(option)
    return _KNOBS[knob](words) and not words & _ELSEWHERE


def _words_of(option: Option) -> set[str]:
    """Return the words of a setting's names and of its path within a file, without the file's name."""
    _, _, path = option.flag.rpartition(FIELD)
    return {*words_in(option.name), *words_in(path)}


def _is_micro_batch(words: set[str]) -> bool:
    sized = bool(words & {"size", "per", "micro", "mini", "local"})
    sized |= words <= {"batch", "train", "data", "loader"}
    return bool(words & {*_SHORT, "batchsize", "microbatch", "minibatch"}) or (
        "batch" in words and sized
    )


def _is_accumulation(words: set[str]) -> bool:
    if any(word.startswith("accum") for word in words):
        return True
    return bool(words & {"gas"}) or {"update", "freq"} <= words or {"grad", "acc"} <= words


_KNOBS: Mapping[str, Callable[[set[str]], bool]] = {
    MICRO_BATCH: _is_micro_batch,
    ACCUMULATION: _is_accumulation,
}


def _whole(option: Option) -> int:
    """Return the value of a setting as a whole number; 0 if it is none."""
    value = option.value
    if isinstance(value, bool) or not isinstance(value, int | str):
        return 0
    text = str(value)
    return int(text) if text.isdecimal() else 0


def words_in(name: str) -> list[str]:
    """Split a name into its words, in lower case."""
    split = re.sub(r"([a-z])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^a-z0-9]+", split.lower()) if word]


# Effects of another value


def answers(knob: str, other: OtherValue, before: SurveyResult, after: SurveyResult) -> bool:
    """Return whether the script changed this knob by that value, and nothing else."""
    unchanged = other_batch_knob(knob)
    return _turned(knob, other, before, after) and _of(unchanged, after) == _of(unchanged, before)


def keeps(knob: str, other: OtherValue, before: SurveyResult, after: SurveyResult) -> bool:
    """Return whether the script changed this knob, and kept the samples of a step by the other one."""
    return _turned(knob, other, before, after) and after.samples == before.samples


def shared(knob: str, other: OtherValue, after: SurveyResult, workers: int) -> OtherValue | None:
    """Return the value of a setting that counts all ranks, if the result suggests it; else None.

    A variable of a script without a parser may have been divided by the ranks since it was set.
    """
    may_be = workers > 1 and other.ranks == 1 and not other.option.sure
    if not may_be or _of(knob, after) * workers != other.given:
        return None
    return dataclasses.replace(other, ranks=workers)


def split_as(micro_batch: int, steps: int, after: SurveyResult) -> bool:
    """Return whether the script trained with both numbers."""
    return (after.micro_batch, after.accumulation_steps) == (micro_batch, steps)


def changes_columns(other: OtherValue, before: SurveyResult, after: SurveyResult) -> bool:
    """Return whether an option for the batch changes the columns of the model's input instead of rows.

    There the sequence is the first dimension (torch.nn.RNN's convention).
    """
    changed = after.columns == other.value != before.columns
    return changed and not before.loader and after.micro_batch == before.micro_batch


def _turned(knob: str, other: OtherValue, before: SurveyResult, after: SurveyResult) -> bool:
    return _of(knob, after) == other.value != _of(knob, before)


def _of(knob: str, seen: SurveyResult) -> int:
    return seen.micro_batch if knob == MICRO_BATCH else seen.accumulation_steps
