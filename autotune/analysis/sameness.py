"""Checks that a finalist trains on the same data, gradient graph and batch statistics as the baseline.

Pure functions over reports of the ranks' first steps. The number format has a gate
of its own: autotune.analysis.gate.
"""

import enum
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autotune.analysis.finalists import fastest_first
from autotune.analysis.first_updates import (
    FirstUpdates,
    grows_with_gradient,
    is_sum,
    other_gradient,
    other_rate,
)
from autotune.analysis.policy import PROOF
from autotune.analysis.wording import counted, difference
from autotune.config.study import StudySpec
from autotune.measurement.policy import GATE
from autotune.worker.protocol import CHECKED_STEPS
from search_spaces import CATALOGUE
from search_spaces.batch import ACCUMULATION, BATCH_KNOBS, is_other_split
from search_spaces.knob import DATA, GRAPH, STATISTICS, Knob, Knobs, KnobValue
from search_spaces.numerics import own_knobs
from storage import Attempts, Blocks, Purpose, StoredAttempt

_OF_SAME_ROWS = (Purpose.SEARCH, Purpose.CALIBRATE, Purpose.PAIRED, Purpose.EPOCHS)
"""Purposes of runs with the seed of the search."""
_TELLING = (*_OF_SAME_ROWS, Purpose.CONFIRM)
"""Purposes of runs with the configuration of their trial, in its own number formats."""
_ALLOW = "objective.batch_dependent: allow would recommend it all the same"
_ZEROED = (
    "an optimizer skips a parameter without a gradient, and updates one whose gradient is zero "
    "(set_to_none)"
)
_PROMISES = (("find_unused_parameters", False), ("static_graph", True))
"""Values that hold only where every step trains the same parameters."""


class ChangeKind(enum.Enum):
    """Kind of configurations that differ from the baseline alike: a check refuses all, or none."""

    STATISTICS = enum.auto()
    """Other statistics over the rows of a micro-batch."""
    SPLIT = enum.auto()
    """Another split of the baseline's global batch."""
    WORKERS = enum.auto()
    """Another number of loader workers."""
    KEPT_WORKERS = enum.auto()
    """Loader workers that stay from epoch to epoch."""
    PROMISE = enum.auto()
    """A promise that every step trains the same parameters."""

    def includes(self, knobs: Knobs, baseline: Knobs) -> bool:
        """Return whether a configuration is of this kind."""
        return _INCLUDES[self](knobs, baseline)


class Objection(NamedTuple):
    """Reason why a trial is refused.

    Attributes:
        kind: kind of configurations that it holds for; None: it is known of the trial alone.
    """

    reason: str
    kind: ChangeKind | None = None


@dataclass(frozen=True)
class Rules:
    """Rules for recommending a configuration that is not shown to train the same.

    Attributes:
        reject_unverified: refuse what could not be compared with the reference.
        reject_batch_dependent: refuse another micro-batch where a layer or loss computes over its rows.
    """

    reject_unverified: bool = True
    reject_batch_dependent: bool = True

    @classmethod
    def of(cls, spec: StudySpec) -> "Rules":
        """Return the rules of a study."""
        return cls(
            reject_unverified=spec.measurement.rejects_unverified,
            reject_batch_dependent=spec.objective.batch_dependent == "reject",
        )


