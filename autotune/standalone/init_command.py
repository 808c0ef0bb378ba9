"""Commented study.yaml for a command that cannot be surveyed: it has no script of torch. Pure.

Entries that only the user knows are marked TODO, which no field accepts: `doctor` and `start` name
each that is left, with its line.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.standalone.flags import knob_named

TODO = "TODO"
_OPTION = re.compile(r"(-{1,2}[A-Za-z][^\s=]*)(?:=([0-9]+))?")
_GLOBAL_BATCH = re.compile(r"(global|total)[-_]?batch", re.IGNORECASE)
_SPREAD = 2
"""Factor between values to try and today's."""


def study(command: Sequence[str], name: str) -> str:
    """Return the text of study.yaml.

    Args:
        command: the user's own.
        name: of the study.
    """
    words = [word.replace("{", "{{").replace("}", "}}") for word in command]
    today: dict[str, int] = {}
    for knob, place, value in _guessed(command):
        if knob not in today:
            today[knob] = value
            words[place] = re.sub(r"[0-9]+$", f"{{{knob}}}", words[place])
    held = _global_batch(command) if today.keys() == {"micro_batch"} else None
    parts = (_head(command, name), _workload(words, held), _space(today, held), _END)
    return "\n".join(line for part in parts for line in part)


def name_of(command: Sequence[str]) -> str:
    """Return a name for the study of a command."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(command[0]).name).strip("-._") or "study"


def _global_batch(command: Sequence[str]) -> str | None:
    """Return the option that fixes the global batch, by its name; None where there is none."""
    named = (found[1] for word in command if (found := _OPTION.fullmatch(word)))
    return next((option for option in named if _GLOBAL_BATCH.search(option)), None)


def _guessed(command: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield knobs that options are named for: the knob, the place of its value, the value."""
    for place, word in enumerate(command):
        option = _OPTION.fullmatch(word)
        knob = knob_named(option[1]) if option else None
        if option is None or knob is None:
            continue
        following = command[place + 1] if place + 1 < len(command) else ""
        if option[2]:
            yield knob, place, int(option[2])
        elif following.isdecimal():
            yield knob, place + 1, int(following)


def _head(command: Sequence[str], name: str) -> Iterator[str]:
    yield "# Written by `autotune init` for a command in which it knows no Python script of torch:"
    yield from (f"#   {line}" for line in shlex.join(command).splitlines())
    yield "# Nothing of it was run. Where it says TODO only you know what belongs there; then"
    yield "# autotune doctor runs it as it is today and with another value of each knob."
    yield f"name: {json.dumps(name)}"
    yield ""


def _workload(words: Sequence[str], held: str | None) -> Iterator[str]:
    yield "workload:"
    yield "  # Word by word; no shell sees it. {knob} stands for a knob's value, {folder} for a folder"
    yield "  # that each trial has anew; braces themselves are doubled."
    yield "  command:"
    yield from (f"    - {json.dumps(word, ensure_ascii=False)}" for word in words)
    yield "  # Where its throughput is read, one of these; or take the field out, and have the program,"
    yield "  # if it is Python, call autotune.report(samples=64)."
    yield '  #   {pattern: "([0-9.]+) samples/s"}: over each line of its output, one group: the rate'
    yield '  #   {json_lines: "{folder}/metrics.jsonl"}: lines of {"samples": 64, "seconds": 0.8}'
    yield f"  throughput: {TODO}"
    if held:
        yield f"  keeps_global_batch: true   # it has {held}, and accumulates as often as that asks for"
    yield ""
    yield "resources:"
    yield "  # Ranks that it starts, a whole number: a trial has the processors and devices of so many."
    yield f"  workers: {TODO}"
    yield ""


def _space(today: dict[str, int], held: str | None) -> Iterator[str]:
    if not today:
        yield "search_space: {}"
        yield "# Each knob with its values to try, and in workload.command {tp} where its value stands:"
        yield "#   tp: {values: [1, 2, 4]}, with the value of today under `baseline`"
        yield f"knobs: {TODO}"
        yield "baseline: {}"
        return
    yield "# By the names of its options alone: take out what they do not mean. Others are added here,"
    yield "# or under `knobs` (tp: {values: [1, 2]}), and in workload.command where their value stands."
    yield "search_space:"
    for knob, value in today.items():
        values = sorted({max(1, value // _SPREAD), value, value * _SPREAD})
        yield f"  {knob}: {values}"
    yield "baseline:"
    yield from (f"  {knob}: {value}" for knob, value in today.items())
    if held:
        yield f"  accumulation_steps: {TODO}   # {held} / (micro_batch x ranks)"
    elif today.keys() == {"micro_batch"}:
        yield ""
        yield "# Nothing accumulates, so that the global batch changes with the micro-batch."
        yield "objective: {global_batch: free}"


_END = (
    "",
    "# The loss of a command is not seen: what may change it is recommended only if you allow that.",
    "# measurement: {unchecked_numerics: allow}",
    "budget:",
    "  trials: 20            # wall_time: 30m is a limit as well",
    "export: best.yaml",
    "",
)
