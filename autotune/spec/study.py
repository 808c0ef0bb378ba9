"""study.yaml -> StudySpec. Every mistake names file, line, field and what is allowed."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from autotune.errors import SpecError
from autotune.spec import commands, document, known, mistakes, own, scripts
from autotune.spec.units import Bytes, Seconds
from autotune.workloads import BUILT_IN
from search_spaces import CATALOGUE, defaults, preset, preset_names
from search_spaces.constraints import global_batch


def _env_name(name: str) -> str:
    if not name or "=" in name:
        raise ValueError(f"{mistakes.in_yaml(name)} is no name of an environment variable")
    return name


KEEP: Final = "keep"
FREE: Final = "free"
"""Of objective.global_batch, besides numbers."""
EnvName = Annotated[str, AfterValidator(_env_name)]
Scalar = bool | int | float | str
_IDENTITY = ("name", "storage")
_USUAL_TRIALS = 30
"""Of samplers that do not know what another one is worth."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ThroughputSpec(_Section):
    """Where the throughput of a command is read."""

    json_lines: str | None = Field(
        default=None,
        description="A file in `{folder}`: of each line `samples` (or `tokens`) and `seconds`, or "
        "`throughput`.",
    )
    pattern: str | None = Field(
        default=None,
        description="A regular expression over each line of its output, with one group: the rate.",
    )


class WorkloadSpec(_Section):
    """What is trained: a workload of a contract, a training script as it is, or any command."""

    name: str | None = Field(
        default=None,
        description="A built-in workload, or `module:function` of a factory of your own.",
    )
    script: str | None = Field(
        default=None,
        min_length=1,
        description="A training script that nobody has to change, from the study's folder on; every "
        "rank runs it as under torchrun.",
    )
    module: str | None = Field(
        default=None, min_length=1, description="The same for a module, as in `python -m`."
    )
    command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Any command that trains with ranks of its own, word by word; `{knob}` in a word is "
        "the knob's value, `{folder}` a folder of the trial's.",
    )
    throughput: ThroughputSpec | None = Field(
        default=None,
        description="Where that of a command is read: json_lines or pattern. Without it the command "
        "calls `autotune.report`.",
    )
    args: dict[str, Any] | list[Any] = Field(
        default_factory=dict,
        description="Keyword arguments of the factory; of a script the list of its arguments, as they "
        "are today.",
    )
    flags: dict[str, str] = Field(
        default_factory=dict,
        description="Knobs that the script turns by itself: for each `--flag`, `key=`, `$VARIABLE`, or "
        "a field of a file that it reads: `config.yaml::a.field`, `--config::a.field`.",
    )
    over_all_ranks: list[str] = Field(
        default_factory=list,
        description="Those of `flags` whose argument counts what all ranks have together: it is given "
        "the knob's value times the ranks.",
    )
    samples: int | None = Field(
        default=None,
        ge=1,
        description="Samples per rank and optimizer step of a script that draws none from a DataLoader, "
        "or whose ranks share what theirs yield.",
    )

    @property
    def is_script(self) -> bool:
        """Whether a script or a command trains, which nobody has written for autotune."""
        return self.name is None

    @property
    def factory(self) -> str:
        """`module:function`; empty where a script trains."""
        return BUILT_IN.get(self.name, self.name) if self.name else ""

    @property
    def label(self) -> str:
        """The workload, for people and for records."""
        if self.command:
            return " ".join(self.command)
        return self.name or self.script or f"-m {self.module}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the script."""
        return tuple(self.args) if isinstance(self.args, list) else ()

    @field_validator("name")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is None:
            return None
        module, _, function = name.partition(":")
        own = all(part.isidentifier() for part in (*module.split("."), function))
        if name not in BUILT_IN and not own:
            raise ValueError(
                f"must be one of {', '.join(sorted(BUILT_IN))}, or module:function of your "
                f"own factory, got {mistakes.in_yaml(name)}{mistakes.did_you_mean(name, BUILT_IN)}"
            )
        return name

    @field_validator("args")
    @classmethod
    def _finite(cls, args: Any) -> Any:
        try:
            json.dumps(args, allow_nan=False)
        except ValueError:
            raise ValueError("must hold finite numbers only") from None
        return args


