"""Sections of a study file: their fields, and the values that each may hold by itself."""

import json
import re
import typing
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from search_spaces.knob import KnobValue

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTE_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


_NUMBER = r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*"
FIXED: Final = "fixed"
FREE: Final = "free"
"""Values of objective.global_batch_size besides numbers."""
Arguments = TypeVar("Arguments", dict[str, Any], list[Any])


def _seconds(value: Any) -> Any:
    pattern = f"{_NUMBER}([smhd])\\s*"
    if isinstance(value, str) and (match := re.fullmatch(pattern, value)):
        return float(match[1]) * _UNITS[match[2]]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("must be seconds, or a number with a unit such as 90s, 30m, 2h, 1d")
    return value


def _bytes(value: Any) -> Any:
    pattern = f"{_NUMBER}({'|'.join(_BYTE_UNITS)})\\s*"
    if isinstance(value, str) and (match := re.fullmatch(pattern, value)):
        return int(min(float(match[1]) * _BYTE_UNITS[match[2]], 2**61))
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"must be bytes, or a number with a unit: {', '.join(_BYTE_UNITS)}")
    return value


def _or_unit(number: dict[str, Any], units: typing.Iterable[str]) -> WithJsonSchema:
    text = {"type": "string", "pattern": f"^{_NUMBER}({'|'.join(units)})\\s*$"}
    return WithJsonSchema({"anyOf": [number, text]})


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(gt=0, le=10**9),
    _or_unit({"type": "number", "exclusiveMinimum": 0, "maximum": 10**9}, _UNITS),
]
Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(ge=2**20, le=2**60),
    _or_unit({"type": "integer", "minimum": 2**20, "maximum": 2**60}, _BYTE_UNITS),
]


class Section(BaseModel):
    """Section of a study file; it refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def in_home(path: str) -> str:
    """Return a path with the user's home written out, if that is known."""
    if not path.startswith("~/"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        return path


def finite(args: Arguments) -> Arguments:
    """Return arguments that can be stored.

    Raises:
        ValueError: a number in them is not finite.
    """
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
        "device (gloo). Default: 1 where the machine has enough, or any node of a cluster has one, "
        "else 0.",
    )
    nodes: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Nodes that the ranks of a trial are spread over, evenly; more than one needs "
        "a launcher of several. Default: as few as they fit on.",
    )
    cpus_per_worker: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="CPUs reserved per rank. A workload in code also gets this many threads; a script "
        "keeps the thread count of its launch command. If unset and a script has more ranks than the "
        "node has CPUs, the ranks share them.",
    )
    memory_per_worker: Bytes | None = Field(
        default=None, description="Limit per rank, e.g. 4GiB; beyond it a trial is out of memory."
    )
    max_concurrent_trials: int | None = Field(
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
        "CPU, the processor's model. Default: of several kinds, that on which most ranks "
        "can run.",
    )

    @property
    def known_workers(self) -> int | None:
        """Return the ranks of a trial; None if the machine decides."""
        return None if self.workers == "auto" else self.workers


