"""Sections of a study file: their fields, and the values that each may hold by itself."""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from autotune.config import mistakes
from autotune.config.quantities import Bytes, Seconds
from autotune.workloads import BUILT_IN
from search_spaces.knob import KnobValue, written

KEEP: Final = "keep"
FREE: Final = "free"
"""Values of objective.global_batch besides numbers."""


class Section(BaseModel):
    """Section of a study file; it refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


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


class WorkloadSpec(Section):
    """Training: a workload of a contract, a training script as it is, or any command."""

    name: str | None = Field(
        default=None,
        description="A built-in workload, or `module:function` of a factory of your own.",
    )
    script: str | None = Field(
        default=None,
        min_length=1,
        description="A training script, unmodified; its path is from the study's folder on; its "
        "process is the one that `launch` starts.",
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
    words: dict[str, dict[str, KnobValue]] = Field(
        default_factory=dict,
        description="For knobs of `flags` whose argument says their values otherwise: for each value "
        "the argument's word; true and false of a switch: `compile: {none: false, default: true}`.",
    )
    over_all_ranks: list[str] = Field(
        default_factory=list,
        description="Those of `flags` whose argument counts what all ranks have together: it is given "
        "the knob's value times the ranks.",
    )
    launch: Literal["python", "torchrun", "torch.distributed.launch", "deepspeed"] | None = Field(
        default=None,
        description="What starts the script, and so what its process finds in environment and "
        "arguments. python: one process that no variable calls a rank. Default: torchrun for several "
        "workers, python for one.",
    )
    python_options: list[str] = Field(
        default_factory=list,
        description="Of the interpreter under `launch: python`, as in `python -O train.py`: [-O].",
    )
    in_proportion: dict[str, dict[str, Annotated[int, Field(ge=1)]]] = Field(
        default_factory=dict,
        description="micro_batch or accumulation_steps where several settings make it up, instead of "
        "`flags`: for each setting its value of today; all are changed by the factor of the knob.",
    )
    keeps_global_batch: bool = Field(
        default=False,
        description="Whether the script keeps its global batch by itself: told one of micro_batch and "
        "accumulation_steps, it derives the other. Map that one alone, and say both under `baseline`.",
    )
    samples: int | None = Field(
        default=None,
        ge=1,
        description="Samples per rank and optimizer step of a script that draws none from a DataLoader, "
        "or whose ranks share what theirs yield.",
    )
    may_write: bool = Field(
        default=False,
        description="Whether trials of a script or a command may change files: else what they write is "
        "discarded, and a study that cannot be protected so does not start.",
    )

    @property
    def is_script(self) -> bool:
        """Return whether a script or a command trains, which was not written for autotune."""
        return self.name is None

    @property
    def settings_by_knob(self) -> dict[str, str]:
        """Return knob -> setting that sets it, or the first one of several."""
        firsts = {knob: next(iter(parts), "") for knob, parts in self.in_proportion.items()}
        return {**self.flags, **firsts}

    @property
    def factory(self) -> str:
        """Return `module:function`; empty where a script trains."""
        return BUILT_IN.get(self.name, self.name) if self.name else ""

    @property
    def label(self) -> str:
        """Return a text for the workload, for messages and records."""
        if self.command:
            return " ".join(self.command)
        return self.name or self.script or f"-m {self.module}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of the script."""
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
    def _finite(cls, args: Any) -> Any:
        try:
            json.dumps(args, allow_nan=False)
        except ValueError:
            raise ValueError("must hold finite numbers only") from None
        return args


class ResourcesSpec(Section):
    """Resources of one trial, and the number of trials at a time."""

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
    nodes: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Nodes that the ranks of a trial are spread over, evenly; more than one needs "
        "`launcher: ray`. Default: as few as they fit on.",
    )
    cpus_per_worker: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="CPUs that a rank takes, and threads of one of a workload; a script has the "
        "threads that its launcher leaves it, and where this is not given, its ranks share the CPUs "
        "of a node that has fewer of them.",
    )
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
        """Return the ranks of a trial; None if the machine decides."""
        return None if self.workers == "auto" else self.workers


class ObjectiveSpec(Section):
    """Objective that is maximised."""

    metric: Literal["samples_per_second", "tokens_per_second", "steps_per_second"] = Field(
        default="samples_per_second",
        description="steps_per_second: optimizer steps, for scripts whose batches have different "
        "numbers of samples. Where a script keeps its global batch, tokens_per_second compares "
        "samples: other micro-batches have other padding.",
    )
    global_batch: Annotated[int, Field(ge=1)] | Literal["keep", "free"] = Field(
        default=KEEP,
        description="Samples per optimizer step over all ranks. keep: only configurations with exactly "
        "the baseline's compete, so that the winner trains the same, faster; a number: the same, said "
        "in figures; free: any may win, and then needs a new learning rate.",
    )

    batch_dependent: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Where a layer or loss computes over all rows of a micro-batch together "
        "(BatchNorm, contrastive losses), another micro-batch trains something else. refuse: it is not "
        "recommended; allow: it is, and the verdict says so.",
    )

    job_hours: float = Field(
        default=168.0,
        gt=0,
        le=10**6,
        description="Hours that the job trains; by default a week: the search ends when another "
        "trial costs more than its expected gain would save it (sampler: model).",
    )

    @field_validator("global_batch", mode="before")
    @classmethod
    def _as_stored_before(cls, given: Any) -> Any:
        # Earlier versions stored null for `free`.
        return FREE if given is None else given


class BudgetSpec(Section):
    """Limits at which the search ends: the first that is reached."""

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
        """Return whether any limit is given."""
        return not (self.trials is None and self.wall_time is None and self.device_hours is None)


class MeasurementSpec(Section):
    """Length of a trial's measurement. The defaults suit GPUs; the quickstart is shorter."""

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
        description="Runs of the baseline early in the search, its own trial included: they tell "
        "how far equal runs lie apart. 1: it is not run again, nor beside trials.",
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
        "max-autotune, but then no more than a tenth of the wall time.",
    )
    step_deadline: Seconds = Field(default=60.0, description="Every later step done, else HANG.")

    @property
    def refuses_unchecked(self) -> bool:
        """Return whether a configuration that could not be checked is not recommended."""
        return self.unchecked_numerics == "refuse"


class OwnKnobSpec(Section):
    """Knob of the user's own, which the script sets by itself."""

    values: list[KnobValue] = Field(
        description="To try: all numbers, all texts or all booleans. Numbers are taken for a scale."
    )
    flag: str | None = Field(
        default=None,
        description="How the script takes it: `--flag`, `--flag=`, `key=`, `$VARIABLE`, or a field of a "
        "file such as `config.yaml::a.field`. A command takes it where `{knob}` stands.",
    )
    default: KnobValue | None = Field(
        default=None, description="What the script takes where its arguments do not say it."
    )
    numerics: bool = Field(
        default=True,
        description="Whether it may change what is computed, so that the loss is to be compared with "
        "the reference before it is recommended.",
    )
