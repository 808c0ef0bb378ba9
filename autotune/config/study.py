"""Study file, validated: study.yaml -> StudySpec.

Every mistake names file, line, field and what is allowed.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from autotune.config import commands, document, known, mistakes, own_knobs, proportion, scripts
from autotune.config.sections import (
    FREE,
    BudgetSpec,
    MeasurementSpec,
    ObjectiveSpec,
    OwnKnobSpec,
    ResourcesSpec,
    Section,
    WorkloadSpec,
)
from autotune.errors import SpecError
from search_spaces import CATALOGUE, defaults, preset, preset_names
from search_spaces.constraints import global_batch
from search_spaces.knob import KnobValue

Counts = Literal["samples", "tokens", "steps"]
_COUNTS: dict[str, Counts] = {
    "samples_per_second": "samples",
    "tokens_per_second": "tokens",
    "steps_per_second": "steps",
}
_IDENTITY = ("name", "storage")
_USUAL_TRIALS = 30
"""Trials of samplers that do not estimate the value of another one."""


def _env_name(name: str) -> str:
    if not name or "=" in name:
        raise ValueError(f"{mistakes.in_yaml(name)} is no name of an environment variable")
    return name


EnvName = Annotated[str, AfterValidator(_env_name)]


class StudySpec(Section):
    """Study: what to train, what may change, on what, and for how long."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Letters, digits, dots, dashes and underscores.",
    )
    workload: WorkloadSpec
    resources: ResourcesSpec = ResourcesSpec()
    search_space: str | dict[str, list[KnobValue]] = Field(
        default="quick", description="Name of a preset, or the values to try per knob."
    )
    baseline: dict[str, KnobValue] = Field(
        default_factory=dict,
        description="Your configuration today; a knob that is not named has its default.",
    )
    knobs: dict[str, OwnKnobSpec] = Field(
        default_factory=dict,
        description="Knobs of your own, by name: arguments of a script that are in no catalogue.",
    )
    constraints: list[str] = Field(
        default_factory=list,
        description="What every configuration has to satisfy, such as `tensor_parallel * "
        "pipeline_parallel <= world_size`: over knobs, world_size and global_batch.",
    )
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: BudgetSpec = BudgetSpec()
    sampler: Literal["model", "tpe", "gp", "random", "grid"] = Field(
        default="model",
        description="Source of the next trial. model: autotune's own, which knows how the time of a "
        "step is made up; the others are Optuna's.",
    )
    measurement: MeasurementSpec = MeasurementSpec()
    launcher: Literal["local", "ray"] = Field(
        default="local", description="local: this machine; ray: a Ray cluster."
    )
    ray_address: str | None = Field(
        default=None,
        min_length=1,
        description="Of a running Ray cluster, e.g. 10.0.0.1:6379 or auto. Without one the ray "
        "launcher starts a Ray on this machine.",
    )
    env: dict[EnvName, str] = Field(
        default_factory=dict,
        description="Environment variables of agents and ranks, from before torch is imported; "
        "CUDA_VISIBLE_DEVICES stays that of the slot. Values that look secret are not stored but read "
        "again when the study starts.",
    )
    storage: str | None = Field(
        default=None,
        description="SQLAlchemy URL of a SQLite file or a PostgreSQL database. Default: "
        "$AUTOTUNE_STORAGE, else sqlite:///autotune.db.",
    )
    logs: Literal["failed", "all"] = Field(
        default="failed",
        description="Whose output is kept: that of the baseline and of trials that failed, or all.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Of data, model and sampler.")
    folder: str | None = Field(
        default=None,
        min_length=1,
        description="Where the module of the workload is looked for, after the folder in which the "
        "command is typed; relative to the study file. Default: beside it.",
    )
    export: str = Field(
        default="best.yaml", min_length=1, description="Where the best configuration goes."
    )

    @field_validator("name", mode="before")
    @classmethod
    def _a_name(cls, name: Any) -> Any:
        if isinstance(name, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise ValueError(
                "must be 1 to 100 letters, digits, dots, dashes and underscores, the first one a "
                f"letter or digit, got {mistakes.in_yaml(name)}"
            )
        if isinstance(name, str) and name.endswith((".yaml", ".yml")):
            raise ValueError("must not end in .yaml or .yml: the commands would take it for a file")
        return name

    @model_validator(mode="before")
    @classmethod
    def _so_many_trials(cls, given: Any) -> Any:
        """Set a number of trials for samplers that cannot estimate the value of another one."""
        budget = given.get("budget", {}) if isinstance(given, dict) else None
        if not isinstance(budget, dict) or given.get("sampler", "model") == "model":
            return given
        return {**given, "budget": {"trials": _USUAL_TRIALS, **budget}}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = mistakes.of_search_space(
            self.search_space, self.knobs, may_be_empty=bool(self.knobs)
        )
        problems |= mistakes.of_baseline(self.baseline, self.knobs)
        problems |= scripts.of_workload(self.workload)
        problems |= self._of_own(problems)
        if not problems:
            problems |= scripts.of_resources(self.workload, self.resources, self.launcher)
        if not problems and self.workload.is_script:
            problems |= self._of_turned()
        fixed, workers = self.objective.global_batch, self.resources.known_workers
        if isinstance(fixed, int) and workers and not problems:
            given = bool(self.baseline)
            problems |= mistakes.of_global_batch(
                fixed, workers, self.full_baseline(), baseline_given=given
            )
        if self.constraints and not problems:
            problems |= self._of_constraints()
        if not self.budget.ends and (self.sampler != "model" or self.budget.least_gain == 0):
            problems["budget",] = "at least one of trials, wall_time, device_hours must be set"
        if self.ray_address is not None and self.launcher != "ray":
            problems["ray_address",] = "has no effect without `launcher: ray`; add it"
        if not problems:
            problems |= self._of_steps()
        if problems:
            raise mistakes.Inconsistent(problems)
        return self

    def _of_steps(self) -> mistakes.Problems:
        """Return mistakes in steps as the measure."""
        if self.objective.metric != "steps_per_second":
            return {}
        if self.workload.command:
            return {("objective", "metric"): "is for scripts: the steps of a command are not seen"}
        if self.objective.global_batch == FREE:
            text = "must be kept with steps_per_second: steps of other samples do not compare"
            return {("objective", "global_batch"): text}
        return {}

    def _of_turned(self) -> mistakes.Problems:
        """Return mistakes: knobs that nothing can set."""
        values, fixed_batch = self.values(), self.objective.global_batch not in ("free", None)
        if self.workload.command:
            return commands.of_knobs(
                self.workload,
                values,
                self.knobs,
                self.baseline,
                fields=self.flags,
                fixed_batch=fixed_batch,
            )
        return scripts.of_knobs(
            self.workload,
            {name: given for name, given in values.items() if name not in self.knobs},
            self.baseline,
            self.full_baseline(),
            fixed_batch=fixed_batch,
        )

    def _of_own(self, others: mistakes.Problems) -> mistakes.Problems:
        """Return mistakes in the study's own knobs; `others`: mistakes elsewhere."""
        if self.knobs and self.workload.name is not None:
            return {("knobs",): "are arguments of a script, and no script is trained; take it out"}
        problems = own_knobs.of_knobs(self.knobs, of_command=self.workload.command is not None)
        if problems or any(path[0] == "workload" for path in others):
            return problems
        return own_knobs.of_values_today(
            self.knobs, self.workload.arguments, self.env, self.baseline
        )

    def _of_constraints(self) -> mistakes.Problems:
        batch_known = not self.workload.is_script or "micro_batch" in {
            *self.workload.settings_by_knob,
            *self.baseline,
        }
        return own_knobs.of_constraints(
            self.constraints,
            self.values(),
            self.full_baseline(),
            self.resources.known_workers,
            batch_known=batch_known,
        )

    @property
    def counts(self) -> Counts:
        """Return the unit that is counted per second.

        A script's batches may hold padding, more of it in a larger micro-batch: where the global
        batch is kept, samples are comparable, and tokens are not.
        """
        metric, keeps = self.objective.metric, self.objective.global_batch != FREE
        if metric == "tokens_per_second" and keeps and self.workload.is_script:
            return "samples"
        return _COUNTS[metric]

    @property
    def note_on_tokens(self) -> str:
        """Return a sentence on how a script's tokens are counted; empty for other metrics."""
        if self.objective.metric != "tokens_per_second" or not self.workload.is_script:
            return ""
        if self.counts == "samples":
            return (
                "Samples per second compare, as the global batch is kept: tokens may be padding, and "
                "other micro-batches have more or less of it."
            )
        return (
            "Tokens are counted by attention mask, labels or lengths; where a batch has none of them, "
            "with padding."
        )

    @property
    def unit(self) -> str:
        """Return the unit of the rates, as it is printed."""
        return f"{self.counts}/s"

    def values(self) -> dict[str, list[Any]]:
        """Return the values to try per knob: the preset resolved, the study's own knobs last."""
        space = self.search_space
        searched = preset(space) if isinstance(space, str) else space
        return {**searched, **{name: list(knob.values) for name, knob in self.knobs.items()}}

    @property
    def job_knobs(self) -> frozenset[str]:
        """Return names of the knobs that belong to this job: searched ones, and those it sets."""
        return frozenset({*self.values(), *self.baseline})

    @property
    def flags(self) -> dict[str, str]:
        """Return the flags of all knobs that a script sets by itself."""
        own_flags = {name: knob.flag for name, knob in self.knobs.items() if knob.flag}
        return {**self.workload.settings_by_knob, **own_flags}

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the study's constraints, and those that keep all settings of a knob whole."""
        return (*self.constraints, *proportion.rules(self.workload, self.full_baseline()))

    @property
    def harmless(self) -> frozenset[str]:
        """Return names of the study's own knobs that cannot change the training."""
        return frozenset(name for name, knob in self.knobs.items() if not knob.numerics)

    @property
    def asks_for_largest(self) -> bool:
        """Return whether the largest micro-batch that fits is still to be found."""
        space = self.search_space
        return isinstance(space, dict) and mistakes.LARGEST in space.get("micro_batch", [])

    def global_batch(self, workers: int) -> int | None:
        """Return the samples per optimizer step that every configuration must have; None: any.

        Args:
            workers: ranks.
        """
        wanted = self.objective.global_batch
        if wanted == FREE:
            return None
        return wanted if isinstance(wanted, int) else global_batch(self.full_baseline(), workers)

    def full_baseline(self) -> dict[str, Any]:
        """Return the baseline with a value for every knob, including those in a script's arguments."""
        known = {**defaults(), **scripts.of_arguments(self.workload), **self.baseline}
        return known | own_knobs.today(self.knobs, self.workload.arguments, self.env, self.baseline)


def load(path: Path) -> StudySpec:
    """Return the study in a file; its folder is absolute.

    Raises:
        SpecError: it has mistakes; one line for each.
    """
    beside = path.parent.absolute()
    spec = check(document.read(path), (Path.cwd(), beside))
    folder = (path.parent / (spec.folder or "")).resolve()
    return spec.model_copy(update={"folder": str(folder)})


def identified(path: Path) -> tuple[str, str | None]:
    """Return name and storage of the study in a file, whatever else has changed there.

    They identify a stored study.

    Raises:
        SpecError: one of these is wrong, or the file cannot be read.
    """
    written = document.read(path)
    if isinstance(written.data, dict):
        named = {field: written.data[field] for field in _IDENTITY if field in written.data}
        written = dataclasses.replace(written, data={**named, "workload": "any:workload"})
    spec = check(written)
    return spec.name, spec.storage


def check(written: document.Document, folders: Sequence[Path] = ()) -> StudySpec:
    """Return the study in a document.

    Args:
        written: document of a study.
        folders: in which files are looked for that a script reads; without any they are not read.

    Raises:
        SpecError: it has mistakes; one line for each.
    """
    if not isinstance(written.data, dict):
        raise SpecError(
            [f"{written.where(())}: a study file is a mapping with at least `name` and `workload`"]
        )
    data = dict(written.data)
    if isinstance(data.get("workload"), str):
        data["workload"] = {"name": data["workload"]}
    if isinstance(space := data.get("search_space"), dict):
        data["search_space"] = {
            name: values if isinstance(values, list) else [values] for name, values in space.items()
        }
    if data.get("knobs") and "search_space" not in data:
        data["search_space"] = {}
    data, problems = known.with_files(data, folders) if folders else (data, {})
    objective = data.get("objective")
    if isinstance(objective, dict) and objective.get("global_batch", "") is None:
        # In records of earlier versions null means `free`.
        text = "is empty; say keep or free, or leave it out"
        problems = {**problems, ("objective", "global_batch"): text}
    try:
        spec = StudySpec.model_validate(data)
        problems |= mistakes.of_variables(spec.env, {**spec.baseline, **spec.values()})
        if not problems:
            return spec
    except mistakes.Inconsistent as inconsistent:
        problems = {**inconsistent.problems, **problems}
    except ValidationError as error:
        problems |= mistakes.of_fields(error, data, StudySpec)
        problems |= _beside(problems, data)
    in_order = sorted(problems.items(), key=lambda item: written.line(item[0]))
    raise SpecError(
        [f"{written.where(path)}: {mistakes.dotted(path)}: {text}" for path, text in in_order]
    )


def _beside(problems: mistakes.Problems, data: dict[str, Any]) -> mistakes.Problems:
    """Return mistakes that concern several fields, in a study without the fields wrong by themselves."""
    wrong = {path[0] for path in problems if path}
    wrong |= {"objective"} if wrong & {"baseline", "resources"} else set()
    wrong |= {"ray_address"} if "launcher" in wrong else set()
    if data.get("knobs") and wrong & {"workload", "env", "knobs"}:
        wrong |= {"knobs", "search_space", "baseline", "workload"}
    wrong |= (
        {"constraints"} if wrong & {"workload", "search_space", "baseline", "resources"} else set()
    )
    rest = {name: value for name, value in data.items() if name not in wrong}
    try:
        StudySpec.model_validate({"name": "a", "workload": {"name": "gpt"}, **rest})
    except mistakes.Inconsistent as inconsistent:
        return inconsistent.problems
    except ValidationError:
        pass
    return {}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a study file, for editors."""
    schema = StudySpec.model_json_schema()
    properties = schema["properties"]
    properties["workload"] = {
        "anyOf": [{"type": "string"}, properties["workload"]],
        "description": "A built-in workload or module:function; or a mapping with name and args.",
    }
    knobs = {name: {"description": knob.summary} for name, knob in CATALOGUE.items()}
    space = {"type": "object", "properties": knobs, "additionalProperties": False}
    properties["search_space"]["anyOf"] = [{"type": "string", "enum": preset_names()}, space]
    properties["baseline"].update(properties=knobs)
    known_only = {"properties": dict.fromkeys(knobs, True), "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        # Present values of the study's own knobs stand there, too.
        "if": {"not": {"required": ["knobs"]}},
        "then": {"properties": {"baseline": known_only}},
    }