class ObjectiveSpec(Section):
    """Objective that is maximised."""

    metric: Literal[
        "samples_per_second", "tokens_per_second", "steps_per_second", "samples_per_joule"
    ] = Field(
        default="samples_per_second",
        description="steps_per_second: optimizer steps, for scripts whose batches have different "
        "numbers of samples. Where a script keeps its global batch, tokens_per_second compares "
        "samples: other micro-batches have other padding. samples_per_joule: the least energy per "
        "sample, as the devices measure it (NVML; on the CPU Intel RAPL).",
    )
    power_limit: float | None = Field(
        default=None,
        gt=0,
        le=10**5,
        description="Watts of a device (on the CPU: of the processors of a node), on average over the "
        "timed blocks of a run. A configuration that takes more is not recommended; the baseline is "
        "measured all the same.",
    )
    global_batch_size: Annotated[int, Field(ge=1)] | Literal["fixed", "free"] = Field(
        default=FIXED,
        description="Samples per optimizer step over all ranks. fixed: only configurations with exactly "
        "the baseline's compete, so that the winner trains the same, faster; a number: the same, said "
        "in figures; free: any may win, and then needs a new learning rate.",
    )

    batch_dependent: Literal["reject", "allow"] = Field(
        default="reject",
        description="Where a layer or loss computes over all rows of a micro-batch together "
        "(BatchNorm, contrastive losses), another micro-batch trains something else, though the global "
        "batch is the same; so it does where a script trains by SGD and does not divide its loss by the "
        "accumulation steps, or derives its learning rate from the micro-batch. reject: it is not "
        "recommended; allow: it is, and the verdict says so.",
    )

    expected_job_hours: float = Field(
        default=168.0,
        gt=0,
        le=10**6,
        description="Hours that the job trains; by default a week: the search ends when another "
        "trial costs more than its expected gain would save it (sampler: model).",
    )

    price_per_device_hour: float | None = Field(
        default=None,
        gt=0,
        le=10**6,
        description="Price of an hour of one device, in a currency of your choice: reports then say "
        "what the recommendation saves, and what the study cost, in money.",
    )

    @property
    def of_energy(self) -> bool:
        """Return whether the work is divided by energy instead of time."""
        return self.metric == "samples_per_joule"

    @property
    def energy_setting(self) -> str:
        """Return the field that needs the energy of every block; empty if none does."""
        if self.of_energy:
            return "metric"
        return "" if self.power_limit is None else "power_limit"

    @property
    def reads_energy(self) -> bool:
        """Return whether the energy of every block has to be known."""
        return bool(self.energy_setting)


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
        "result is reserved first.",
    )
    min_improvement: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="The search ends when another trial is expected to bring less than this share of "
        "throughput (sampler: model), or less than noise lets one see; 0: never for that reason. "
        "Default: what a trial takes of objective.expected_job_hours.",
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

    block_seconds: Seconds = Field(
        default=1.0,
        description="Length of a timed block. Default: 1.0; on CUDA 0.25, or 1.0 for the metric "
        "samples_per_joule. A value that stands here holds everywhere.",
    )
    min_steps: int = Field(
        default=5,
        ge=1,
        le=10000,
        description="Optimizer steps in a block; fewer where steps are long. Default: 5; on CUDA 2. A "
        "value that stands here holds everywhere.",
    )
    warmup: Seconds = Field(
        default=20.0,
        description="Longest warm-up before timing counts. Default: 20.0; on CUDA the warm-up then has "
        "5 blocks at most. A value that stands here is the only limit everywhere.",
    )
    max_measure_time: Seconds = Field(
        default=30.0,
        description="Longest timing after the warm-up, kept within a tenth or one step.",
    )
    search_ci_half_width: float = Field(
        default=0.02, gt=0, lt=1, description="Relative 95 % half-width at which a trial ends."
    )
    confirm_ci_half_width: float = Field(
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
    ablation_rounds: int = Field(
        default=3,
        ge=0,
        le=50,
        description="Rounds in which the winner runs against itself with one changed knob back at the "
        "baseline each; with two or more, changes that bring nothing go back. 0: none.",
    )
    unverified_numerics: Literal["reject", "allow"] = Field(
        default="reject",
        description="Whether a configuration that may change the loss is recommended (allow) though it "
        "could not be compared with the fp32 reference, because that does not run, or shows nothing.",
    )
    startup_timeout: Seconds = Field(
        default=300.0,
        description="First step done, else HANG; 3 times that where it is compiled, 10 times under "
        "max-autotune. That longer limit is cut to a tenth of budget.wall_time, but never below this "
        "field.",
    )
    step_timeout: Seconds = Field(
        default=60.0,
        description="Every later step done, else HANG; longer where compiled, as startup_timeout.",
    )

    @property
    def rejects_unverified(self) -> bool:
        """Return whether a configuration that could not be checked is not recommended."""
        return self.unverified_numerics == "reject"


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
