"""The first trials of a study: a profile of the baseline, then what an expert would try, and why."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.finalists import possibly_faster
from autotune.analysis.findings import Finding, findings
from autotune.analysis.node_speeds import at_home_speed
from autotune.analysis.wording import end_in_words
from autotune.measurement.bottleneck import breakdown
from autotune.runs.monitors import ProfileMonitor
from autotune.search.space import MICRO_BATCH, Space
from autotune.study.context import BASELINE, StudyContext
from autotune.study.policy import STUDY
from autotune.study.run_planner import PlannedAttempt
from autotune.study.runner import Runner
from launchers.site import device_names
from search_spaces import CATALOGUE, KnobValue
from storage import Attempts, AttemptState, Purpose, Recommended, StoredAttempt, TrialLedger

FAVOURED = "what experience favours"
"""Beginning of the reason for the bundle of all that is favoured."""
DEAR = {
    "compile": "default",
    "float8": "tensorwise",
}
"""Knobs whose values are compiled, in the order in which they are tried, one beside the other, on top of
the best configuration -> the value that an expert would try."""


@dataclass(frozen=True)
class Suggestion:
    """A configuration to try early.

    Attributes:
        params: values of the knobs that vary.
    """

    params: dict[str, KnobValue]
    reason: str


@dataclass(frozen=True)
class Place:
    """Workload and machine by which one study's winner is worth a try in another."""

    workload: dict[str, Any]
    """Fields of the study's workload."""
    world_size: int
    devices: tuple[str, ...]
    """Names of the CUDA devices; the model of the processor where there are none."""

    @classmethod
    def of(cls, recommended: Recommended) -> "Place":
        """Return the place of a recommendation."""
        environment = recommended.body["provenance"]["environment"]
        workload = fields_set(recommended.spec["workload"])
        return cls(workload, recommended.body["world_size"], kinds_of_device(environment))


@dataclass(frozen=True)
class Room:
    """Memory that the baseline leaves on a device.

    Attributes:
        peak_bytes: what the baseline takes of it; 0: unknown.
    """

    memory_bytes: float
    peak_bytes: int

    @property
    def growth(self) -> int:
        """Factor by which the micro-batch may grow at once."""
        if not self.peak_bytes:
            return STUDY.most_growth
        return max(
            STUDY.most_growth, int(STUDY.share_of_memory * self.memory_bytes / self.peak_bytes)
        )


