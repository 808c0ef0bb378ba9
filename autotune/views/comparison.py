"""Comparison of two studies: what differs between them, and which parts of the first verdict hold."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.analysis.verdict import Kind
from autotune.analysis.wording import Terms, difference
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import range_text, said_ratio
from autotune.views.study_figures import StudyFigures
from search_spaces.knob import written

_MACHINE = (
    *("host", "cpu", "cores", "memory_bytes", "devices", "torch", "python", "cuda", "nccl"),
    *("driver", "kernel", "autotune"),
)
"""Fields of an environment that explain another result."""
_AS_MUCH = 0.25
"""Share of a gain, as a logarithm, by which one that is as large may differ."""


class Holds(StrEnum):
    """Fate of a part of the first verdict in the second study."""

    YES = "holds"
    NO = "does not hold"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Difference:
    """Something that differs between the two studies."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class PartCheck:
    """Part of the first verdict, and whether the second study confirms it."""

    statement: str
    holds: Holds
    why: str


@dataclass(frozen=True)
class StudyComparison:
    """Comparison of two studies.

    Attributes:
        gains: ratios of rates of both over their own baselines; None where there is none.
        doubts: why the gain of each is no proof, in words; empty if it is one.
        units: of their rates.
        change: second gain over the first; None unless both are known, and of one quantity.
        environments: differences of the machines and their software.
        settings: differences of job, baseline and recommendation.
        checks: parts of the first verdict.
    """

    first: str
    second: str
    gains: tuple[Ratio | None, Ratio | None]
    doubts: tuple[str, str]
    units: tuple[str, str]
    change: Ratio | None
    environments: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    checks: tuple[PartCheck, ...]


def comparison(first: StudyFigures, second: StudyFigures) -> StudyComparison:
    """Return what differs between two studies."""
    ratios = first.answer.gain, second.answer.gain
    alike = first.unit == second.unit
    return StudyComparison(
        first=first.study,
        second=second.study,
        gains=ratios,
        doubts=(_doubt(first), _doubt(second)),
        units=(first.unit, second.unit),
        change=_change(*ratios) if alike else None,
        environments=tuple(_environments(first, second)),
        settings=tuple(_settings(first, second)),
        checks=tuple(_checks(first, second)),
    )


def _doubt(figures: StudyFigures) -> str:
    """Return why the gain of a study is no proof, in words; empty if it is one."""
    if not figures.answer.better or not figures.provisional:
        return ""
    return "provisional" if figures.answer.confirmed else "seen once, not confirmed"


def _change(first: Ratio | None, second: Ratio | None) -> Ratio | None:
    """Return the second gain over the first; the bounds assume that their errors are independent."""
    if first is None or second is None or min(first.low, second.low) <= 0:
        return None
    value = second.value / first.value
    below = math.hypot(math.log(first.high / first.value), math.log(second.value / second.low))
    above = math.hypot(math.log(first.value / first.low), math.log(second.high / second.value))
    return Ratio(value, value * math.exp(-below), value * math.exp(above))


def _environments(first: StudyFigures, second: StudyFigures) -> Iterator[Difference]:
    before, after = (one.environments[0] if one.environments else {} for one in (first, second))
    for name in _MACHINE:
        old, new = _field(before, name), _field(after, name)
        if old != new:
            yield Difference(name, old, new)


def _field(environment: Mapping[str, Any], name: str) -> str:
    value = environment.get(name)
    if name == "devices":
        return ", ".join(str(device["name"]) for device in value or ())
    return "" if value is None else str(value)


def _settings(first: StudyFigures, second: StudyFigures) -> Iterator[Difference]:
    pairs = [
        ("rates", first.unit, second.unit),
        ("workload", first.job.workload, second.job.workload),
        ("arguments", first.job.arguments, second.job.arguments),
        ("ranks", str(first.job.world_size or "?"), str(second.job.world_size or "?")),
        ("global batch", _global_batch(first), _global_batch(second)),
        ("yours", _baseline_changes(first, second), _baseline_changes(second, first)),
        ("recommended", _recommended(first), _recommended(second)),
        ("rate of yours", _rates(first), _rates(second)),
    ]
    for name, before, after in pairs:
        if before != after:
            yield Difference(name, before, after)


def _global_batch(figures: StudyFigures) -> str:
    """Return the global batch of a baseline; empty if it is not known."""
    batch = figures.job.batch_before
    return "" if batch is None else str(batch)


def _baseline_changes(own: StudyFigures, other: StudyFigures) -> str:
    """Return the values of a baseline that differ from the other's."""
    baseline, theirs = own.verdict.baseline_knobs, other.verdict.baseline_knobs
    changed = {name: value for name, value in baseline.items() if theirs.get(name, value) != value}
    return difference(changed, {})


def _recommended(figures: StudyFigures) -> str:
    changes = {one.knob: one.after for one in figures.answer.changes}
    return difference(changes, {})


def _rates(figures: StudyFigures) -> str:
    rates = figures.answer.baseline_rates
    return range_text(rates, figures.unit) if rates else ""