@dataclass(frozen=True)
class Seen:
    """Observations of the runs of one configuration.

    Rows and first updates are those of runs with the seed of the search: rounds of the confirmation draw
    other rows.

    Attributes:
        consumed: the rows of each run's first steps, of those that told it; see
            autotune.worker.inject.rows.together.
        unused: parameters without a gradient in one of these steps.
        spread: largest relative difference between replicas after them.
        batch_dependent: what computes over the rows of a micro-batch together, in words.
        epochs: number of epochs that began with the loader workers of an earlier one.
        stale: what the script had changed in their dataset by then.
        updates: size of its first updates.
        of_script: True if a run of a script has come as far as to tell all this; the built-in loop
            tells `batch_dependent` alone.
    """

    consumed: tuple[Mapping[str, Any], ...] = ()
    unused: int = 0
    spread: float = 0.0
    batch_dependent: str = ""
    epochs: int = 0
    stale: tuple[str, ...] = ()
    updates: FirstUpdates = field(default_factory=FirstUpdates)
    of_script: bool = False

    @classmethod
    def of(cls, runs: Iterable[StoredAttempt], blocks: Blocks) -> "Seen":
        """Return what these runs show."""
        told = [(run.purpose, block.observed) for run in runs for block in blocks(run.id)]
        observed = [one for _, one in told]
        known = [one for one in observed if "unused_parameters" in one]
        of_same_rows = (one for purpose, one in told if purpose in _OF_SAME_ROWS)
        same_rows = [one for one in of_same_rows if "unused_parameters" in one]
        return cls(
            consumed=tuple(one["consumed"] for one in same_rows if "consumed" in one),
            unused=max((one.get("unused_parameters", 0) for one in known), default=0),
            spread=max((one.get("replica_spread", 0.0) for one in known), default=0.0),
            batch_dependent=next(filter(None, (o.get("batch_dependent") for o in observed)), ""),
            epochs=max((one.get("epochs", 0) for one in observed), default=0),
            stale=next((tuple(one["stale"]) for one in observed if one.get("stale")), ()),
            updates=FirstUpdates.of(same_rows),
            of_script=bool(known),
        )


