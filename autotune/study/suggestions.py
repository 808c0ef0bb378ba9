"""The first trials after the baseline: what an expert would try, and why. Pure functions."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.findings import Finding
from autotune.search.space import Space
from search_spaces import CATALOGUE, KnobValue
from storage import Recommended

_MOST_GROWTH = 4
"""Of the micro-batch at once: a larger one may not fit in memory."""


@dataclass(frozen=True)
class Suggestion:
    """A configuration to try early.

    Attributes:
        params: of the knobs that vary.
        reason: for the user.
    """

    params: dict[str, KnobValue]
    reason: str


@dataclass(frozen=True)
class Place:
    """What makes one study's winner worth a try in another."""

    workload: dict[str, Any]
    """What the study says of it."""
    world_size: int
    devices: tuple[str, ...]
    """Names of the CUDA devices; the model of the processor where there are none."""

    @classmethod
    def of(cls, recommended: Recommended) -> "Place":
        """Where that was recommended."""
        environment = recommended.body["provenance"]["environment"]
        workload = said(recommended.spec["workload"])
        return cls(workload, recommended.body["world_size"], devices(environment))


def said(workload: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a study's workload that say something: an earlier version knew fewer."""
    return {name: value for name, value in workload.items() if value}


def devices(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """What computes, by name, from a node's fingerprint."""
    named = sorted({device["name"] for device in environment.get("devices", [])})
    return tuple(named) or (str(environment.get("cpu")),)


def remembered(
    space: Space,
    baseline: Mapping[str, KnobValue],
    earlier: Sequence[Recommended],
    place: Place,
) -> Suggestion | None:
    """What the newest study of the same workload on the same kind of machine has recommended, as far as
    it is in this space. Only the configuration: it is measured anew."""
    for recommended in earlier:
        if Place.of(recommended) != place:
            continue
        wanted = {**baseline, **recommended.body["knobs"]}
        near = {name: space.nearest(name, wanted[name]) for name in space.distributions()}
        params = {name: baseline[name] if v is None else v for name, v in near.items()}
        changed = any(value != baseline[name] for name, value in params.items())
        if changed and not space.problems(params):
            return Suggestion(params, f"study {recommended.study} recommended it here before")
    return None


def experts(
    space: Space,
    baseline: Mapping[str, KnobValue],
    findings: Sequence[Finding],
    unusable: Container[str] = (),
) -> list[Suggestion]:
    """At most two: an answer to what holds the baseline back most, and all that experience favours.

    Args:
        space: what may be tried.
        baseline: a value for every knob.
        findings: of the baseline.
        unusable: knobs that have nothing to act on in the workload.
    """
    favoured = [name for name in CATALOGUE if name not in unusable]
    answers = [finding for finding in findings if set(finding.knobs) & set(space.distributions())]
    suggestions = []
    if answers:
        first = answers[0]
        share = f" ({first.share:.0%} of its step)" if first.share is not None else ""
        suggestions.append(
            _suggestion(
                space,
                baseline,
                first.knobs,
                f"it answers what holds the baseline back{share}: {first.text}",
            )
        )
    suggestions.append(_suggestion(space, baseline, favoured, "what experience favours"))
    unique = {tuple(sorted(s.params.items())): s for s in reversed(suggestions) if s is not None}
    return list(reversed(unique.values()))


def _suggestion(
    space: Space, baseline: Mapping[str, KnobValue], knobs: Sequence[str], why: str
) -> Suggestion | None:
    """The baseline with these knobs at their promising values; None if that is nothing new."""
    params = {name: baseline[name] for name in space.distributions()}
    reasons = []
    for name, value in _promising(space, baseline, knobs):
        if space.problems({**params, name: value}):
            continue
        params[name] = value
        reasons.append(f"{name} ({CATALOGUE[name].because})")
    if not reasons:
        return None
    return Suggestion(params, f"{why}; {'; '.join(reasons)}")


def _promising(
    space: Space, baseline: Mapping[str, KnobValue], knobs: Sequence[str]
) -> Iterator[tuple[str, KnobValue]]:
    for name in knobs:
        wanted: Any = CATALOGUE[name].promising
        if name not in space.distributions() or wanted is None:
            continue
        if name == "micro_batch":
            wanted = _MOST_GROWTH * int(baseline[name])
        value = space.nearest(name, wanted)
        if name == "micro_batch" and value is not None and float(value) > wanted:
            continue  # the next smaller one is the baseline's, or below
        if value is not None and value != baseline[name]:
            yield name, value
