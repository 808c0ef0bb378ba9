"""study.yaml -> StudySpec. Every mistake names file, line, field and what is allowed."""

import difflib
import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from autotune import document
from autotune.errors import SpecError
from autotune.workloads import BUILT_IN
from search_spaces import CATALOGUE, defaults, preset, preset_names
from search_spaces.constraints import global_batch, refused_global_batch

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTE_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _seconds(value: Any) -> Any:
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([0-9.]+)\s*([smhd])\s*", value)):
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(value, str):
        raise ValueError("must be seconds, or a number with a unit such as 90s, 30m, 2h, 1d")
    return value


def _bytes(value: Any) -> Any:
    pattern = rf"\s*([0-9.]+)\s*({'|'.join(_BYTE_UNITS)})\s*"
    if isinstance(value, str) and (match := re.fullmatch(pattern, value)):
        return int(float(match[1]) * _BYTE_UNITS[match[2]])
    if isinstance(value, str):
        raise ValueError(f"must be bytes, or a number with a unit: {', '.join(_BYTE_UNITS)}")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=10**9)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=2**20)]
Scalar = bool | int | float | str


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class WorkloadSpec(_Section):
    """What is trained."""

    name: str = Field(
        description="A built-in workload, or `module:function` of a factory of your own."
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the factory."
    )

    @property
    def factory(self) -> str:
        """`module:function`."""
        return BUILT_IN.get(self.name, self.name)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name not in BUILT_IN and not re.fullmatch(r"[\w.]+:\w+", self.name):
            close = _did_you_mean(self.name, BUILT_IN)
            raise ValueError(
                f"name must be one of {', '.join(sorted(BUILT_IN))}, or module:function of your "
                f"own factory, got {self.name!r}{close}"
            )
        return self


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

    @property
    def known_workers(self) -> int | None:
        """Ranks of a trial; None if the machine decides."""
        return None if self.workers == "auto" else self.workers


class ObjectiveSpec(_Section):
    """What is maximised."""

    metric: Literal["samples_per_second", "tokens_per_second"] = "samples_per_second"
    global_batch: int | None = Field(
        default=None,
        ge=1,
        description="Samples per optimizer step over all ranks. When set, only configurations "
        "with exactly this global batch compete, so the winner needs no new learning rate.",
    )

    @property
    def unit(self) -> str:
        """Of the metric, for people."""
        return "tokens/s" if self.metric == "tokens_per_second" else "samples/s"