class ResourcesSpec(_Section):
    """What one trial takes, and how many run at a time."""

    workers: Annotated[int, Field(ge=1, le=65536)] | Literal["auto"] = Field(
        default="auto",
        description="Ranks of a trial; auto: one per visible GPU, or two on the CPU.",
    )
    gpus_per_worker: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="CUDA devices per rank: 1 (NCCL), 0 (CPU), or a fraction when ranks share a "
        "device (gloo). Default: 1 where the machine has enough, else 0.",
    )
    cpus_per_worker: int = Field(default=1, ge=1, le=4096, description="CPU threads per rank.")
    memory_per_worker: Bytes | None = Field(
        default=None, description="Limit per rank, e.g. 4GiB; beyond it a trial is out of memory."
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Trials at a time. Default: on GPUs as many as fit, on CPUs one per node.",
    )
    device: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name of the devices that all trials run on, e.g. NVIDIA H100 80GB HBM3; on the "
        "CPU, the processor's model. Default: in a cluster of several kinds, that on which most ranks "
        "can run.",
    )

    @property
    def known_workers(self) -> int | None:
        """Ranks of a trial; None if the machine decides."""
        return None if self.workers == "auto" else self.workers


class ObjectiveSpec(_Section):
    """What is maximised."""

    metric: Literal["samples_per_second", "tokens_per_second"] = "samples_per_second"
    global_batch: Annotated[int, Field(ge=1)] | Literal["keep", "free"] = Field(
        default=KEEP,
        description="Samples per optimizer step over all ranks. keep: only configurations with exactly "
        "the baseline's compete, so that the winner trains the same, faster; a number: the same, said "
        "in figures; free: any may win, and then needs a new learning rate.",
    )

    job_hours: float = Field(
        default=168.0,
        gt=0,
        le=10**6,
        description="Hours that the job trains, a week if nobody says: the search ends when another "
        "trial costs more than its expected gain would save it (sampler: model).",
    )

    @field_validator("global_batch", mode="before")
    @classmethod
    def _as_stored_before(cls, given: Any) -> Any:
        # Earlier versions stored nothing where any global batch was to compete.
        return FREE if given is None else given

    @property
    def unit(self) -> str:
        """Of the metric, for people."""
        return "tokens/s" if self.metric == "tokens_per_second" else "samples/s"


class BudgetSpec(_Section):
    """When the search ends: whichever comes first."""

    trials: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="Most trials, baseline included. Default: as many as are worth it; 30 with another "
        "sampler than model, which does not know.",
    )
    wall_time: Seconds | None = Field(
        default=None,
        description="Running time, e.g. 30m: a limit, kept within a tenth or one step. What proves the "
        "result is paid for first.",
    )
    least_gain: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="The search ends when another trial is expected to bring less than this share of "
        "throughput (sampler: model), or less than noise lets one see; 0: never for that reason. "
        "Default: what a trial takes of objective.job_hours.",
    )
    device_hours: float | None = Field(
        default=None, gt=0, description="Hours of trials times ranks; confirmation not counted."
    )

    @property
    def ends(self) -> bool:
        """Whether any limit is given."""
        return not (self.trials is None and self.wall_time is None and self.device_hours is None)


class MeasurementSpec(_Section):
    """How long each trial is measured. The defaults suit GPUs; the quickstart is shorter."""

    block_seconds: Seconds = Field(default=1.0, description="Length of a timed block.")
    min_steps: int = Field(
        default=5,
        ge=1,
        le=10000,
        description="Optimizer steps in a block; fewer where steps are long.",
    )
    warmup: Seconds = Field(default=20.0, description="Longest warm-up before timing counts.")
    longest: Seconds = Field(
        default=30.0,
        description="Longest timing after the warm-up, kept within a tenth or one step.",
    )
    search_precision: float = Field(
        default=0.02, gt=0, lt=1, description="Relative 95 % half-width at which a trial ends."
    )
    confirm_precision: float = Field(
        default=0.01, gt=0, lt=1, description="The same for a run of the confirmation."
    )
    baseline_runs: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Runs of the baseline before the search goes on, each in new processes: they tell "
        "how far equal runs lie apart. 1: it is not run again.",
    )
    finalists: int = Field(default=3, ge=1, le=20, description="Configurations measured again.")
    rounds: int = Field(
        default=10,
        ge=2,
        le=50,
        description="Most rounds of all finalists against the baseline, and of the chosen one alone "
        "after that.",
    )
    attribution: int = Field(
        default=3,
        ge=0,
        le=50,
        description="Rounds of the winner against itself less one changed knob each; 0: none.",
    )
    unchecked_numerics: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Whether a configuration that may change the loss is recommended though it could "
        "not be compared with the fp32 reference, because that does not run.",
    )
    startup_deadline: Seconds = Field(
        default=300.0,
        description="First step done, else HANG; 3 times that where it is compiled, 10 times under "
        "max-autotune.",
    )
    step_deadline: Seconds = Field(default=60.0, description="Every later step done, else HANG.")

    @property
    def refuses_unchecked(self) -> bool:
        """Whether what could not be checked is not recommended."""
        return self.unchecked_numerics == "refuse"


