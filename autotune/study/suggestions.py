"""Configurations that a study tries early, and why. Pure functions."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.barred import Barred
from autotune.analysis.findings import Finding
from autotune.analysis.wording import end_in_words
from autotune.search.sampling import Shortage, surely_too_large
from autotune.search.space import Space
from autotune.study.policy import STUDY
from launchers.site import device_names
from search_spaces import CATALOGUE, KnobValue
from search_spaces.batch import MICRO_BATCH
from search_spaces.knob import changed_knobs
from storage import AttemptState, Recommended

FAVOURED = "what experience favours"
"""Beginning of the reason for the bundle of all that is favoured."""
COMPILED_KNOBS = {
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
class TransferKey:
    """Workload and machine by which one study's winner is worth a try in another."""

    workload: dict[str, Any]
    """Fields of the study's workload."""
    world_size: int
    devices: tuple[str, ...]
    """Names of the CUDA devices; the model of the processor where there are none."""

    @classmethod
    def of(cls, recommended: Recommended) -> "TransferKey":
        """Return the key of a recommendation."""
        environment = recommended.body["provenance"]["environment"]
        workload = without_empty(recommended.spec["workload"])
        return cls(workload, recommended.body["world_size"], kinds_of_device(environment))


@dataclass(frozen=True)
class MemoryHeadroom:
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