class Comparison:
    """Comparison of the trials of a study with its baseline."""

    def __init__(self, attempts: Attempts, blocks: Blocks, baseline: Knobs, rules: Rules) -> None:
        """Read what the baseline shows."""
        self._attempts = attempts
        self._blocks = blocks
        self._baseline = baseline
        self._rules = rules
        runs = attempts.of(*_TELLING).of_baseline().recorded()
        own = itertools.islice(runs, PROOF.runs_read)
        self._base = Seen.of(own, blocks)

    def refused(self) -> dict[int, str]:
        """Return trials that do not train the same, each with the reason; the fastest first."""
        return {trial: objection.reason for trial, objection in self.objections().items()}

    def objections(self) -> dict[int, Objection]:
        """Return trials that do not train the same, each with the objection; the fastest first."""
        if not (self._base.of_script or self._base.batch_dependent):
            return {}
        runs = self._attempts.searched().measured()
        found = ((run.trial, self._objection(run.trial, run.knobs)) for run in fastest_first(runs))
        return {trial: objection for trial, objection in found if objection}

    def open(self, trial: int, knobs: Knobs) -> list[str]:
        """Return sentences on what is not shown of a trial that is not refused."""
        found = self._open_of_script(trial, knobs) if self._base.of_script else []
        found.append(self._unseen_zeros(knobs))
        names = self._other_statistics(self._seen(trial), knobs)
        if names and self._base.batch_dependent:
            found.append(
                f"The model has {self._base.batch_dependent}, and {', '.join(names)} changes its "
                "statistics: compare how far whole trainings come."
            )
        return [sentence for sentence in found if sentence]

    def _open_of_script(self, trial: int, knobs: Knobs) -> list[str]:
        seen, names = self._seen(trial), _changed(knobs, self._baseline, DATA)
        unverified = self._unverified(names, seen, knobs) if names else ""
        return [self._promise(knobs), unverified, *self._other_updates(seen, knobs)]

    def lacks_epoch(self, trial: int, knobs: Knobs) -> bool:
        """Return whether loader workers of a trial stay, and no second epoch of theirs was seen."""
        keeps = self._base.of_script and _keeps_workers(knobs, self._baseline)
        return keeps and not self._seen(trial).epochs

    def holds_without(self, winner: Knobs, left: Knobs) -> bool:
        """Return whether what the checks find of a configuration holds for what is left of it.

        A knob of the study's own may undo what another knob does to the data. Of the catalogue, the
        exchange of gradients may undo what another batch does to them.
        """
        if not (self._base.of_script or self._base.batch_dependent):
            return True
        before, after = self._looked_at(winner), self._looked_at(left)
        if not after or before == after:
            return True
        if any(name not in CATALOGUE for name in before):
            return False
        same_batch = all(left[name] == self._baseline[name] for name in BATCH_KNOBS)
        return same_batch or all(winner[name] == left[name] for name in _OF_GRADIENTS)

    def _looked_at(self, knobs: Knobs) -> dict[str, Any]:
        """Return the changes for which a check may refuse a configuration, with their values."""
        known = {name for kind in _KINDS for name in _changed(knobs, self._baseline, kind)}
        own = own_knobs(self._baseline, self._attempts.harmless)
        return {
            name: knobs[name]
            for name in (*known, *own, "parallelism")
            if knobs[name] != self._baseline[name]
        }

    def _objection(self, trial: int, knobs: Knobs) -> Objection | None:
        """Return why a trial is refused; None if it is not."""
        kinds = (
            _may_change(knobs, self._baseline, kind, self._attempts.harmless) for kind in _KINDS
        )
        if not (any(kinds) or knobs["parallelism"] != self._baseline["parallelism"]):
            return None
        return next((one for one in self._objections_to(trial, knobs) if one.reason), None)

    def _objections_to(self, trial: int, knobs: Knobs) -> Iterator[Objection]:
        """Yield an objection for each check, without a reason where it finds none."""
        seen = self._seen(trial)
        yield self._of_kind(ChangeKind.STATISTICS, knobs, self._statistics(seen, knobs))
        if not self._base.of_script:
            return
        yield self._of_kind(ChangeKind.WORKERS, knobs, self._copies(seen, knobs))
        yield self._of_kind(ChangeKind.KEPT_WORKERS, knobs, self._stale(seen, knobs))
        yield self._of_kind(ChangeKind.SPLIT, knobs, self._drift(seen))
        yield self._of_kind(ChangeKind.PROMISE, knobs, self._without_gradient(knobs))
        yield Objection(self._zeroed(seen, knobs))
        yield self._updates(seen, knobs)

    def _of_kind(self, kind: ChangeKind, knobs: Knobs, reason: str) -> Objection:
        return Objection(reason, kind if self._blames(kind, knobs) else None)

    def _blames(self, kind: ChangeKind, knobs: Knobs) -> bool:
        """Return whether what is wrong with a trial holds for all configurations of a kind.

        A knob of the study's own may be the cause of it, or its remedy; and replicas drift apart by
        other changes of the gradient graph as well.
        """
        if not kind.includes(knobs, self._baseline):
            return False
        if kind in _BY_THE_SCRIPT and own_knobs(self._baseline, self._attempts.harmless):
            return False
        causes = _OTHER_CAUSES.get(kind, ())
        return all(knobs[name] == self._baseline[name] for name in causes)

    def _copies(self, seen: Seen, knobs: Knobs) -> str:
        several = [one for one in seen.consumed if self._repeats(one)]
        if not several or not _may_change(knobs, self._baseline, DATA, self._attempts.harmless):
            return ""
        copies, rows = several[0]["copies"], several[0]["counted"]
        return (
            f"{copies} of {rows} rows in its first {CHECKED_STEPS} steps have come before in the same "
            f"epoch, of yours {max(one['copies'] for one in self._base.consumed)}: every loader worker "
            "reads all rows of an IterableDataset that does not share them "
            "(torch.utils.data.get_worker_info)"
        )

    def _repeats(self, consumed: Mapping[str, Any]) -> bool:
        """Return whether more rows come again than chance brings, at the baseline's few copies."""
        base = [one for one in self._base.consumed if one["counted"]]
        if not base or any(one["copies"] > PROOF.usual_copies * one["counted"] for one in base):
            return False
        least = max(one["copies"] * (consumed["counted"] / one["counted"]) ** 2 for one in base)
        return bool(
            consumed["copies"] - least
            > max(PROOF.chance_copies, PROOF.copies_deviations * math.sqrt(least))
        )

    def _stale(self, seen: Seen, knobs: Knobs) -> str:
        if not seen.stale or not _keeps_workers(knobs, self._baseline):
            return ""
        names = ", ".join(seen.stale[:3])
        return (
            f"the script changes {names} from epoch to epoch, and loader workers that stay do not see "
            "it: every epoch would have the rows of the first one"
        )

    def _drift(self, seen: Seen) -> str:
        if not seen.spread > GATE.replica_difference >= self._base.spread:
            return ""
        return (
            f"the ranks' models drift apart in its first {CHECKED_STEPS} steps (relative difference "
            f"{seen.spread:.1e}): the gradients of some micro-batches are not exchanged"
        )

    def _without_gradient(self, knobs: Knobs) -> str:
        if not (_promised(knobs, self._baseline) and self._base.unused):
            return ""
        parameters = counted(self._base.unused, "parameter")
        return (
            f"{parameters} of your model had no gradient in one of the first {CHECKED_STEPS} steps, "
            "and DistributedDataParallel then ends the job, or trains them wrongly"
        )

    def _zeroed(self, seen: Seen, knobs: Knobs) -> str:
        """Return why other updates of parameters that a step leaves out are a reason to refuse."""
        unused = max(seen.unused, self._base.unused)
        if knobs["set_to_none"] == self._baseline["set_to_none"] or not unused:
            return ""
        return (
            f"{counted(unused, 'parameter')} had no gradient in one of the first {CHECKED_STEPS} steps: "
            f"{_ZEROED}"
        )

    def _unseen_zeros(self, knobs: Knobs) -> str:
        """Return what is not shown where nothing tells which parameters a step leaves out."""
        if self._base.of_script or knobs["set_to_none"] == self._baseline["set_to_none"]:
            return ""
        return f"Not verified: whether every step gives every parameter a gradient; otherwise {_ZEROED}."

    def _other_statistics(self, seen: Seen, knobs: Knobs) -> list[str]:
        """Return knobs that change the rows over which something is computed together.

        Whether parallelism does may depend on the device: a rank then tells of other rows.
        """
        names = _changed(knobs, self._baseline, STATISTICS)
        alike = seen.batch_dependent in ("", self._base.batch_dependent)
        moved = knobs["parallelism"] != self._baseline["parallelism"]
        return names if alike or not moved else list(dict.fromkeys([*names, "parallelism"]))

    def _statistics(self, seen: Seen, knobs: Knobs) -> str:
        names = self._other_statistics(seen, knobs)
        what = self._base.batch_dependent
        if not (names and what and self._rules.reject_batch_dependent):
            return ""
        return f"the model has {what}, and {', '.join(names)} changes its statistics; {_ALLOW}"

    def _updates(self, seen: Seen, knobs: Knobs) -> Objection:
        """Return why its updates are not the baseline's, unless the study allows it.

        Gradients of other rows may lie apart by chance: only if they do so as losses that are summed
        make them, no other split is worth a trial.
        """
        if not self._rules.reject_batch_dependent:
            return Objection("")
        if reason := self._other_rate(seen, knobs):
            return self._of_kind(ChangeKind.SPLIT, knobs, f"{reason}; {_ALLOW}")
        reason = self._other_gradient(seen, knobs)
        if not (reason and grows_with_gradient(seen.updates.optimizer)):
            return Objection("")
        surely = is_sum(seen.updates, self._base.updates, knobs, self._baseline)
        objection = self._of_kind(ChangeKind.SPLIT, knobs, f"{reason}; {_ALLOW}")
        return objection if surely else Objection(objection.reason)

    def _other_rate(self, seen: Seen, knobs: Knobs) -> str:
        return other_rate(seen.updates, self._base.updates, knobs, self._baseline)

    def _other_gradient(self, seen: Seen, knobs: Knobs) -> str:
        return other_gradient(seen.updates, self._base.updates, knobs, self._baseline)

    def _other_updates(self, seen: Seen, knobs: Knobs) -> Iterator[str]:
        """Yield sentences on updates of a trial that is not refused."""
        if reason := self._other_rate(seen, knobs):
            yield f"With this split {reason}."
        if reason := self._other_gradient(seen, knobs):
            known = grows_with_gradient(seen.updates.optimizer)
            harmless = (
                "; an update that scales it back, as Adam's, is alike unless the norm is clipped"
            )
            yield f"With this split {reason}{'' if known else harmless}."

    def _promise(self, knobs: Knobs) -> str:
        promised = _promised(knobs, self._baseline)
        if not promised:
            return ""
        return (
            f"{difference(promised, {})} holds only while every step trains the same parameters: in "
            f"{CHECKED_STEPS} steps all had a gradient, but a later step that leaves one out ends the "
            "job. Keep your value where the model chooses what it computes by its data."
        )

    def _unverified(self, names: Sequence[str], seen: Seen, knobs: Knobs) -> str:
        if _keeps_workers(knobs, self._baseline) and not seen.epochs:
            return (
                "Not verified: whether the script changes the dataset between epochs, which loader "
                "workers that stay do not see; no second epoch was reached."
            )
        if why := _why_not_equal(self._base.consumed, seen.consumed):
            return f"Not verified: whether {', '.join(names)} leaves the data as it is; {why}."
        return ""

    def _seen(self, trial: int) -> Seen:
        return Seen.of(self._attempts.of(*_TELLING).of_trial(trial).recorded(), self._blocks)


