"""Study file, validated: study.yaml -> StudySpec.

Every mistake names file, line, field and what is allowed.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from autotune.config import document, mistakes, own_knobs, present_values
from autotune.config.sections import (
    FREE,
    BudgetSpec,
    MeasurementSpec,
    ObjectiveSpec,
    OwnKnobSpec,
    ResourcesSpec,
    Section,
    in_home,
)
from autotune.config.workload_kinds import AnyWorkload, of_one_kind
from autotune.config.workload_spec import StudyKnobs
from autotune.errors import SpecError
from launchers import section_of
from launchers.sections import KINDS, SPANNING, AnyLauncher, as_section
from search_spaces import CATALOGUE, defaults, preset, preset_names
from search_spaces.batch import global_batch_size
from search_spaces.knob import KnobValue

Counts = Literal["samples", "tokens", "steps"]
_COUNTS: dict[str, Counts] = {
    "samples_per_second": "samples",
    "tokens_per_second": "tokens",
    "steps_per_second": "steps",
    "samples_per_joule": "samples",
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
    workload: AnyWorkload
    resources: ResourcesSpec = ResourcesSpec()
    search_space: str | dict[str, list[KnobValue]] = Field(
        default="quick",
        description="Name of a preset, or the values to try per knob. Of a study with `knobs` of its "
        "own, those alone.",
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
        "pipeline_parallel <= world_size`: over knobs, world_size and global_batch_size.",
    )
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: BudgetSpec = BudgetSpec()
    sampler: Literal["model", "tpe", "gp", "random", "grid"] = Field(
        default="model",
        description="Source of the next trial. model: autotune's own, which knows how the time of a "
        "step is made up; tpe, gp and random are Optuna's; grid: every feasible configuration, in "
        "random order.",
    )
    measurement: MeasurementSpec = MeasurementSpec()
    launcher: AnyLauncher = Field(
        default=section_of("local"),
        description="Where ranks run: the name of a launcher, or a mapping with its fields.",
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
        description="Where the module or the script of the workload is looked for, after the folder in "
        "which the command is typed; relative to the study file. Default: beside it.",
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

    @field_validator("workload", mode="before")
    @classmethod
    def _of_one_kind(cls, given: Any) -> Any:
        section, problems = of_one_kind(given)
        if problems:
            raise mistakes.Inconsistent(problems)
        return section

    @field_validator("launcher", mode="before")
    @classmethod
    def _of_one_launcher(cls, given: Any) -> Any:
        return as_section(given)

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
        problems |= self.workload.problems()
        problems |= self._of_own(problems)
        if not problems:
            problems |= self._of_resources()
        if not problems:
            problems |= self.workload.knob_problems(self.study_knobs)
        fixed, workers = self.objective.global_batch_size, self.resources.known_workers
        if isinstance(fixed, int) and workers and not problems:
            given = bool(self.baseline)
            problems |= mistakes.of_global_batch(
                fixed, workers, self.full_baseline(), baseline_given=given
            )
        if self.constraints and not problems:
            problems |= self._of_constraints()
        if not self.budget.ends and (self.sampler != "model" or self.budget.min_improvement == 0):
            problems["budget",] = "at least one of trials, wall_time, device_hours must be set"
        if not problems:
            problems |= self._of_steps() | self._of_energy()
        if problems:
            raise mistakes.Inconsistent(problems)
        return self

    def _of_steps(self) -> mistakes.Problems:
        """Return mistakes in steps as the measure."""
        if self.objective.metric != "steps_per_second":
            return {}
        if not self.workload.observable:
            text = f"is for scripts: the steps of a {self.workload.noun} are not seen"
            return {("objective", "metric"): text}
        if self.objective.global_batch_size == FREE:
            text = "must be kept with steps_per_second: steps of other samples do not compare"
            return {("objective", "global_batch_size"): text}
        return {}

    def _of_energy(self) -> mistakes.Problems:
        """Return mistakes in energy or power as the objective."""
        field = self.objective.energy_setting
        if not field:
            return {}
        if not self.workload.observable:
            noun = self.workload.noun
            text = f"needs the energy of each block, which is not seen of a {noun} with ranks of its own"
            return {("objective", field): text}
        shares = self.resources.gpus_per_worker
        if shares and shares < 1:
            text = (
                "needs devices that one trial has for itself, and `resources.gpus_per_worker` is "
                f"{shares}: say 1"
            )
            return {("objective", field): text}
        return {}

    def _of_resources(self) -> mistakes.Problems:
        """Return conflicts between resources and the launcher of ranks."""
        workers, nodes = self.resources.known_workers, self.resources.nodes or 1
        if wrong := self.workload.workers_problem(workers):
            return {("resources", "workers"): wrong}
        if wrong := self.workload.nodes_problem(nodes):
            return {("resources", "nodes"): wrong}
        if nodes > 1 and not self.launcher.spans_nodes:
            kind = self.launcher.kind
            text = f"is {nodes}, and `launcher: {kind}` has this machine alone; say {SPANNING}"
            return {("resources", "nodes"): text}
        if workers and workers % nodes:
            text = f"is {nodes}, which {workers} workers cannot be spread over"
            return {("resources", "nodes"): text}
        return {}

    def _of_own(self, others: mistakes.Problems) -> mistakes.Problems:
        """Return mistakes in the study's own knobs; `others`: mistakes elsewhere."""
        if self.knobs and self.workload.own_knobs_refused:
            return {("knobs",): self.workload.own_knobs_refused}
        problems = own_knobs.of_knobs(self.knobs, self.workload.own_flag_problem)
        if problems or any(path[0] == "workload" for path in others):
            return problems
        return own_knobs.of_present_values(
            self.knobs, self.workload.arguments, self.env, self.baseline
        )

    def _of_constraints(self) -> mistakes.Problems:
        return own_knobs.of_constraints(
            self.constraints,
            self.values(),
            self.full_baseline(),
            self.resources.known_workers,
            batch_known=self.batch_known,
        )

    @property
    def counts(self) -> Counts:
        """Return the unit that is counted, per second or per joule.

        A script's batches may hold padding, more of it in a larger micro-batch: where the global
        batch is kept, samples are comparable, and tokens are not.
        """
        metric, keeps = self.objective.metric, self.objective.global_batch_size != FREE
        if metric == "tokens_per_second" and keeps and self.workload.pads:
            return "samples"
        return _COUNTS[metric]

    @property
    def note_on_tokens(self) -> str:
        """Return a sentence on how a script's tokens are counted; empty for other metrics."""
        if self.objective.metric != "tokens_per_second" or not self.workload.pads:
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
    def of_energy(self) -> bool:
        """Return whether rates are per joule instead of per second."""
        return self.objective.of_energy

    @property
    def unit(self) -> str:
        """Return the unit of the rates, as it is printed."""
        return f"{self.counts}/{'J' if self.of_energy else 's'}"

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
    def study_knobs(self) -> StudyKnobs:
        """Return the knobs of the study, as its workload is given them."""
        return StudyKnobs(
            values=self.values(),
            own=self.knobs,
            flags=self.flags,
            given=self.baseline,
            baseline=self.full_baseline(),
            fixed_batch=self.objective.global_batch_size != FREE,
            counts=self.counts,
            variables=self.env,
            workers=self.workload.ranks(self.resources.known_workers),
        )

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the study's constraints, and those that keep all settings of a knob whole."""
        return (*self.constraints, *self.workload.rules(self.full_baseline()))

    @property
    def harmless(self) -> frozenset[str]:
        """Return names of the study's own knobs that cannot change the training."""
        return frozenset(name for name, knob in self.knobs.items() if not knob.numerics)

    @property
    def asks_for_largest(self) -> bool:
        """Return whether the largest micro-batch that fits is still to be found."""
        space = self.search_space
        return isinstance(space, dict) and mistakes.LARGEST in space.get("micro_batch", [])

    @property
    def batch_known(self) -> bool:
        """Return whether the micro-batch of the baseline is known, and so its global batch."""
        return self.workload.knows_batch(self.baseline)

    def global_batch_size(self, workers: int) -> int | None:
        """Return the samples per optimizer step that every configuration must have; None: any."""
        wanted = self.objective.global_batch_size
        if wanted == FREE:
            return None
        return (
            wanted if isinstance(wanted, int) else global_batch_size(self.full_baseline(), workers)
        )

    def full_baseline(self) -> dict[str, Any]:
        """Return the baseline with a value for every knob, including those in a script's arguments."""
        known = {**defaults(), **self.workload.present(self.env), **self.baseline}
        return known | own_knobs.present_values(
            self.knobs, self.workload.arguments, self.env, self.baseline
        )