class BudgetSpec(_Section):
    """When the search ends: whichever comes first."""

    trials: int | None = Field(default=30, ge=1, le=10**6, description="Trials, baseline included.")
    wall_time: Seconds | None = Field(
        default=None, description="Running time, e.g. 30m; a quarter is kept for the confirmation."
    )
    device_hours: float | None = Field(
        default=None, gt=0, description="Hours of trials times ranks; confirmation not counted."
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.trials is None and self.wall_time is None and self.device_hours is None:
            raise ValueError("at least one of trials, wall_time, device_hours must be set")
        return self


class MeasurementSpec(_Section):
    """How long each trial is measured. The defaults suit GPUs; the quickstart is shorter."""

    block_seconds: Seconds = Field(default=1.0, description="Length of a timed block.")
    min_steps: int = Field(default=5, ge=1, le=10000, description="Optimizer steps in a block.")
    warmup: Seconds = Field(default=20.0, description="Longest warm-up before timing counts.")
    longest: Seconds = Field(default=30.0, description="Longest timing after the warm-up.")
    search_precision: float = Field(
        default=0.02, gt=0, lt=1, description="Relative 95 % half-width at which a trial ends."
    )
    confirm_precision: float = Field(
        default=0.01, gt=0, lt=1, description="The same for a run of the confirmation."
    )
    finalists: int = Field(default=3, ge=1, le=20, description="Configurations measured again.")
    rounds: int = Field(
        default=5, ge=2, le=50, description="Most rounds of finalists against the baseline."
    )
    startup_deadline: Seconds = Field(default=300.0, description="First step done, else HANG.")
    step_deadline: Seconds = Field(default=60.0, description="Every later step done, else HANG.")


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
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: BudgetSpec = BudgetSpec()
    sampler: Literal["tpe", "gp", "random", "grid"] = Field(
        default="tpe", description="Who suggests the next trial."
    )
    measurement: MeasurementSpec = MeasurementSpec()
    launcher: Literal["local", "ray"] = Field(
        default="local", description="local: this machine; ray: a Ray cluster."
    )
    ray_address: str | None = Field(
        default=None,
        description="Of a running Ray cluster, e.g. 10.0.0.1:6379 or auto. Without one the ray "
        "launcher starts a Ray on this machine.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables of the ranks."
    )
    storage: str = Field(
        default="sqlite:///autotune.db", description="SQLAlchemy URL: SQLite file or PostgreSQL."
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Of data, model and sampler.")
    export: str = Field(default="best.yaml", description="Where the best configuration goes.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [*self._space_problems(), *self._baseline_problems(), *self._other_problems()]
        if problems:
            raise _Located(problems)
        return self

    def values(self) -> dict[str, list[Any]]:
        """The search space: values to try per knob, the preset resolved."""
        if isinstance(self.search_space, str):
            return preset(self.search_space)
        return dict(self.search_space)

    def full_baseline(self) -> dict[str, Any]:
        """The baseline with a value for every knob."""
        return {**defaults(), **self.baseline}

    def _space_problems(self) -> list[tuple[tuple[str | int, ...], str]]:
        if isinstance(self.search_space, str):
            if self.search_space in preset_names():
                return []
            names = preset_names()
            close = _did_you_mean(self.search_space, names)
            known = f"must be a preset ({', '.join(names)}) or a mapping of knobs to values"
            return [(("search_space",), f"{known}, got {self.search_space!r}{close}")]
        if not self.search_space:
            return [(("search_space",), "names no knob; give at least one with values to try")]
        found: list[tuple[tuple[str | int, ...], str]] = []
        for name, values in self.search_space.items():
            path = ("search_space", name)
            if problem := _unknown_knob(name):
                found.append((path, problem))
                continue
            if not values:
                found.append((path, "has no values; give a list with at least one"))
            for index, value in enumerate(values):
                if problem := CATALOGUE[name].domain.problem(value):
                    found.append(((*path, index), f"{problem}, got {value!r}"))
                elif value in values[:index]:
                    found.append(((*path, index), f"has {value!r} twice"))
        return found

    def _baseline_problems(self) -> list[tuple[tuple[str | int, ...], str]]:
        found: list[tuple[tuple[str | int, ...], str]] = []
        for name, value in self.baseline.items():
            problem = _unknown_knob(name)
            if not problem and (wrong := CATALOGUE[name].domain.problem(value)):
                problem = f"{wrong}, got {value!r}"
            if problem:
                found.append((("baseline", name), problem))
        fixed, workers = self.objective.global_batch, self.resources.known_workers
        if fixed is None or workers is None or found:
            return found
        actual = global_batch(self.full_baseline(), workers)
        if actual != fixed and not refused_global_batch(fixed, workers):
            found.append(
                (
                    ("baseline",),
                    f"has a global batch of {actual} (micro_batch x accumulation_steps x workers), "
                    f"but objective.global_batch fixes it at {fixed}; make them agree",
                )
            )
        return found

    def _other_problems(self) -> list[tuple[tuple[str | int, ...], str]]:
        found: list[tuple[tuple[str | int, ...], str]] = []
        fixed, workers = self.objective.global_batch, self.resources.known_workers
        if fixed and workers and (problem := refused_global_batch(fixed, workers)):
            found.append((("objective", "global_batch"), problem))
        if self.ray_address is not None and self.launcher != "ray":
            found.append((("ray_address",), "has no effect without `launcher: ray`; add it"))
        return found


def load(path: Path) -> StudySpec:
    """The study in a file.

    Raises:
        SpecError: with one line per mistake.
    """
    return check(document.read(path))


def check(found: document.Document) -> StudySpec:
    """The study in a document.

    Raises:
        SpecError: with one line per mistake.
    """
    if not isinstance(found.data, dict):
        raise SpecError(
            [f"{found.where(())}: a study file is a mapping with at least `name` and `workload`"]
        )
    data = dict(found.data)
    if isinstance(data.get("workload"), str):
        data["workload"] = {"name": data["workload"]}
    if isinstance(space := data.get("search_space"), dict):
        data["search_space"] = {
            name: values if isinstance(values, list) else [values] for name, values in space.items()
        }
    try:
        return StudySpec.model_validate(data)
    except _Located as located:
        raise SpecError(
            [f"{found.where(path)}: {_dotted(path)}: {text}" for path, text in located.problems]
        ) from None
    except ValidationError as error:
        lines: dict[str, None] = {}  # a union reports a mistake once per member
        for detail in error.errors():
            path = _own_path(detail["loc"], data)
            lines[f"{found.where(path)}: {_dotted(path)}: {_explain(detail, path)}"] = None
        raise SpecError(list(lines)) from None


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
    properties["baseline"].update(properties=knobs, additionalProperties=False)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


class _Located(Exception):
    """Mistakes that concern several fields; passes through pydantic as it is."""

    def __init__(self, problems: list[tuple[tuple[str | int, ...], str]]) -> None:
        super().__init__(str(problems))
        self.problems = problems


def _explain(detail: Any, path: tuple[str | int, ...]) -> str:
    kind, given = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        allowed = _fields_at(path[:-1])
        close = _did_you_mean(str(path[-1]), allowed)
        return f"no such field{close}; allowed: {', '.join(allowed)}"
    if kind == "missing":
        return "is missing"
    text = detail["msg"].removeprefix("Value error, ")
    text = text.removeprefix("Input should be ").removeprefix("a valid ")
    if text == detail["msg"].removeprefix("Value error, "):
        return f"{text}" if "got" in text else f"{text}, got {_short(given)}"
    if kind == "string_type":
        text += " (in quotes if it looks like a number or true/false)"
    return f"must be {text}, got {_short(given)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _own_path(loc: tuple[int | str, ...], data: Any) -> tuple[str | int, ...]:
    """The error's location less pydantic's names of union members."""
    path: list[str | int] = []
    for part in loc:
        inside = isinstance(data, dict) and part in data
        item = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if inside or item:
            path.append(part)
            data = data[part]
        elif isinstance(data, dict) and not _is_member_name(part):
            path.append(part)  # a missing field
            break
    return tuple(path)


def _is_member_name(part: int | str) -> bool:
    return str(part) in ("str", "int", "float", "bool") or "[" in str(part)


def _fields_at(path: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = StudySpec
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
        model = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return list(model.model_fields)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _unknown_knob(name: str) -> str | None:
    if name in CATALOGUE:
        return None
    return f"no such knob{_did_you_mean(name, CATALOGUE)}; knobs: {', '.join(CATALOGUE)}"


def _did_you_mean(word: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "study"
