"""Configurations that may not be recommended, whatever their speed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from autotune.analysis import gate
from autotune.analysis.memory import outgrown
from autotune.analysis.sameness import ChangeKind, Comparison, Rules
from autotune.config import StudySpec
from search_spaces.knob import Knobs
from storage import Attempts, Blocks


@dataclass(frozen=True)
class Barred:
    """Configurations of a study that may not be recommended.

    Attributes:
        trials: trials that outgrow the memory, or are not shown to train the same, with the reason.
        kinds: kinds of configurations of which a trial was refused, with the fastest such trial;
            others of the kind would be refused alike.
        numerics: trials that the numerics gate refuses, with the knobs without which one may pass.
    """

    trials: Mapping[int, str] = field(default_factory=dict)
    kinds: Mapping[ChangeKind, int] = field(default_factory=dict)
    numerics: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def by(
        cls,
        attempts: Attempts,
        blocks: Blocks,
        baseline: Mapping[str, Any],
        rules: Rules,
    ) -> Self:
        """Return what the records of a study show.

        Args:
            baseline: a value for every knob.
        """
        unverified = gate.unverified(attempts, blocks, baseline) if rules.reject_unverified else {}
        other = Comparison(attempts, blocks, baseline, rules).objections()
        memory = dict.fromkeys(outgrown(attempts), "it takes more memory than there is")
        reasons = {trial: objection.reason for trial, objection in other.items()}
        slowest_first = reversed(other.items())
        kinds = {objection.kind: trial for trial, objection in slowest_first if objection.kind}
        numerics = gate.refused_knobs(attempts, unverified, baseline)
        return cls({**memory, **unverified, **reasons}, kinds, numerics)

    @classmethod
    def of_study(cls, attempts: Attempts, blocks: Blocks, spec: StudySpec) -> Self:
        """Return what the records of a study show, by its settings."""
        return cls.by(attempts, blocks, spec.full_baseline(), Rules.of(spec))

    def covers(self, knobs: Knobs, baseline: Knobs) -> bool:
        """Return whether a configuration is of a kind of which a trial was refused."""
        return any(kind.includes(knobs, baseline) for kind in self.kinds)
