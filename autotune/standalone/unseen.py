"""A commented study.yaml for a command that cannot be looked at: no script of torch is in it. Pure.

What nobody but the user can know stands there as TODO, which no field takes: `doctor` and `start` name
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
_SPREAD = 2
"""Between values to try and today's."""


def study(command: Sequence[str]) -> str:
    """The text of study.yaml; `command`: the user's own."""
    words = [word.replace("{", "{{").replace("}", "}}") for word in command]
    today: dict[str, int] = {}
    for knob, place, value in _guessed(command):
        if knob not in today:
            today[knob] = value
            words[place] = re.sub(r"[0-9]+$", f"{{{knob}}}", words[place])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(command[0]).name).strip("-._") or "study"
    return "\n".join([*_head(command, name), *_workload(words), *_space(today), *_END])


def _guessed(command: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Knobs that options are named for: the knob, the place of its value, the value."""
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
    yield "# Nothing of it was run. Where it says TODO nobody but you can know what belongs there; then"
    yield "# autotune doctor runs it as it is today and with another value of each knob."
    yield f"name: {json.dumps(name)}"
    yield ""


def _workload(words: Sequence[str]) -> Iterator[str]:
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
    yield ""
    yield "resources:"
    yield "  # Ranks that it starts, a whole number: a trial has the processors and devices of so many."
    yield f"  workers: {TODO}"
    yield ""


def _space(today: dict[str, int]) -> Iterator[str]:
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
    if today.keys() == {"micro_batch"}:
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
