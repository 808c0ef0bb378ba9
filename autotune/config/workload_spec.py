"""Contract of the workloads of a study: everything that depends on the kind of code that trains."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from autotune.config import arguments, mistakes
from autotune.config.sections import Section
from autotune.worker.protocol import TrialRequest
from search_spaces import CATALOGUE

_NO_SETTINGS = "is for scripts only; take it out"


@dataclass(frozen=True)
class StudyKnobs:
    """Knobs of a study, as its workload is given them.

    Attributes:
        values: values to try per knob, those of the study's own knobs as well.
        own: names of the study's own knobs.
        flags: setting by which the workload takes each knob that it sets by itself.
        given: baseline as the study gives it.
        fixed_batch: whether only configurations with the baseline's global batch compete.
        counts: unit that is counted per second: samples, tokens or steps.
        variables: of the environment, as the study sets them.
        workers: ranks; None: only the machine decides.
    """

    values: Mapping[str, Sequence[Any]]
    own: Collection[str]
    flags: dict[str, str]
    given: Mapping[str, Any]
    baseline: Mapping[str, Any]
    fixed_batch: bool
    counts: str
    variables: Mapping[str, str]
    workers: int | None


@dataclass(frozen=True)
class Stated:
    """Present number of a setting, as a study states it apart from the setting itself.

    Attributes:
        place: in the study.
        setting: that has the number at present.
        text: the statement, for messages.
    """

    place: mistakes.FieldPath
    setting: str
    number: int
    text: str


class WorkloadSpec(Section, ABC):
    """Workload of a study: a factory, a script or a command, see `autotune.config.workload_kinds`.

    Code outside this package asks the workload instead of its kind. What is not abstract is as it is
    for a workload of autotune's contract.
    """

    noun: ClassVar[str]
    """Word for it in messages."""
    reusable: ClassVar[bool] = True
    """True if its ranks can build it again, so that a warm worker takes another configuration."""
    observable: ClassVar[bool] = True
    """True if its ranks are started here: their steps are seen, counted, profiled and paused."""
    shares_cpus: ClassVar[bool] = False
    """True if its ranks share processors as under the user's own launcher, unless told otherwise."""
    may_ignore_knobs: ClassVar[bool] = False
    """True if a knob may have no effect in it, which is to be found out."""
    pads: ClassVar[bool] = False
    """True if its tokens are counted by its batches, which may hold padding."""
    run_words: ClassVar[tuple[str, ...] | None] = None
    """Words behind the file in `autotune run FILE`; None if the job loads the file in its code."""
    own_knobs_refused: ClassVar[str] = ""
    """Reason why a study over it cannot have knobs of its own; empty if it can."""

    # Names

    @property
    @abstractmethod
    def label(self) -> str:
        """Return a text for the workload, for messages and records."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of the script."""
        return ()

    @property
    def given(self) -> dict[str, Any] | list[Any]:
        """Return the arguments as they stand in the study file; an empty mapping if there are none."""
        return {}

    # Processes

    @property
    def discards_writes(self) -> bool:
        """Return whether what its trials write to files is discarded."""
        return False

    def ranks(self, wanted: int | None) -> int | None:
        """Return the ranks of a trial if so many are wanted; None: the machine decides."""
        return wanted

    def launched_by(self, workers: int | None) -> str | None:
        """Return the launcher whose rules the ranks follow; None if it is no launcher of scripts.

        Args:
            workers: number of ranks; None: as many as the machine has devices.
        """
        return None

    def interpreter_options(self, workers: int | None) -> Sequence[str] | None:
        """Return the options of the interpreter that runs the user's code; None: those of autotune.

        Args:
            workers: number of ranks, if known.
        """
        return None

    # Knobs

    def problems(self) -> mistakes.Problems:
        """Return the mistakes in several of its fields together."""
        return {}

    def knob_problems(self, knobs: StudyKnobs) -> mistakes.Problems:
        """Return mistakes: knobs that nothing can set, and unknown present values."""
        return {}

    def file_problems(self, knobs: StudyKnobs) -> mistakes.Problems:
        """Return mistakes in a study file that studies stored by an earlier version may have.

        They can be read all the same.
        """
        return {}

    def stated(self, knobs: StudyKnobs) -> Iterator[Stated]:
        """Yield the present numbers that the study states apart from the settings that have them."""
        yield from ()

    @staticmethod
    def flag_problem(flag: str) -> str:
        """Return the mistake in the setting of a knob."""
        return _NO_SETTINGS

    @staticmethod
    def own_flag_problem(name: str, flag: str | None) -> str:
        """Return the mistake in the setting of one of the study's own knobs."""
        return _NO_SETTINGS

    def nodes_problem(self, nodes: int) -> str:
        """Return the mistake in the number of nodes."""
        return ""

    def workers_problem(self, workers: int | None) -> str:
        """Return the mistake in the number of ranks, if it is given."""
        return ""

    @property
    def settings_by_knob(self) -> dict[str, str]:
        """Return knob -> setting that sets it, or the first one of several."""
        return {}

    def present(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of catalogue knobs that its arguments or its environment have.

        Args:
            variables: of the environment, as the study sets them.
        """
        return {}

    def rules(self, baseline: Mapping[str, Any]) -> Iterator[str]:
        """Yield constraints that its settings put on knobs.

        Args:
            baseline: a value for every knob.
        """
        yield from ()

    def knows_batch(self, given: Collection[str]) -> bool:
        """Return whether the micro-batch of the baseline is known.

        Args:
            given: names of knobs whose present value the study gives.
        """
        return True

    def can_set(self, name: str, flags: Collection[str]) -> bool:
        """Return whether a configuration can have another value of a knob.

        Args:
            flags: names of the knobs of the study that the workload sets by itself.
        """
        return True

    def beyond_reach(self, searched: Collection[str]) -> list[str]:
        """Return the catalogue knobs that cannot act on it; `searched`: names in the search space."""
        return []

    def passed_by(self, name: str, flags: Mapping[str, str]) -> str | None:
        """Return the setting by which it takes a knob; None if the knob acts from outside."""
        return flags.get(name)

    # Trials

    @abstractmethod
    def request(self, asked: TrialRequest, knobs: StudyKnobs) -> TrialRequest:
        """Return the request of a trial with what trains in it.

        Args:
            asked: request with the configuration, for all ranks of the trial.
        """

    def entry(
        self, chosen: Mapping[str, Any], knobs: StudyKnobs, workers: int
    ) -> dict[str, Any] | None:
        """Return how the job gets a recommended configuration, as best.yaml has it under `script`.

        The result is None where the job loads best.yaml itself.

        Args:
            chosen: recommended value of every knob.
            workers: number of ranks that it was measured with.
        """
        return None


class ForeignWorkload(WorkloadSpec):
    """Script or command that was not written for autotune."""

    flags: dict[str, str] = Field(
        default_factory=dict,
        description="Knobs that the script turns by itself: for each `--flag`, `key=`, `$VARIABLE`, or "
        "a field of a file that it reads: `config.yaml::a.field`, `--config::a.field`.",
    )
    keeps_global_batch: bool = Field(
        default=False,
        description="Whether the script keeps its global batch by itself: told one of micro_batch and "
        "accumulation_steps, it derives the other. Map that one alone, and say both under `baseline`.",
    )
    may_write: bool = Field(
        default=False,
        description="Whether trials of a script or a command may change files: else what they write is "
        "discarded, and a study that cannot be protected so does not start.",
    )

    reusable = False
    shares_cpus = True
    may_ignore_knobs = True
    pads = True

    @property
    def discards_writes(self) -> bool:
        return not self.may_write

    @property
    def settings_by_knob(self) -> dict[str, str]:
        return self.flags

    def knows_batch(self, given: Collection[str]) -> bool:
        return "micro_batch" in {*self.settings_by_knob, *given}

    def can_set(self, name: str, flags: Collection[str]) -> bool:
        return name in flags

    def beyond_reach(self, searched: Collection[str]) -> list[str]:
        return [name for name in CATALOGUE if name not in searched]

    def file_problems(self, knobs: StudyKnobs) -> mistakes.Problems:
        """Return the mistakes: settings that turn a knob, and another one as well."""
        problems: mistakes.Problems = {}
        turned: dict[str, str] = {}
        for place, knob, setting in self._settings(knobs):
            names = arguments.names(setting)
            if other := next((turned[name] for name in names if name in turned), None):
                problems[place] = f"is what {other} is turned by as well; leave one of them"
            turned.update(dict.fromkeys(names, knob))
        return problems

    def _settings(self, knobs: StudyKnobs) -> Iterator[tuple[mistakes.FieldPath, str, str]]:
        """Yield each setting with its place in the study and its knob."""
        for knob, setting in self.flags.items():
            yield ("workload", "flags", knob), knob, setting
        for knob, setting in knobs.flags.items():
            if knob in knobs.own:
                yield ("knobs", knob, "flag"), knob, setting

    def _flag_problems(self) -> mistakes.Problems:
        """Return the mistakes in `flags`."""
        return {
            ("workload", "flags", knob): problem
            for knob, flag in self.flags.items()
            if (problem := mistakes.unknown_knob(knob) or self.flag_problem(flag))
        }