def load(path: Path) -> StudySpec:
    """Return the study in a file; its folder is absolute, and a home in its paths written out.

    Raises:
        SpecError: it has mistakes; one line for each.
    """
    beside = path.parent.absolute()
    spec = check(document.read(path), (Path.cwd(), beside))
    folder = (path.parent / in_home(spec.folder or "")).resolve()
    return spec.model_copy(update={"folder": str(folder), "export": in_home(spec.export)})


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
    data = _in_full(written.data)
    data, problems = present_values.with_files(data, folders) if folders else (data, {})
    data, misplaced = _placed(data)
    problems |= misplaced
    try:
        spec = StudySpec.model_validate(data)
        problems |= mistakes.of_variables(spec.env, {**spec.baseline, **spec.values()})
        problems |= spec.workload.file_problems(spec.study_knobs)
        problems |= present_values.of_numbers(spec.workload, spec.study_knobs, folders)
        of_launcher = spec.launcher.file_problems()
        problems |= {("launcher", field): text for field, text in of_launcher.items()}
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


def _in_full(given: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a study file with its short forms written out."""
    data = dict(given)
    if isinstance(data.get("workload"), str):
        data["workload"] = {"name": data["workload"]}
    if isinstance(space := data.get("search_space"), dict):
        data["search_space"] = {
            name: values if isinstance(values, list) else [values] for name, values in space.items()
        }
    if data.get("knobs") and "search_space" not in data:
        data["search_space"] = {}
    return data


def _placed(data: dict[str, Any]) -> tuple[dict[str, Any], mistakes.Problems]:
    """Return a study without a workload of fields of several kinds, and the mistakes in that."""
    wrong = of_one_kind(data.get("workload"))[1]
    return (_rest(data, {"workload"}), wrong) if wrong else (data, {})


def _beside(problems: mistakes.Problems, data: dict[str, Any]) -> mistakes.Problems:
    """Return mistakes that concern several fields, in a study without the fields wrong by themselves."""
    try:
        rest = _rest(data, {str(path[0]) for path in problems if path})
        StudySpec.model_validate({"name": "a", **rest})
    except mistakes.Inconsistent as inconsistent:
        return inconsistent.problems
    except ValidationError:
        pass
    return {}


def _rest(data: dict[str, Any], wrong: set[str]) -> dict[str, Any]:
    """Return a study without wrong fields, and without what makes no sense without them."""
    wrong = wrong | ({"resources"} if "launcher" in wrong else set())
    wrong |= {"objective"} if wrong & {"baseline", "resources"} else set()
    if data.get("knobs") and wrong & {"workload", "env", "knobs"}:
        wrong |= {"knobs", "search_space", "baseline", "workload"}
    wrong |= (
        {"constraints"} if wrong & {"workload", "search_space", "baseline", "resources"} else set()
    )
    rest = {name: value for name, value in data.items() if name not in wrong}
    return {"workload": {"name": "gpt"}, **rest}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a study file, for editors."""
    schema = StudySpec.model_json_schema()
    properties = schema["properties"]
    properties["workload"] = {
        "anyOf": [{"type": "string"}, properties["workload"]],
        "description": "A built-in workload or module:function; or a mapping with name and args.",
    }
    properties["launcher"]["anyOf"] = [
        {"type": "string", "enum": list(KINDS)},
        {"oneOf": properties["launcher"].pop("oneOf")},
    ]
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