class OwnKnobSpec(_Section):
    """A knob of the user's own, which the script turns by itself."""

    values: list[Scalar] = Field(
        description="To try: all numbers, all texts or all booleans. Numbers are taken for a scale."
    )
    flag: str | None = Field(
        default=None,
        description="How the script takes it: `--flag`, `--flag=`, `key=`, `$VARIABLE`, or a field of a "
        "file such as `config.yaml::a.field`. A command takes it where `{knob}` stands.",
    )
    default: Scalar | None = Field(
        default=None, description="What the script takes where its arguments do not say it."
    )
    numerics: bool = Field(
        default=True,
        description="Whether it may change what is computed, so that the loss is to be compared with "
        "the reference before it is recommended.",
    )


class StudySpec(_Section):
    """A study: what to train, what may change, on what, and for how long."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Letters, digits, dots, dashes and underscores.",
    )
    workload: WorkloadSpec
    resources: ResourcesSpec = ResourcesSpec()
    search_space: str | dict[str, list[Scalar]] = Field(
        default="quick", description="Name of a preset, or the values to try per knob."
    )
    baseline: dict[str, Scalar] = Field(
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
        description="Who suggests the next trial. model: autotune's own, which knows how the time of a "
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
        """Who does not know what a trial is worth makes a number of them."""
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
        if problems:
            raise mistakes.Inconsistent(problems)
        return self

    def _of_turned(self) -> mistakes.Problems:
        """Knobs that neither the script or command, nor anybody from outside, can turn."""
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
        """What is wrong with the knobs of the study's own; `others`: what is wrong besides."""
        if self.knobs and self.workload.name is not None:
            return {("knobs",): "are arguments of a script, and no script is trained; take it out"}
        problems = own.of_knobs(self.knobs, of_command=self.workload.command is not None)
        if problems or any(path[0] == "workload" for path in others):
            return problems
        return own.of_values_today(self.knobs, self.workload.arguments, self.env, self.baseline)

    def _of_constraints(self) -> mistakes.Problems:
        batch_known = not self.workload.is_script or "micro_batch" in {
            *self.workload.flags,
            *self.baseline,
        }
        return own.of_constraints(
            self.constraints,
            self.values(),
            self.full_baseline(),
            self.resources.known_workers,
            batch_known=batch_known,
        )

    def values(self) -> dict[str, list[Any]]:
        """The search space: values to try per knob, the preset resolved, knobs of its own last."""
        space = self.search_space
        searched = preset(space) if isinstance(space, str) else space
        return {**searched, **{name: list(knob.values) for name, knob in self.knobs.items()}}

    @property
    def flags(self) -> dict[str, str]:
        """Of all knobs that a script turns by itself."""
        own_flags = {name: knob.flag for name, knob in self.knobs.items() if knob.flag}
        return {**self.workload.flags, **own_flags}

    @property
    def harmless(self) -> frozenset[str]:
        """Knobs of its own that cannot change what is computed."""
        return frozenset(name for name, knob in self.knobs.items() if not knob.numerics)

    @property
    def asks_for_largest(self) -> bool:
        """Whether the largest micro-batch that fits is still to be found."""
        space = self.search_space
        return isinstance(space, dict) and mistakes.LARGEST in space.get("micro_batch", [])

    def global_batch(self, workers: int) -> int | None:
        """Samples per optimizer step that every configuration has on so many ranks; None: any."""
        wanted = self.objective.global_batch
        if wanted == FREE:
            return None
        return wanted if isinstance(wanted, int) else global_batch(self.full_baseline(), workers)

    def full_baseline(self) -> dict[str, Any]:
        """The baseline with a value for every knob: of a script, what its arguments say."""
        known = {**defaults(), **scripts.of_arguments(self.workload), **self.baseline}
        return known | own.today(self.knobs, self.workload.arguments, self.env, self.baseline)


def load(path: Path) -> StudySpec:
    """The study in a file; its folder is absolute.

    Raises:
        SpecError: with one line per mistake.
    """
    beside = path.parent.absolute()
    spec = check(document.read(path), (Path.cwd(), beside))
    folder = (path.parent / (spec.folder or "")).resolve()
    return spec.model_copy(update={"folder": str(folder)})


def identified(path: Path) -> tuple[str, str | None]:
    """Name and storage of the study in a file, whatever else stands there by now: it tells which stored
    study is meant, and no more.

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
    """The study in a document.

    Args:
        folders: in which the files are that a script reads; without any they are not looked at.

    Raises:
        SpecError: with one line per mistake.
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
    try:
        spec = StudySpec.model_validate(data)
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
    """Mistakes that concern several fields, in a study less those that are wrong by themselves."""
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
    """JSON Schema of a study file, for editors."""
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
        # Knobs of a study's own have their values of today there, too.
        "if": {"not": {"required": ["knobs"]}},
        "then": {"properties": {"baseline": known_only}},
    }