_KINDS = (DATA, GRAPH, STATISTICS)
_OF_GRAPH = tuple(name for name, knob in CATALOGUE.items() if GRAPH in knob.changes)
_OF_GRADIENTS = (*BATCH_KNOBS, *_OF_GRAPH, "parallelism")
"""Knobs that decide what gradients are computed and exchanged."""
_BY_THE_SCRIPT = (ChangeKind.WORKERS, ChangeKind.KEPT_WORKERS, ChangeKind.SPLIT)
"""Kinds that are refused for what the script does with such a configuration."""
_OTHER_CAUSES = {
    ChangeKind.SPLIT: ("parallelism", *(name for name in _OF_GRAPH if name != ACCUMULATION))
}
"""Knobs that may bring about, by themselves, what a kind is refused for."""


def _changed(knobs: Knobs, baseline: Knobs, kind: str) -> list[str]:
    """Return knobs of the catalogue that may change this, and differ.

    Knobs that change the training on purpose are left out: the verdict names them anyway.
    """
    return [
        name
        for name, knob in CATALOGUE.items()
        if kind in knob.changes and name not in _ON_PURPOSE and knobs[name] != baseline[name]
        if kind != STATISTICS or not _alike(knob, knobs[name], baseline[name])
    ]


def _alike(knob: Knob, *values: KnobValue) -> bool:
    """Return whether the batch statistics are the same under these values of a knob."""
    return any(group.issuperset(values) for group in map(frozenset, knob.same_statistics))