def fields_set(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a study's workload that are set: an earlier version knew fewer."""
    return {name: value for name, value in workload.items() if value}


def kinds_of_device(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a node's CUDA devices, else of its processor, from its fingerprint."""
    return tuple(sorted({*device_names(environment)}))


def remembered(
    space: Space,
    baseline: Mapping[str, KnobValue],
    earlier: Sequence[Recommended],
    place: Place,
) -> Suggestion | None:
    """Return what the newest study of the same workload and kind of machine has recommended.

    Only the configuration, as far as it is in this space: it is measured anew. What has to be compiled
    stays as in the baseline: whether there is time for it is not known yet.
    """
    for recommended in earlier:
        if Place.of(recommended) != place:
            continue
        wanted = {**baseline, **recommended.body["knobs"]}
        near = {name: space.nearest(name, wanted[name]) for name in space.distributions()}
        kept = _compiled_anew(baseline, wanted)
        params = {n: baseline[n] if v is None or n in kept else v for n, v in near.items()}
        changed = any(value != baseline[name] for name, value in params.items())
        if changed and not space.problems(params):
            return Suggestion(params, f"study {recommended.study} recommended it here before")
    return None


def _compiled_anew(baseline: Mapping[str, KnobValue], wanted: Mapping[str, KnobValue]) -> set[str]:
    """Return the knobs whose wanted value has to be compiled, and those that act beside it only."""
    dear = {name for name in DEAR if wanted[name] not in (baseline[name], CATALOGUE[name].default)}
    return dear | {
        n for n, knob in CATALOGUE.items() if any(o.other in dear for o in knob.only_with)
    }


def experts(
    space: Space,
    baseline: Mapping[str, KnobValue],
    found: Sequence[Finding],
    unusable: Container[str],
    room: "Room | None",
    cores: float,
) -> list[Suggestion]:
    """Return at most two: an answer to what holds the baseline back most, and all that is favoured.

    What has to be compiled is in neither: it takes long, and a failure would hide what the rest brings.

    Args:
        baseline: a value for every knob.
        found: findings of the baseline.
        unusable: knobs that have nothing to act on in the workload.
        room: on a device where launches are dear: it makes one trial of both; None: elsewhere.
        cores: processors of a rank.
    """
    growth = room.growth if room else STUDY.most_growth
    most = {
        MICRO_BATCH: growth * int(baseline[MICRO_BATCH]),
        "num_workers": max(1.0, cores - STUDY.cores_for_steps),
    }
    favoured = [name for name in CATALOGUE if name not in unusable and name not in DEAR]
    answers = [finding for finding in found if set(finding.knobs) & set(space.distributions())]
    suggestions = []
    if answers and room is None:
        first = answers[0]
        share = f" ({first.share:.0%} of its step)" if first.share is not None else ""
        suggestions.append(
            _suggestion(
                space,
                baseline,
                [name for name in first.knobs if name not in DEAR],
                f"it answers what holds the baseline back{share}: {first.text}",
                most,
            )
        )
    suggestions.append(_suggestion(space, baseline, favoured, FAVOURED, most))
    unique = {tuple(sorted(s.params.items())): s for s in reversed(suggestions) if s is not None}
    return list(reversed(unique.values()))


def _suggestion(
    space: Space,
    baseline: Mapping[str, KnobValue],
    knobs: Sequence[str],
    why: str,
    most: Mapping[str, float],
) -> Suggestion | None:
    """Return the baseline with these knobs at their promising values; None if that is nothing new.

    Args:
        why: what all of them are for.
        most: largest value of a knob.
    """
    params = {name: baseline[name] for name in space.distributions()}
    reasons = []
    for name, value in _promising(space, baseline, knobs, most):
        if space.problems({**params, name: value}):
            continue
        params[name] = value
        reasons.append(f"{name} ({CATALOGUE[name].because})")
    if not reasons:
        return None
    return Suggestion(params, f"{why}; {'; '.join(reasons)}")


def _promising(
    space: Space, baseline: Mapping[str, KnobValue], knobs: Sequence[str], most: Mapping[str, float]
) -> Iterator[tuple[str, KnobValue]]:
    for name in knobs:
        wanted: Any = CATALOGUE[name].promising
        if name not in space.distributions() or wanted is None:
            continue
        value = space.nearest(name, wanted)
        if name in most and (value is None or float(value) > most[name]):
            value = space.largest(name, most[name])
        if value is not None and value != baseline[name]:
            yield name, value


def with_compilation(
    space: Space, best: Mapping[str, KnobValue], tried: Sequence[Mapping[str, KnobValue]]
) -> Suggestion | None:
    """Return the best configuration so far with the next knob that has to be compiled, if any.

    Args:
        best: a value for every knob.
        tried: the same of all trials, those that failed included.
    """
    for name in DEAR:
        if any(knobs[name] != CATALOGUE[name].default for knobs in tried):
            continue
        for value in compiled_values(space, name):
            params = {other: best[other] for other in space.distributions()} | {name: value}
            if not space.problems(params):
                return Suggestion(
                    params, f"the best so far with {name} ({CATALOGUE[name].because})"
                )
    return None


def compiled_values(space: Space, name: str) -> list[KnobValue]:
    """Return the values of a knob that need to be compiled, that of an expert first."""
    values = getattr(space.distributions().get(name), "choices", ())
    needy = [value for value in values if value != CATALOGUE[name].default]
    return sorted(needy, key=lambda value: value != DEAR[name])


def halves(
    space: Space,
    baseline: Mapping[str, KnobValue],
    failed: Mapping[str, KnobValue],
    cause: str,
    ran: Iterable[Mapping[str, KnobValue]] = (),
) -> list[Suggestion]:
    """Return a bundle of changes that failed, in two parts, to learn which change it was.

    Changes that ran together are in both parts. There are none where a single change is left.

    Args:
        failed: values of the knobs that vary.
        cause: how it failed.
        ran: configurations that ran, a value for every knob.
    """
    changed = sorted(changes(failed, baseline), key=[*CATALOGUE, *failed].index)
    sound = max((changes(failed, baseline, knobs) for knobs in ran), key=len, default=[])
    suspects = [name for name in changed if name not in sound]
    middle = (len(suspects) + 1) // 2
    parts = [suspects[middle:], suspects[:middle]] if len(suspects) > 1 else []
    every = ({**failed, **{name: baseline[name] for name in part}} for part in parts)
    why = f"a part of what failed ({end_in_words(cause)})"
    return [Suggestion(params, why) for params in every if not space.problems(params)]


def changes(
    params: Mapping[str, KnobValue],
    baseline: Mapping[str, KnobValue],
    knobs: Mapping[str, KnobValue] | None = None,
) -> list[str]:
    """Return the knobs that differ from the baseline; only those that other knobs have as well."""
    other = params if knobs is None else knobs
    return [n for n, value in params.items() if other[n] == value != baseline[n]]


class Experts:
    """Suggestions of an expert for one study, by the look at its baseline."""

    def __init__(self, context: StudyContext, space: Space) -> None:
        self._context = context
        self._setup = context.setup
        self._space = space

    @property
    def profile(self) -> StoredAttempt | None:
        """Profile of the baseline; None before it is taken."""
        return self._context.attempts().of(Purpose.PROFILE).recorded().first

    @property
    def seen(self) -> dict[str, Any] | None:
        """Observations of the profile: empty if steps are too long, None if the baseline fails."""
        profile = self.profile
        if profile is None or profile.result.state == AttemptState.PRUNED:
            return {}
        blocks = self._context.blocks(profile.id)
        return blocks[0].observed if blocks else None

    def opening(self, seen: dict[str, Any] | None) -> list[Suggestion]:
        """Return what is tried before anything is measured.

        Where trials follow each other, the bundle waits for the answer to what holds the baseline back.
        """
        every = self._suggestions(seen)
        return every[:1] if len(self._setup.launcher.slots) == 1 else every

    def bundle(self, attempts: Attempts) -> Suggestion | None:
        """Return all that is favoured, without an answer that was tried and is slower.

        The memory that the baseline's own trial takes is known where its profile was not taken.
        """
        seen, own = self.seen, attempts.baseline()
        if own is not None and self.profile is None:
            seen = {"peaks": [own.result.peak_bytes]}
        answers = self._suggestions(seen)[:1]
        slower = [name for one in answers for name in self._slower(one, attempts)]
        return next(iter(self._suggestions(seen, slower)[::-1]), None)

    def _slower(self, answer: Suggestion, attempts: Attempts) -> list[str]:
        """Return the changes of an answer that is probably no faster than the baseline."""
        at_home, knobs = at_home_speed(attempts), self._space.complete(answer.params)
        its, own = at_home.searched().measured().with_knobs(knobs).first, at_home.baseline()
        if its is None or own is None or its in possibly_faster([own, its], margin=0.0):
            return []
        return changes(answer.params, self._setup.baseline)

    def _suggestions(
        self, seen: dict[str, Any] | None, slower: Iterable[str] = ()
    ) -> list[Suggestion]:
        """Return what an expert would try; nothing on top of a baseline that does not run."""
        if seen is None:
            return []
        memory = self._setup.memory_of_rank()
        room = None if memory is None else Room(memory, max(seen.get("peaks", ()), default=0))
        if room and not room.peak_bytes:
            return []  # once the baseline has shown what memory it takes
        baseline, cores = self._setup.baseline, self._setup.launcher.site.cores_of_rank
        found = findings(seen, baseline, self._setup.facts) if seen.get("parts") else []
        unusable = {*seen.get("unusable", ()), *slower}
        if cores < STUDY.cores_for_loading:
            unusable.add("num_workers")  # unless it is loading that holds the step back
        return experts(self._space, baseline, found, unusable, room, cores)


class InitialTrials:
    """Opening of a study, which goes on from wherever the records stand."""

    def __init__(self, runner: Runner, space: Space) -> None:
        self._runner = runner
        self._context = runner.context
        self._setup = runner.context.setup
        self._space = space
        self._experts = Experts(runner.context, space)

    def run(self, ledger: TrialLedger) -> list[Suggestion]:
        """Enqueue what is to be tried before the sampler is asked; return what is new of it."""
        if self._context.attempts().of(Purpose.SEARCH):
            return []
        suggestions = self._experts.opening(self._look())
        if known := self._remembered():
            suggestions.insert(0, known)
        trials = self._setup.spec.budget.trials
        kept = suggestions if trials is None else suggestions[: trials - 1]
        for suggestion in kept:
            ledger.enqueue(suggestion.params, suggestion.reason)
        return kept

    def _look(self) -> dict[str, Any] | None:
        """Return what is observed of the baseline's profile; None if it does not run.

        Empty for a command, or without time for a profile.
        """
        time = self._runner.time
        if not (self._setup.spec.workload.observable and time.pays_to_look()):
            return {}
        limit = time.for_opening()
        while self._experts.profile is None:
            baseline = PlannedAttempt(BASELINE, self._setup.baseline, Purpose.PROFILE)
            self._runner.run_monitored(baseline, ProfileMonitor(), limit)
        return self._experts.seen

    def parts(self) -> dict[str, float]:
        """Return the shares of the baseline's step by part; empty if it was not profiled."""
        profile = self._experts.profile
        if profile is None or profile.result.state != AttemptState.COMPLETE:
            return {}
        told = (self._experts.seen or {}).get("parts")
        return breakdown(told) if told else {}

    def _remembered(self) -> Suggestion | None:
        site = self._setup.launcher.site
        workload = fields_set(self._setup.spec.workload.model_dump(mode="json"))
        place = Place(workload, site.ranks, kinds_of_device(site.environment))
        earlier = self._context.repository.recommendations.of_others(self._context.study.id)
        return remembered(self._space, self._setup.baseline, earlier, place)