def without_empty(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a study's workload that are set: an earlier version knew fewer."""
    return {name: value for name, value in workload.items() if value}


def kinds_of_device(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a node's CUDA devices, else of its processor, from its fingerprint."""
    return tuple(sorted({*device_names(environment)}))


def remembered(
    space: Space,
    baseline: Mapping[str, KnobValue],
    earlier: Sequence[Recommended],
    key: TransferKey,
) -> Suggestion | None:
    """Return what the newest study of the same workload and kind of machine has recommended.

    Only the configuration, as far as it is in this space: it is measured anew. What has to be compiled
    stays as in the baseline: whether there is time for it is not known yet.
    """
    for recommended in earlier:
        if TransferKey.of(recommended) != key:
            continue
        wanted = {**baseline, **recommended.body["knobs"]}
        near = {name: space.nearest(name, wanted[name]) for name in space.distributions()}
        kept = _compiled_anew(baseline, wanted)
        params = {n: baseline[n] if v is None or n in kept else v for n, v in near.items()}
        if changed_knobs(params, baseline) and not space.problems(params):
            return Suggestion(params, f"study {recommended.study} recommended it here before")
    return None


def _compiled_anew(baseline: Mapping[str, KnobValue], wanted: Mapping[str, KnobValue]) -> set[str]:
    """Return the knobs whose wanted value has to be compiled, and those that act beside it only."""
    compiled = {
        name
        for name in COMPILED_KNOBS
        if wanted[name] not in (baseline[name], CATALOGUE[name].default)
    }
    return compiled | {
        n for n, knob in CATALOGUE.items() if any(o.other in compiled for o in knob.only_with)
    }


def experts(
    space: Space,
    baseline: Mapping[str, KnobValue],
    found: Sequence[Finding],
    unusable: Container[str],
    headroom: MemoryHeadroom | None,
    cores: float,
) -> list[Suggestion]:
    """Return at most two: an answer to what holds the baseline back most, and all that is favoured.

    What has to be compiled is in neither: it takes long, and a failure would hide what the rest brings.

    Args:
        baseline: a value for every knob.
        found: findings of the baseline.
        unusable: knobs that have nothing to act on in the workload.
        headroom: on a device where a launch takes long: it makes one trial of both; None: elsewhere.
        cores: processors of a rank.
    """
    growth = headroom.growth if headroom else STUDY.most_growth
    most = {
        MICRO_BATCH: growth * int(baseline[MICRO_BATCH]),
        "num_workers": max(1.0, cores - STUDY.cores_for_steps),
    }
    favoured = [name for name in CATALOGUE if name not in unusable and name not in COMPILED_KNOBS]
    answers = [finding for finding in found if set(finding.knobs) & set(space.distributions())]
    suggestions = []
    if answers and headroom is None:
        first = answers[0]
        share = f" ({first.share:.0%} of its step)" if first.share is not None else ""
        suggestions.append(
            _suggestion(
                space,
                baseline,
                [name for name in first.knobs if name not in COMPILED_KNOBS],
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
    for name in COMPILED_KNOBS:
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
    return sorted(needy, key=lambda value: value != COMPILED_KNOBS[name])


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
    changes = changed_knobs(failed, baseline)
    changed = sorted(changes, key=[*CATALOGUE, *failed].index)
    ran_together = ([n for n in changes if knobs[n] == failed[n]] for knobs in ran)
    sound = max(ran_together, key=len, default=[])
    suspects = [name for name in changed if name not in sound]
    middle = (len(suspects) + 1) // 2
    parts = [suspects[middle:], suspects[:middle]] if len(suspects) > 1 else []
    every = ({**failed, **{name: baseline[name] for name in part}} for part in parts)
    why = f"a part of what failed ({end_in_words(cause)})"
    return [Suggestion(params, why) for params in every if not space.problems(params)]


def parts_of(
    space: Space,
    baseline: Mapping[str, KnobValue],
    failed: Iterable[tuple[Mapping[str, KnobValue], str]],
    ran: Sequence[Mapping[str, KnobValue]],
) -> Iterator[Suggestion]:
    """Yield the parts of bundles that failed, those of the fewest changes first.

    A part with all changes of a bundle that failed is left out: it would fail as well.

    Args:
        baseline: a value for every knob.
        failed: values of the knobs that vary, with how they failed.
        ran: configurations that ran, a value for every knob.
    """
    bundles = [(params, [*changed_knobs(params, baseline)], cause) for params, cause in failed]
    bundles.sort(key=lambda bundle: len(bundle[1]))
    for params, _, cause in bundles:
        for part in halves(space, baseline, params, cause, ran):
            known = (changed for other, changed, _ in bundles if _has(part.params, other, changed))
            if not any(known):
                yield part


def _has(params: Mapping[str, KnobValue], other: Mapping[str, KnobValue], names: list[str]) -> bool:
    """Return whether parameters have the values that others have of these knobs."""
    return all(params[name] == other[name] for name in names)


def fitting(
    space: Space,
    baseline: Mapping[str, KnobValue],
    suggestions: Iterable[Suggestion],
    too_large: Sequence[Shortage],
    ran: Sequence[Mapping[str, KnobValue]] = (),
) -> Iterator[Suggestion]:
    """Yield suggestions, and parts of those that are bound to run out of memory instead of these.

    Args:
        baseline: a value for every knob.
        too_large: configurations that ran out of memory.
        ran: configurations that ran, a value for every knob.
    """
    for one in suggestions:
        knobs = space.complete(one.params)
        smaller = [known for known in too_large if known.recurs_in(knobs)]
        if surely_too_large(smaller, ran):
            parts = halves(space, baseline, one.params, AttemptState.OOM, ran)
            yield from fitting(space, baseline, parts, too_large, ran)
        else:
            yield one


def rest(
    space: Space,
    baseline: Mapping[str, KnobValue],
    refused: Mapping[str, KnobValue],
    barred: Barred,
) -> dict[str, KnobValue]:
    """Return the baseline with every change of a refused trial that can run and is not refused.

    Args:
        baseline: a value for every knob.
        refused: values of the knobs that vary.
        barred: what a check refuses.
    """
    params = {name: baseline[name] for name in space.distributions()}
    names = sorted(params.keys() & refused.keys(), key=[*CATALOGUE, *params].index)
    for name in 2 * names:  # a change may go only with a later one
        changed = {**params, name: refused[name]}
        if not space.problems(changed) and not barred.covers(space.complete(changed), baseline):
            params = changed
    return params