def _checks(first: StudyFigures, second: StudyFigures) -> Iterator[PartCheck]:
    alike = first.unit == second.unit
    if first.answer.gain is None:
        yield _kept(first, second, alike=alike)
        return
    if alike:
        yield _better(first.answer.gain, second)
        yield _by_as_much(first.answer.gain, second)
    changes = {one.knob: one.after for one in second.answer.changes}
    for one in first.answer.changes:
        yield _change_stays(one.knob, one.after, changes, second)


def _kept(first: StudyFigures, second: StudyFigures, *, alike: bool) -> PartCheck:
    statement = f"nothing is {Terms.of(first.unit).better} than yours"
    if not alike:
        return PartCheck(statement, Holds.UNKNOWN, f"{second.study} compares {second.unit}")
    if (now := second.answer.gain) is not None:
        why = f"{second.study} found {_told(now, second)}"
        return PartCheck(statement, Holds.NO if second.answer.confirmed else Holds.UNKNOWN, why)
    kinds = [one.answer.kind for one in (first, second)]
    holds = Holds.YES if set(kinds) == {Kind.NOTHING_BETTER} else Holds.UNKNOWN
    return PartCheck(statement, holds, f"{_kind_text(first)}; {_kind_text(second)}")


def _told(gain: Ratio, figures: StudyFigures) -> str:
    """Return the gain of a study, and why it is no proof."""
    doubt = _doubt(figures)
    return f"{said_ratio(gain, Terms.of(figures.unit))}{f', {doubt}' if doubt else ''}"


def _kind_text(figures: StudyFigures) -> str:
    return f"{figures.study}: {figures.answer.kind.value.replace('_', ' ')}"


def _better(before: Ratio, second: StudyFigures) -> PartCheck:
    terms = Terms.of(second.unit)
    statement = f"something is {terms.better} than yours: {said_ratio(before, terms)}"
    now = second.answer.gain
    if now is None:
        return PartCheck(statement, Holds.UNKNOWN, f"{second.study} recommends nothing")
    holds = now.faster and second.answer.confirmed
    return PartCheck(statement, Holds.YES if holds else Holds.UNKNOWN, f"now {_told(now, second)}")


def _by_as_much(before: Ratio, second: StudyFigures) -> PartCheck:
    statement = "by as much"
    change = _change(before, second.answer.gain)
    if change is None:
        return PartCheck(statement, Holds.UNKNOWN, "there is no second gain")
    if not second.answer.confirmed:
        return PartCheck(statement, Holds.UNKNOWN, "the second gain is not confirmed")
    most = _AS_MUCH * abs(math.log(before.value))
    within = max(math.log(change.high), -math.log(change.low)) <= most
    alike = Holds.YES if within else Holds.UNKNOWN
    holds = Holds.NO if change.distinguishable else alike
    return PartCheck(
        statement, holds, f"now over before: {said_ratio(change, Terms.of(second.unit))}"
    )


def _change_stays(
    knob: str, value: Any, changes: Mapping[str, Any], second: StudyFigures
) -> PartCheck:
    statement = f"{knob}={written(value)}"
    if knob in changes:
        same = changes[knob] == value
        why = "recommended again" if same else f"now {written(changes[knob])}"
        return PartCheck(statement, Holds.YES if same else Holds.NO, why)
    if second.verdict.baseline_knobs.get(knob) == value:
        return PartCheck(statement, Holds.YES, "yours has it by now")
    known = any(one.knob == knob for one in second.own_knobs)
    why = "not recommended any more" if known else "not searched"
    return PartCheck(statement, Holds.NO if known else Holds.UNKNOWN, why)


def comparison_text(found: StudyComparison) -> str:
    """Return a comparison as text for a terminal."""
    parts = [
        [f"{found.first} and {found.second}", *_gain_lines(found)],
        ["Of the first verdict:", *(f"  {_check_text(one)}" for one in found.checks)],
        ["Machines:", *_difference_lines(found.environments)],
        ["Settings and results:", *_difference_lines(found.settings)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _gain_lines(found: StudyComparison) -> Iterator[str]:
    names = found.first, found.second
    several = zip(names, found.gains, found.units, found.doubts, strict=True)
    for name, ratio, unit, doubt in several:
        terms = Terms.of(unit)
        of = "of" if terms.of_energy else "over"
        gain = f"{said_ratio(ratio, terms)} {of} yours" if ratio else "no gain"
        yield f"  {name}: {gain}{f', {doubt}' if doubt else ''}"
    if found.change is not None:
        yield f"  second over first: {said_ratio(found.change, Terms.of(found.units[0]))}"


def _check_text(one: PartCheck) -> str:
    return f"{one.holds.value:13}  {one.statement} ({one.why})"


def _difference_lines(several: Iterable[Difference]) -> list[str]:
    lines = [f"  {one.name}: {one.before or '-'} → {one.after or '-'}" for one in several]
    return lines or ["  the same"]
