"""Study over a training script: knobs that it sets, knobs from outside, and present values."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from autotune.config import arguments, derived_batch, fields, mistakes, option_words, python_options
from autotune.config.derived_batch import of_derived
from autotune.config.sections import finite
from autotune.config.workload_spec import ForeignWorkload, Stated, StudyKnobs
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import PLAIN, PYTHON, SPAWN, TORCHRUN, Script, TrialRequest
from search_spaces import CATALOGUE
from search_spaces.batch import BATCH_KNOBS, global_batch_size, in_proportion, other_batch_knob
from search_spaces.catalogue import not_from_outside
from search_spaces.knob import KnobValue, changed_knobs, written

_PYTHON_ALONE = (
    "is for a script that python starts: launchers give their interpreters other options"
)


@dataclass(frozen=True)
class Recipe:
    """Configuration as a script takes it. Knobs at their baseline stay as they are.

    Attributes:
        flags: of the knobs that the script sets; settings that make up a knob together by their own
            names.
        turned: knobs that it sets to another value, each as its argument has it; settings that make
            up a knob together by their own names.
        changes: names of knobs that act from outside.
    """

    flags: dict[str, str]
    turned: dict[str, Any]
    changes: tuple[str, ...]


class ScriptWorkload(ForeignWorkload):
    """Training script of the user, unmodified."""

    script: str | None = Field(
        default=None,
        min_length=1,
        description="A training script, unmodified; it is looked for in the folder in which the "
        "command is typed, then in `folder`. Its process is the one that `launch` starts.",
    )
    module: str | None = Field(
        default=None, min_length=1, description="The same for a module, as in `python -m`."
    )
    args: list[Any] = Field(
        default_factory=list, description="Arguments of the script, as they are today."
    )
    words: dict[str, dict[str, KnobValue]] = Field(
        default_factory=dict,
        description="For knobs of `flags` whose argument says their values otherwise: for each value "
        "the argument's word; true and false of a switch: `compile: {none: false, default: true}`.",
    )
    global_flags: list[str] = Field(
        default_factory=list,
        description="Those of `flags` whose argument counts what all ranks have together: it is given "
        "the knob's value times the ranks.",
    )
    launch: (
        Literal[
            "python",
            "torchrun",
            "torch.distributed.launch",
            "deepspeed",
            "torch.multiprocessing.spawn",
        ]
        | None
    ) = Field(
        default=None,
        description="What starts the script, and so what its process finds in environment and "
        "arguments. python: one process that no variable calls a rank. torch.multiprocessing.spawn: "
        "the same, and the script starts its ranks by that function. Default: torchrun for several "
        "workers, python for one.",
    )
    python_options: list[str] = Field(
        default_factory=list,
        description="Of the interpreter that starts the script, as in `python -O train.py`: [-O].",
    )
    in_proportion: dict[str, dict[str, Annotated[int, Field(ge=1)]]] = Field(
        default_factory=dict,
        description="micro_batch or accumulation_steps where several settings make it up, instead of "
        "`flags`: for each setting its present value; all are changed by the factor of the knob.",
    )
    samples: int | None = Field(
        default=None,
        ge=1,
        description="Samples per rank and optimizer step of a script that draws none from a DataLoader, "
        "or whose ranks share what theirs yield.",
    )

    noun = "script"
    run_words = ("--", "YOUR COMMAND")

    @field_validator("words", mode="before")
    @classmethod
    def _by_text(cls, words: Any) -> Any:
        """Have the values of knobs as texts, as in JSON: YAML reads numbers and booleans there."""
        if not isinstance(words, dict):
            return words
        return {
            knob: {written(value): word for value, word in given.items()}
            if isinstance(given, dict)
            else given
            for knob, given in words.items()
        }

    @field_validator("args")
    @classmethod
    def _finite(cls, args: list[Any]) -> list[Any]:
        return finite(args)

    # Names

    @property
    def target(self) -> str:
        """Return the script's file, or the module behind -m."""
        return self.script or self.module or ""

    @property
    def label(self) -> str:
        return self.script or f"-m {self.module}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.args)

    @property
    def given(self) -> dict[str, Any] | list[Any]:
        """Return the arguments; an empty mapping if there are none."""
        return self.args or {}

    # Processes

    def ranks(self, wanted: int | None) -> int | None:
        """Return the ranks of a trial if so many are wanted: one under plain python."""
        return 1 if self.launch == PYTHON else wanted

    def launched_by(self, workers: int | None) -> str:
        """Return the launcher of the script's ranks."""
        return self.launch or (PYTHON if workers == 1 else TORCHRUN)

    def interpreter_options(self, workers: int | None) -> Sequence[str]:
        """Return the options of the interpreter that runs the script."""
        if self.launched_by(workers) in PLAIN:
            return self.python_options
        return python_options.OF_LAUNCHERS

    # Mistakes

    def problems(self) -> mistakes.Problems:
        problems = self._option_problems()
        for place, argument in enumerate(self.args):
            if not isinstance(argument, str):
                shown = mistakes.in_yaml(argument)
                text = f"must be a text as the script is given it, got {shown}; put it in quotes"
                problems["workload", "args", place] = text
        elsewhere = {*self.flags, *self.global_flags}
        problems |= derived_batch.proportion_problems(
            self.in_proportion, elsewhere, self.flag_problem
        )
        problems |= self._flag_problems() | option_words.problems(self.words, self.flags)
        for place, knob in enumerate(self.global_flags):
            if knob not in self.flags or knob not in BATCH_KNOBS:
                problems["workload", "global_flags", place] = (
                    f"must be {' or '.join(BATCH_KNOBS)}, if workload.flags have it; got "
                    f"{mistakes.in_yaml(knob)}"
                )
        return problems

    def _option_problems(self) -> mistakes.Problems:
        """Return the mistakes in the options of the interpreter."""
        if not self.python_options:
            return {}
        if self.launch not in PLAIN:
            return {("workload", "python_options"): _PYTHON_ALONE}
        if problem := python_options.refused(self.python_options):
            return {("workload", "python_options"): problem}
        return {}

    @staticmethod
    def flag_problem(flag: str) -> str:
        return fields.of_flag(flag)

    @staticmethod
    def own_flag_problem(name: str, flag: str | None) -> str:
        return "is missing" if flag is None else fields.of_flag(flag)

    def workers_problem(self, workers: int | None) -> str:
        if workers is None or self.ranks(workers) == workers:
            return ""
        return (
            f"is {workers}, and `launch: python` starts one process; give 1, or the launcher that "
            "starts them under workload.launch"
        )

    def nodes_problem(self, nodes: int) -> str:
        if self.launch == SPAWN and nodes > 1:
            return f"is {nodes}, and {SPAWN} starts the ranks of one node; give 1"
        return ""

    # Knobs

    @property
    def settings_by_knob(self) -> dict[str, str]:
        firsts = {knob: next(iter(parts), "") for knob, parts in self.in_proportion.items()}
        return {**self.flags, **firsts}

    @property
    def derived(self) -> str | None:
        """Return the knob that the script derives from the one that it is given; None: none."""
        if not self.keeps_global_batch:
            return None
        return next((name for name in BATCH_KNOBS if name not in self.settings_by_knob), None)

    def present(self, variables: Mapping[str, str]) -> dict[str, Any]:
        present: dict[str, Any] = {}
        for name, flag in self.flags.items():
            text = arguments.present(self.arguments, variables, flag)
            if name not in CATALOGUE or name in self.global_flags or fields.parted(flag):
                continue
            if words := self.words.get(name):
                if any(word is True for word in words.values()):
                    text = _of_switch(self.arguments, flag, text)
                present[name] = option_words.meant(words, name, text)
                continue
            is_boolean = isinstance(CATALOGUE[name].default, bool)
            value = arguments.present_truth(flag, text) if is_boolean else _value(text)
            if text is not None:
                present[name] = text if CATALOGUE[name].domain.problem(value) else value
            # The word behind a switch is an argument of its own.
            if is_boolean and value is None and arguments.may_be_switch(flag):
                present[name] = flag in self.arguments
        return {n: v for n, v in present.items() if not CATALOGUE[n].domain.problem(v)}

    def rules(self, baseline: Mapping[str, Any]) -> Iterator[str]:
        """Yield constraints that keep all settings of a knob whole."""
        return derived_batch.proportion_rules(self.in_proportion, baseline)

    def knob_problems(self, knobs: StudyKnobs) -> mistakes.Problems:
        problems = derived_batch.proportion_of_baseline(self.in_proportion, knobs.given)
        space = {name: tried for name, tried in knobs.values.items() if name not in knobs.own}
        problems |= option_words.of_space(self.words, space, knobs.baseline)
        present = self.present(knobs.variables)
        for name, values in space.items():
            problems |= self._of_searched(name, values, knobs, present)
        if self.keeps_global_batch:
            problems |= of_derived(
                self.settings_by_knob, space, knobs.given, fixed_batch=knobs.fixed_batch
            )
        else:
            problems |= self._of_split(space, knobs)
        return problems | self._contradicted(knobs, "workload.args say", {})

    def file_problems(self, knobs: StudyKnobs) -> mistakes.Problems:
        """Return mistakes: settings of several knobs or without a value, contradictory variables."""
        problems = super().file_problems(knobs)
        for place, _, setting in self._settings(knobs):
            if joined := arguments.in_one_word(self.arguments, setting):
                problems[place] = joined
        return problems | self._contradicted(knobs, "env says", knobs.variables)

    def _settings(self, knobs: StudyKnobs) -> Iterator[tuple[mistakes.FieldPath, str, str]]:
        yield from super()._settings(knobs)
        for knob, parts in self.in_proportion.items():
            for setting in parts:
                yield ("workload", "in_proportion", knob, setting), knob, setting

    def stated(self, knobs: StudyKnobs) -> Iterator[Stated]:
        for knob, parts in self.in_proportion.items():
            for setting, present in parts.items():
                place = ("workload", "in_proportion", knob, setting)
                yield Stated(place, setting, present, f"is {present}")
        for name in self.global_flags:
            if name in knobs.given and knobs.workers:
                of_one = knobs.given[name]
                together = of_one * knobs.workers
                text = f"is {of_one}, which is {together} over all ranks"
                yield Stated(("baseline", name), self.flags[name], together, text)

    def _contradicted(
        self, knobs: StudyKnobs, said: str, variables: Mapping[str, str]
    ) -> mistakes.Problems:
        """Return values of the baseline that another part of the study contradicts.

        Args:
            said: what says otherwise, for the message.
            variables: of the environment; empty: only the arguments count.
        """
        present = self.present(variables)
        return {
            ("baseline", name): f"is {mistakes.in_yaml(value)}, but {said} "
            f"{mistakes.in_yaml(present[name])}; make them agree"
            for name, value in knobs.given.items()
            if name in present and present[name] != value
        }

    def _of_searched(
        self, name: str, values: Sequence[Any], knobs: StudyKnobs, present: Collection[str]
    ) -> mistakes.Problems:
        """Return the mistake in a knob of the catalogue that is searched."""
        flag = self.settings_by_knob.get(name)
        if flag is None and name == self.derived:
            return {}  # of_derived refuses it
        if flag is None:
            why = not_from_outside(name, values, knobs.baseline[name])
            text = f"{why}; say under workload.flags by which argument it is turned"
            return {("search_space", name): text} if why else {}
        if name in knobs.given:
            return {}
        if name in self.global_flags:
            text = f"then say under baseline what {name} is for one rank today"
            return {("workload", "global_flags"): text}
        if name in present:
            return {}
        if joined := arguments.in_one_word(self.arguments, flag):
            return {("workload", "flags", name): f"its present value is not known: {joined}"}
        apart = fields.parted(flag) or arguments.is_constructed(flag)
        source = "it does not" if apart else "workload.args do not"
        source = "env does not" if arguments.is_variable(flag) else source
        text = (
            f"{source} say what {flag} is today; add it there, or say under baseline "
            f"what the script takes without it"
        )
        return {("workload", "flags", name): text}

    def _of_split(self, space: Mapping[str, Sequence[Any]], knobs: StudyKnobs) -> mistakes.Problems:
        """Return a mistake if micro_batch varies under a fixed global batch without accumulation."""
        sizes = {*space.get("micro_batch", ()), knobs.baseline["micro_batch"]}
        accumulates = "accumulation_steps" in self.settings_by_knob
        if not knobs.fixed_batch or len(sizes) == 1 or accumulates:
            return {}
        text = (
            "stays only if the script accumulates more where micro_batch is "
            "less: say under workload.flags by which argument accumulation_steps is turned; or "
            "`workload: {keeps_global_batch: true}` if the script does that by itself; or "
            "`global_batch_size: free`"
        )
        return {("objective", "global_batch_size"): text}

    # Trials

    def recipe(self, chosen: Mapping[str, Any], knobs: StudyKnobs, workers: int) -> Recipe:
        """Return a configuration as the script takes it.

        Args:
            chosen: a value for every knob.
        """
        flags, differing = knobs.flags, changed_knobs(chosen, knobs.baseline)
        turned = {
            name: value * workers
            if name in self.global_flags
            else option_words.said(self.words, name, value)
            for name, value in differing.items()
            if name in flags and name not in self.in_proportion
        }
        parts = in_proportion(self.in_proportion, knobs.baseline, differing)
        settings = [setting for several in self.in_proportion.values() for setting in several]
        outside = differing.keys() - turned.keys() - {*self.in_proportion, self.derived}
        return Recipe(
            flags={**flags, **{setting: setting for setting in settings}},
            turned={**turned, **parts},
            changes=tuple(sorted(outside)),
        )

    def samples_of_step(self, chosen: Mapping[str, Any], knobs: StudyKnobs) -> int | None:
        """Return the samples of one rank in a step; None where the study has none.

        The study gives those of the baseline; a larger micro-batch has more.

        Args:
            chosen: a value for every knob.
        """
        if not self.samples:
            return None
        return round(
            self.samples * global_batch_size(chosen, 1) / global_batch_size(knobs.baseline, 1)
        )

    def request(self, asked: TrialRequest, knobs: StudyKnobs) -> TrialRequest:
        """Return the request of the script's trial.

        What differs from the baseline reaches the script through its arguments, or acts from
        outside. The baseline is the script as it is.
        """
        recipe = self.recipe(asked.knobs, knobs, asked.world_size)
        differing = changed_knobs(asked.knobs, knobs.baseline)
        counted = self.samples_of_step(asked.knobs, knobs)
        if counted is None and self.knows_batch(knobs.given):
            counted = global_batch_size(asked.knobs, 1)
        given = fields.given(
            self.arguments,
            recipe.flags,
            recipe.turned,
            variables=asked.env,
            workdir=Path(asked.workdir),
            folder=TrialFiles(Path(asked.log_dir)).copies(),
        )
        return dataclasses.replace(
            asked,
            import_paths=(),
            env={**asked.env, **given.variables},
            copies=given.copies,
            script=Script(
                target=self.target,
                args=given.arguments,
                is_module=self.script is None,
                launch=self.launched_by(asked.world_size),
                changes=recipe.changes,
                baseline={name: knobs.baseline[name] for name in (*recipe.changes, "num_workers")},
                constructed=given.constructed,
                samples=counted or 0,
                draws_none=self.samples is not None,
                counts=knobs.counts,
                turned=tuple(
                    f"{recipe.flags[name]} {value}" for name, value in recipe.turned.items()
                ),
                derived=self.derived if self.derived in differing else "",
                fixed_samples=self.samples is not None and samples_are_fixed(recipe.flags),
                kept=tuple(sorted({*knobs.values} - {*recipe.flags, *recipe.changes})),
            ),
        )

    def entry(self, chosen: Mapping[str, Any], knobs: StudyKnobs, workers: int) -> dict[str, Any]:
        """Return the recipe, with what the job is to have in common with the trials."""
        recipe = self.recipe(chosen, knobs, workers)
        found = {
            "target": self.target,
            "is_module": self.script is None,
            **dataclasses.asdict(recipe),
            "changes": list(recipe.changes),
        }
        found["launch"] = self.launched_by(workers)
        of_all = {*self.global_flags} & {*recipe.turned}
        if shared := [flag for name, flag in recipe.flags.items() if name in of_all]:
            found["global_flags"] = {"flags": shared, "ranks": workers}
        if samples := self.samples_of_step(chosen, knobs):
            found["samples"] = samples
        if set_by := self._set_by():
            found["set_by"] = set_by
        return found

    def _set_by(self) -> dict[str, list[str]]:
        """Return the knobs that the script is given by other names, each with these names in `flags`."""
        found = {knob: [*parts] for knob, parts in self.in_proportion.items()}
        if self.derived:
            told = other_batch_knob(self.derived)
            found[self.derived] = found.get(told, [told])
        return found


def samples_are_fixed(flags: Mapping[str, str]) -> bool:
    """Return whether the study's samples count even if a loader shows others.

    They do if the script sets no knob that changes the samples of a step.
    """
    return not {*BATCH_KNOBS} & flags.keys()


def _of_switch(given: Sequence[str], flag: str, text: str | None) -> str | None:
    """Return `true` for a switch that is given, as the word behind it is an argument of its own."""
    is_switch = arguments.may_be_switch(flag) and flag in given
    return written(True) if is_switch and arguments.truth(text) is None else text


def _value(text: str | None) -> KnobValue | None:
    """Return what a text is: a number, yes or no, or a text."""
    number, truth = arguments.number(text), arguments.truth(text)
    return text if number is None and truth is None else truth if number is None else number