_ON_PURPOSE = ("layer_keep", "curriculum_start", "curriculum_share")


def _may_change(knobs: Knobs, baseline: Knobs, kind: str, harmless: Collection[str]) -> bool:
    """Return whether a knob that differs may change this; the study's own may unless harmless."""
    own = own_knobs(baseline, harmless)
    return bool(_changed(knobs, baseline, kind)) or any(
        knobs[name] != baseline[name] for name in own
    )


def _keeps_workers(knobs: Knobs, baseline: Knobs) -> bool:
    name = "persistent_workers"
    return bool(knobs[name] and not baseline[name] and knobs["num_workers"])


def _promised(knobs: Knobs, baseline: Knobs) -> dict[str, Any]:
    """Return promises of a static graph that the baseline does not give."""
    return {
        name: value for name, value in _PROMISES if knobs[name] == value and baseline[name] != value
    }


_INCLUDES: dict[ChangeKind, Callable[[Knobs, Knobs], bool]] = {
    ChangeKind.STATISTICS: lambda knobs, baseline: bool(_changed(knobs, baseline, STATISTICS)),
    ChangeKind.SPLIT: is_other_split,
    ChangeKind.WORKERS: lambda knobs, baseline: knobs["num_workers"] != baseline["num_workers"],
    ChangeKind.KEPT_WORKERS: _keeps_workers,
    ChangeKind.PROMISE: lambda knobs, baseline: bool(_promised(knobs, baseline)),
}


def _why_not_equal(base: Sequence[Mapping[str, Any]], run: Sequence[Mapping[str, Any]]) -> str:
    """Return why two configurations are not known to train on the same rows; empty if they are."""
    if not base or not run:
        return "the rows of its first steps, or of yours, were not seen"
    if any(_equal(one, other) for one in base for other in run):
        return ""
    if not all(_equal(base[0], other) for other in base[1:]):
        return "their order is not seeded"
    return "its first steps train on other rows than yours"


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether rows are equal by content or, as augmentation draws anew, by index."""
    same = one["contents"] == other["contents"]
    indexed = bool(one["indices"]) and one["indices"] == other["indices"]
    return one["rows"] == other["rows"] and (same or indexed)
