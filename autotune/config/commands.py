"""Study over a command without a script of torch: placeholders of its knobs, and its throughput."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from autotune.config import fields, mistakes
from autotune.config.derived_batch import of_derived
from autotune.config.sections import Section
from autotune.config.workload_spec import ForeignWorkload, StudyKnobs
from autotune.worker import starters
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import Command, TrialRequest
from search_spaces import CATALOGUE
from search_spaces.knob import changed_knobs, written

FOLDER = "folder"
"""Placeholder that is no knob: a folder of the trial's own."""
_BRACES = re.compile(r"(\{\{)|(\}\})|\{([^{}]*)\}|([{}])")


class ThroughputSpec(Section):
    """Source of a command's throughput."""

    json_lines: str | None = Field(
        default=None,
        description="A file in `{folder}`: of each line `samples` (or `tokens`) and `seconds`, or "
        "`throughput`.",
    )
    pattern: str | None = Field(
        default=None,
        description="A regular expression over each line of its output, with one group: the rate.",
    )


class CommandWorkload(ForeignWorkload):
    """Command that trains with ranks of its own."""

    command: list[str] = Field(
        min_length=1,
        description="Any command that trains with ranks of its own, word by word; `{knob}` in a word is "
        "the knob's value, `{folder}` a folder of the trial's.",
    )
    throughput: ThroughputSpec | None = Field(
        default=None,
        description="Where that of a command is read: json_lines or pattern. Without it the command "
        "calls `autotune.report`.",
    )

    noun = "command"
    run_words = ()
    observable = False
    samples: ClassVar[None] = None

    @property
    def label(self) -> str:
        return " ".join(self.command)

    def interpreter_options(self, workers: int | None) -> Sequence[str]:
        """Return no options: the command has its interpreters itself."""
        return ()

    # Mistakes

    def problems(self) -> mistakes.Problems:
        problems = _of_throughput(self.throughput) | self._flag_problems()
        for place, word in enumerate(self.command):
            if any(found[4] for found in _BRACES.finditer(word)):
                text = "has a brace alone; placeholders are {knob}, and braces are {{ and }}"
                problems["workload", "command", place] = text
        return problems

    def file_problems(self, knobs: StudyKnobs) -> mistakes.Problems:
        """Return mistakes: settings of several knobs; ranks elsewhere that may change no files."""
        program = "" if self.may_write else starters.elsewhere(self.command)
        why = starters.UNPROTECTED.format(program)
        text = f"{why}; if they may, say `may_write: true` under workload"
        shared = super().file_problems(knobs)
        return {**shared, ("workload", "command"): text} if program else shared

    @staticmethod
    def flag_problem(flag: str) -> str:
        """Return the mistake in the setting of a knob: a field of a file."""
        return fields.of_field(flag)

    @staticmethod
    def own_flag_problem(name: str, flag: str | None) -> str:
        if flag and fields.parted(flag) is None:
            return f"is for scripts: a command takes it where {{{name}}} stands; take it out"
        return fields.of_field(flag) if flag else ""

    # Knobs

    def knob_problems(self, knobs: StudyKnobs) -> mistakes.Problems:
        """Return mistakes: placeholders without value, knobs without effect, unknown present values."""
        problems: mistakes.Problems = {}
        for place, word in enumerate(self.command):
            for name in placeholders(word):
                if problem := _of_placeholder(name, knobs.own, knobs.given):
                    problems.setdefault(("workload", "command", place), problem)
        taken = {name for word in self.command for name in placeholders(word)} | {*knobs.flags}
        for name in knobs.values:
            if name not in taken:
                section = "knobs" if name in knobs.own else "search_space"
                text = f"nothing in workload.command takes it; write {{{name}}} there"
                problems[section, name] = text
        space, given, fixed = knobs.values, knobs.given, knobs.fixed_batch
        if self.keeps_global_batch:
            of_batch = of_derived(taken, space, given, fixed_batch=fixed)
        else:
            of_batch = dict(_of_batch(space, taken, given, fixed_batch=fixed))
        return {**of_batch, **problems}

    def passed_by(self, name: str, flags: Mapping[str, str]) -> str:
        """Return the setting or the placeholder by which it takes a knob."""
        return flags.get(name) or f"{{{name}}}"

    # Trials

    def request(self, asked: TrialRequest, knobs: StudyKnobs) -> TrialRequest:
        """Return the request of one process with the processors of all ranks."""
        folder = str(TrialFiles(Path(asked.log_dir)).command().absolute())
        told = self.throughput
        differing = changed_knobs(asked.knobs, knobs.baseline)
        given = fields.given(
            argv(self.command, asked.knobs, folder),
            knobs.flags,
            {name: value for name, value in differing.items() if name in knobs.flags},
            variables=asked.env,
            workdir=Path(asked.workdir),
            folder=TrialFiles(Path(asked.log_dir)).copies(),
            in_process=False,
        )
        return dataclasses.replace(
            asked,
            world_size=1,
            cpus_per_rank=asked.world_size * asked.cpus_per_rank,
            import_paths=(),
            copies=given.copies,
            command=Command(
                argv=given.arguments,
                folder=folder,
                json_lines=filled((told and told.json_lines) or "", {FOLDER: folder}),
                pattern=(told and told.pattern) or "",
                tokens=knobs.counts == "tokens",
            ),
        )

    def entry(self, chosen: Mapping[str, Any], knobs: StudyKnobs, workers: int) -> dict[str, Any]:
        """Return the command with its placeholders, and the knobs that differ from the baseline."""
        turned = changed_knobs(chosen, knobs.baseline)
        return {"command": self.command, "turned": turned, "flags": knobs.flags, "changes": []}


