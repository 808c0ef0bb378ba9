"""Kinds of workload: which one a section of a study file is, and the one of autotune's contract."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, field_validator

from autotune.config import mistakes
from autotune.config.commands import CommandWorkload
from autotune.config.mistakes import Problems
from autotune.config.scripts import ScriptWorkload
from autotune.config.sections import finite
from autotune.config.workload_spec import StudyKnobs, WorkloadSpec
from autotune.worker.protocol import TrialRequest
from autotune.workloads import BUILT_IN


class FactoryWorkload(WorkloadSpec):
    """Workload that a function of the contract builds in every rank."""

    name: str = Field(
        description="A built-in workload, or `module:function` of a factory of your own."
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the factory."
    )

    noun = "workload"
    own_knobs_refused = "are arguments of a script, and no script is trained; take it out"
    may_write: ClassVar[bool] = False
    """False: the study file does not say it. Its trials write as the user's code does."""
    keeps_global_batch: ClassVar[bool] = False
    samples: ClassVar[None] = None

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
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
    def _finite(cls, args: dict[str, Any]) -> dict[str, Any]:
        return finite(args)

    @property
    def factory(self) -> str:
        """Return `module:function`."""
        return BUILT_IN.get(self.name, self.name)

    @property
    def label(self) -> str:
        return self.name

    @property
    def given(self) -> dict[str, Any]:
        return self.args

    def request(self, asked: TrialRequest, knobs: StudyKnobs) -> TrialRequest:
        """Return the request of a trial whose ranks call the factory."""
        return spread(dataclasses.replace(asked, factory=self.factory, args=dict(self.args)))


def spread(asked: TrialRequest) -> TrialRequest:
    """Return the trial; under DataParallel one rank does all work with the resources of all."""
    if asked.knobs["parallelism"] != "data_parallel":
        return asked
    ranks, limit = asked.world_size, asked.memory_per_rank
    return dataclasses.replace(
        asked,
        world_size=1,
        replicas=ranks,
        cpus_per_rank=ranks * asked.cpus_per_rank,
        memory_per_rank=ranks * limit if limit and asked.device == "cpu" else limit,
    )


# The kind of a section

_KINDS: dict[str, type[FactoryWorkload | ScriptWorkload | CommandWorkload]] = {
    "name": FactoryWorkload,
    "script": ScriptWorkload,
    "module": ScriptWorkload,
    "command": CommandWorkload,
}
"""Kind of the workload by the field that only this kind has."""
_FIELDS = tuple(dict.fromkeys(field for kind in _KINDS.values() for field in kind.model_fields))


def kind_of(
    section: Mapping[str, Any],
) -> type[FactoryWorkload | ScriptWorkload | CommandWorkload]:
    """Return the kind of a section as it stands in a file; a factory's if it says none."""
    return next(
        (kind for field, kind in _KINDS.items() if section.get(field) is not None), FactoryWorkload
    )


def _tag(section: Any) -> str:
    kind = kind_of(section) if isinstance(section, dict) else type(section)
    known = kind if kind in _KINDS.values() else FactoryWorkload
    return mistakes.tag_of(known)


AnyWorkload = Annotated[
    Annotated[FactoryWorkload, Tag(mistakes.tag_of(FactoryWorkload))]
    | Annotated[ScriptWorkload, Tag(mistakes.tag_of(ScriptWorkload))]
    | Annotated[CommandWorkload, Tag(mistakes.tag_of(CommandWorkload))],
    Discriminator(_tag),
]
"""The workload of a study file: one of the three kinds."""


def of_one_kind(section: Any) -> tuple[Any, Problems]:
    """Return a section without fields of other kinds, and the mistakes if such fields are set.

    Fields of other kinds that say nothing are allowed: earlier versions stored all of them.

    Args:
        section: as it stands in a file or in a record.
    """
    if not isinstance(section, dict):
        return section, {}
    said = [field for field in _KINDS if section.get(field) is not None]
    if not said:
        return section, _of_no_kind(section)
    kind = _KINDS[said[0]]
    others = {field for field in _FIELDS if field not in kind.model_fields}
    own = {name: value for name, value in section.items() if name not in others}
    if kind is ScriptWorkload and own.get("args") == {}:
        own.pop("args", None)  # stored as an empty mapping by earlier versions
    if len(said) > 1:
        text = f"does not go with {said[0]}; give one of them"
        return own, {("workload", said[1]): text}
    return own, {
        ("workload", name): f"is for {_owners(name)} only; take it out"
        for name, value in section.items()
        if name in others and value
    }


def _of_no_kind(section: Mapping[str, Any]) -> Problems:
    unknown = [name for name in section if name not in _FIELDS]
    if unknown:
        return {("workload", n): mistakes.no_such_field(str(n), _FIELDS) for n in unknown}
    return {("workload", "name"): f"is missing; give one of {', '.join(_KINDS)}"}


def _owners(field: str) -> str:
    return "scripts" if field in ScriptWorkload.model_fields else "commands"