def placeholders(text: str) -> list[str]:
    """Return the names in braces, in their order."""
    return [found[3] for found in _BRACES.finditer(text) if found[3] is not None]


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Return the text with a value for each placeholder; `{{` and `}}` are braces."""

    def of(found: re.Match[str]) -> str:
        return written(values[found[3]]) if found[3] is not None else found[0][0]

    return _BRACES.sub(of, text)


def argv(command: Sequence[str], knobs: Mapping[str, Any], folder: str) -> tuple[str, ...]:
    """Return the command with a configuration.

    Args:
        command: as the study gives it.
        knobs: a value for every knob.
    """
    return tuple(filled(word, {**knobs, FOLDER: folder}) for word in command)


# Validation


def _of_throughput(throughput: ThroughputSpec | None) -> mistakes.Problems:
    if throughput is None:
        return {}
    path = ("workload", "throughput")
    if (throughput.json_lines is None) == (throughput.pattern is None):
        return {path: "must be either json_lines or pattern"}
    if throughput.pattern is not None and (problem := _of_pattern(throughput.pattern)):
        return {(*path, "pattern"): problem}
    file = throughput.json_lines
    if file is not None and (
        set(placeholders(file)) != {FOLDER} or any(found[4] for found in _BRACES.finditer(file))
    ):
        shown = mistakes.in_yaml(file)
        text = f"must be a file in {{folder}}, which each trial has anew; got {shown}"
        return {(*path, "json_lines"): text}
    return {}


def _of_pattern(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return f"is no regular expression: {error}"
    return "" if groups == 1 else f"must have one group, the number; it has {groups}"


def _of_placeholder(name: str, own: Collection[str], baseline: Mapping[str, Any]) -> str:
    if name == FOLDER or name in own:
        return ""
    if name not in CATALOGUE:
        hint = mistakes.did_you_mean(name, [FOLDER, *own, *CATALOGUE])
        return (
            f"no such knob: {mistakes.in_yaml(name)}{hint}; {{folder}} and knobs stand in braces; write "
            "{{ and }} for braces of the command's own"
        )
    if name not in baseline:
        return f"takes {name}, whose present value is not known; say it under baseline"
    return ""


def _of_batch(
    space: Mapping[str, Sequence[Any]],
    taken: Collection[str],
    baseline: Mapping[str, Any],
    *,
    fixed_batch: bool,
) -> Iterator[tuple[mistakes.FieldPath, str]]:
    sizes = space.get("micro_batch", ())
    if mistakes.LARGEST in sizes:
        place = list(sizes).index(mistakes.LARGEST)
        text = "is not looked for in a command, which fills its devices by itself; give numbers"
        yield ("search_space", "micro_batch", place), text
    several = {*sizes, baseline["micro_batch"]} if "micro_batch" in baseline else {*sizes}
    if fixed_batch and sizes and len(several) > 1 and "accumulation_steps" not in taken:
        yield (
            ("objective", "global_batch_size"),
            "stays only if the command accumulates more where micro_batch is less: have "
            "workload.command take {accumulation_steps}, say `keeps_global_batch: true` under workload "
            "if it does that by itself, or say `global_batch_size: free`",
        )
