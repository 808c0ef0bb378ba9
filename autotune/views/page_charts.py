"""Charts of the page of a study, each drawn from its figures; empty where there is nothing to draw."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from autotune.analysis.rounds import Round, Stage
from autotune.analysis.wording import Terms, difference, quantity
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import MIB, bounds_text, range_text, ratio_text, times
from autotune.views.sections import tied
from autotune.views.study_figures import StudyFigures
from autotune.views.svg import (
    Axis,
    Labels,
    Scale,
    area,
    band,
    chart,
    dot,
    label,
    line,
    roomy,
    ticks,
    upwards,
    whole_ticks,
)
from autotune.views.trial_figures import TrialFigures

Up = Callable[[float], float]
"""Function from a speed-up to its place, in pixels from the top."""

_MANY = 400
"""Trials from which on marks have neither a title nor an interval, so that the page stays small."""
_FEW = 12
"""Most numbers of rounds under a chart."""
_BESIDE = 14.0
"""Per cent of the interval strip that the label of a bound may need on a phone."""
_STRIP, _RATES, _RATIOS, _TRIALS, _MEMORY, _LOSSES, _ROW = 90, 170, 130, 240, 220, 150, 40
"""Heights of the charts, in pixels."""
_AXIS, _GAIN_TICKS = 20, 5
_WHOLE_TICKS, _TICKS, _STEP_TICKS = 10, 6, 4
"""Most labels of axes: numbers of trials, amounts, steps."""
_NEAREST, _FARTHEST = 0.4, 2.5
"""Share of the recommended speed-up and multiple of it that a chart of trials shows at most, so that one
wild interval does not flatten all others."""


COMPLETE = (Stage.CHOICE, Stage.GAIN)
"""Stages of rounds that chose or tell by how much."""


def complete_rounds(figures: StudyFigures) -> list[Round]:
    """Return the rounds that chose or tell by how much, and that both configurations ran."""
    trial, baseline = figures.answer.trial, figures.answer.baseline
    several = (r for r in figures.rounds if r.stage in COMPLETE)
    return [r for r in several if trial in r.ratios and baseline in r.rates]


def _ratio(one: Round, figures: StudyFigures) -> float:
    assert figures.answer.trial is not None
    return one.ratios[figures.answer.trial]


def interval_strip(figures: StudyFigures) -> str:
    """Return the interval of the speed-up, with the rounds that it rests on as dots."""
    ratio = figures.answer.speedup
    assert ratio is not None
    terms = Terms.of(figures.unit)
    rests = figures.answer.confirmed
    told = [one for one in complete_rounds(figures) if one.counts and rests]
    seen = [_ratio(one, figures) for one in told]
    if terms.of_energy:
        ratio, seen = terms.said(ratio), [1 / value for value in seen]
    low, high = min([0.97, ratio.low - 0.03, *seen]), min(ratio.high, 3 * ratio.value)
    if ratio.high < 1:  # the label of the lower bound stands before it
        low -= (1 - low) * _BESIDE / (100 - 2 * _BESIDE)
    x = Scale(low, max([1.0, high, *seen]), 100 - _BESIDE)
    low_text, high_text = bounds_text(ratio).split(" to ")
    marks = [
        line(x(1), 14, x(1), 70, "ref"),
        label(x(1), 84, "1.00 yours", anchor="middle" if x(1) > _BESIDE else "start"),
        band(x(ratio.low), x(ratio.high) - x(ratio.low), 20, 22, "iv"),
        line(x(ratio.value), 16, x(ratio.value), 46, "mid"),
        label(x(ratio.high), 11, high_text, "tick strong"),
    ]
    if x(ratio.low) > _BESIDE:
        marks.append(label(x(ratio.low), 11, low_text, "tick strong", anchor="end"))
    elif x(ratio.high) - x(ratio.low) > _BESIDE:
        marks.append(label(x(ratio.low), 11, low_text, "tick strong"))
    marks += [
        dot(x(value), 59, "pt rec faint", f"round {one.number}: {times(value)}", r=4)
        for one, value in zip(told, seen, strict=True)
    ]
    return area(
        _STRIP, marks, f"Interval of the ratio over yours: {bounds_text(ratio)}", "area ivbar"
    )


def proof_charts(figures: StudyFigures) -> str:
    """Return both rates round by round, and under them their ratio."""
    several = complete_rounds(figures)
    if len(several) < 2 or figures.answer.speedup is None:
        return ""
    x = Scale(0.4, len(several) + 0.6)
    early = sum(one.stage is Stage.CHOICE for one in several)
    split = early if early < len(several) else 0
    return _rates_chart(figures, several, x, split) + _ratios_chart(figures, several, x, split)


def _rates_chart(figures: StudyFigures, several: Sequence[Round], x: Scale, split: int) -> str:
    trial, baseline = figures.answer.trial, figures.answer.baseline
    assert trial is not None and baseline is not None
    top = 1.06 * max(max(one.rates[trial], one.rates[baseline]) for one in several)
    up = upwards(0, top, _RATES)
    marks = [band(0, x(split + 0.5), 0, _RATES, "early")] if split else []
    for member, css, name in ((baseline, "base", "yours"), (trial, "rec", "recommended")):
        rates = [one.rates[member] for one in several]
        places = [(x(i), up(rate)) for i, rate in enumerate(rates, 1)]
        marks += [line(*a, *b, f"trace {css}") for a, b in itertools.pairwise(places)]
        for one, rate, (left, place) in zip(several, rates, places, strict=True):
            disturbed = member in one.disturbed
            tip = f"round {one.number}, {name}: {quantity(rate)} {figures.unit}"
            tip += ", disturbed by others" if disturbed else ""
            marks.append(dot(left, place, f"pt {css}{' hollow' if disturbed else ''}", tip, r=4))
    grid = [(up(value), quantity(value)) for value in ticks(0, top, 4)]
    return chart(_RATES, marks, "Rate of both, round by round", Axis(grid, figures.unit))


def _ratios_chart(figures: StudyFigures, several: Sequence[Round], x: Scale, split: int) -> str:
    ratio = figures.answer.speedup if figures.answer.confirmed else None
    seen = [_ratio(one, figures) for one in several]
    ends = [ratio.low, min(ratio.high, 2 * max(seen))] if ratio else []
    low, high = min([*seen, *ends, 1]) - 0.04, max([*seen, *ends, 1]) + 0.04
    up = upwards(low, high, _RATIOS)
    marks = [band(0, x(split + 0.5), 0, _RATIOS, "early")] if split else []
    start = x(split + 0.5)
    if ratio:
        whole = up(ratio.low) - up(ratio.high)
        marks.append(band(start, 100 - start, up(ratio.high), whole, "iv"))
        marks.append(line(start, up(ratio.value), 100, up(ratio.value), "mid"))
    marks.append(line(0, up(1), 100, up(1), "ref"))
    for number, (one, value) in enumerate(zip(several, seen, strict=True), 1):
        css = "pt rec lost" if value < 1 else "pt rec"
        marks.append(line(x(number), up(1), x(number), up(value), "stem"))
        marks.append(dot(x(number), up(value), css, f"round {one.number}: {times(value)}", r=4.5))
    grid = [(up(value), _over_yours(value)) for value in ticks(low, high, 4)]
    under = roomy(lambda most: _numbers(several, x, most), _FEW)
    title = "Recommended over yours, round by round"
    return chart(_RATIOS, marks, title, Axis(grid, "recommended over yours"), Axis(under, "round"))


def _numbers(several: Sequence[Round], x: Scale, most: int) -> Labels:
    """Return the numbers of about so many rounds."""
    every = max(1, math.ceil(len(several) / most))
    return [(x(n), str(one.number)) for n, one in enumerate(several, 1) if n % every == 1 % every]


def _bounds(
    several: Sequence[TrialFigures], total: Ratio | None = None, *, intervals: bool = True
) -> tuple[float, float]:
    """Return the range of speed-ups that a chart of trials shows."""
    values = [one.ratio.value for one in several if one.ratio]
    ends = list(values)
    if intervals:
        ends += [end for one in several if one.ratio for end in (one.ratio.low, one.ratio.high)]
    if total is not None:
        ends += [total.low, total.high]
    most, least = max([*values, 1.0]), min([*values, 1.0])
    low = max(min([*ends, 1.0]), _NEAREST * least)
    high = min(max([*ends, 1.0]), _FARTHEST * most)
    margin = 0.04 * (high - low) or 0.04
    return low - margin, high + margin


def trials_chart(figures: StudyFigures) -> str:
    """Return the trials of the search over yours, in their order."""
    timed = [one for one in figures.trials if one.ratio is not None]
    if all(one.baseline for one in timed):
        return ""
    failed = [one for one in figures.trials if one.rate is None]
    count = max(one.trial for one in figures.trials) + 1
    x = Scale(-0.6, count + 1.2)
    room = _TRIALS - (34 if failed else 0)
    answer = figures.answer
    total = answer.speedup if answer.better and answer.confirmed else None
    many = len(figures.trials) > _MANY
    low, high = _bounds(timed, total, intervals=not many)
    up = upwards(low, high, room)
    marks = []
    if total is not None:
        marks.append(band(0, 100, up(total.high), up(total.low) - up(total.high), "iv soft"))
    marks.append(line(0, up(1), 100, up(1), "ref"))
    for one in timed:
        marks += _trial_marks(one, x(one.trial), up, many=many)
    for one in failed:
        tip = "" if many else f"trial {one.trial}: {one.state}. {one.cause}"
        marks.append(dot(x(one.trial), _TRIALS - 14, "pt fail", tip, r=4, shape="cross"))
    if total is not None:
        at = x(count + 0.3)
        marks.append(line(at, up(total.low), at, up(total.high), "whisk dark"))
        tip = f"measured again: {ratio_text(total)}"
        marks.append(dot(at, up(total.value), "pt rec", tip, r=7, shape="diamond"))
    grid = [(up(value), _over_yours(value)) for value in ticks(low, high, 6)]
    under = roomy(lambda most: [(x(n), str(n)) for n in whole_ticks(count, most)], _WHOLE_TICKS)
    return chart(
        _TRIALS, marks, "Trials of the search", Axis(grid, "over yours"), Axis(under, "trial")
    )


def _trial_marks(one: TrialFigures, x: float, up: Up, *, many: bool) -> Iterator[str]:
    assert one.ratio is not None
    tip = "" if many else _tip(one)
    if one.baseline:
        yield dot(x, up(1), "pt base", tip or "yours", r=5)
        return
    if not many:
        css = "whisk" if one.interleaved else "whisk alone"
        yield line(x, up(one.ratio.low), x, up(one.ratio.high), css)
    shape = "diamond" if one.recommended else "square" if one.state == "PRUNED" else ""
    filled = one.interleaved and one.state != "PRUNED" and not one.recommended
    css = "pt rec" if filled else "pt rec hollow"
    size = 7 if one.recommended else 2 if many else 4.5
    yield dot(x, up(one.ratio.value), css, tip, r=size, shape=shape if size > 2 else "")


def _tip(one: TrialFigures) -> str:
    assert one.ratio is not None
    how = "in turn with yours" if one.interleaved else "alone"
    if one.baseline:
        return "yours"
    return f"trial {one.trial}, {how}: {ratio_text(one.ratio)}; {difference(one.changes, {})}"


def memory_chart(figures: StudyFigures) -> str:
    """Return speed-up against peak memory, with the line of the fastest in as little memory."""
    timed = [one for one in figures.trials if one.ratio is not None and one.peak_bytes]
    if len(timed) < 3 or len({one.peak_bytes for one in timed}) < 2:
        return ""
    least, most = (end(one.peak_bytes for one in timed) / MIB for end in (min, max))
    margin = 0.12 * (most - least)
    x = Scale(least - margin, most + 1.6 * margin)
    low, high = _bounds(timed, intervals=False)
    up = upwards(low, high, _MEMORY)
    marks = [line(0, up(1), 100, up(1), "ref"), *_frontier(timed, x, up)]
    many = len(timed) > _MANY
    for one in timed:
        marks += _memory_marks(one, x(one.peak_bytes / MIB), up, many=many)
    grid = [(up(value), _over_yours(value)) for value in ticks(low, high, 5)]
    under = roomy(
        lambda most: [(x(value), f"{value:,.0f}") for value in ticks(x.low, x.high, most)], _TICKS
    )
    return chart(
        *(_MEMORY, marks, "Ratio over yours against memory"),
        *(Axis(grid, "over yours"), Axis(under, "peak memory of a rank, MiB")),
    )


def _frontier(timed: Sequence[TrialFigures], x: Scale, up: Up) -> Iterator[str]:
    """Yield the stepped line of what was seen fastest in as little memory."""
    front: list[tuple[float, float]] = []
    for one in sorted(timed, key=lambda one: (one.peak_bytes, -(one.ratio or _NONE).value)):
        value = (one.ratio or _NONE).value
        if not front or value > front[-1][1]:
            front.append((one.peak_bytes / MIB, value))
    for (left, below), (right, above) in itertools.pairwise(front):
        yield line(x(left), up(below), x(right), up(below), "front")
        yield line(x(right), up(below), x(right), up(above), "front")


_NONE = Ratio(0.0, 0.0, 0.0)


def _memory_marks(one: TrialFigures, x: float, up: Up, *, many: bool) -> Iterator[str]:
    assert one.ratio is not None
    tip = "" if many else f"{_tip(one)}; {one.peak_bytes / MIB:,.0f} MiB"
    if one.baseline:
        yield dot(x, up(1), "pt base", tip)
    elif one.recommended:
        yield dot(x, up(one.ratio.value), "pt rec hollow", tip, r=7, shape="diamond")
    else:
        css = "pt rec" if one.interleaved else "pt rec hollow"
        yield dot(x, up(one.ratio.value), css, tip, r=2 if many else 4.5)


def losses_chart(figures: StudyFigures) -> str:
    """Return the losses of the recommended configuration and of its reference, step by step."""
    losses = figures.losses
    if losses is None:
        return ""
    count = len(losses.reference)
    every = [*losses.reference, *losses.recommended]
    margin = 0.06 * (max(every) - min(every)) or 0.06
    low, high = min(every) - margin, max(every) + margin
    x, up = Scale(1, count), upwards(low, high, _LOSSES)
    marks = []
    for values, css in (
        (losses.reference, "trace base thick"),
        (losses.recommended, "trace rec"),
    ):
        places = [(x(step), up(value)) for step, value in enumerate(values, 1)]
        marks += [line(*a, *b, css) for a, b in itertools.pairwise(places)]
    grid = [(up(value), f"{value:.4g}") for value in ticks(low, high, 4)]
    under = roomy(lambda most: _steps(count, x, most), _STEP_TICKS)
    return chart(_LOSSES, marks, "Loss of both", Axis(grid, "loss"), Axis(under, "step"))


def _steps(count: int, x: Scale, most: int) -> Labels:
    """Return the first of some steps, and about so many others."""
    step = max(2, math.ceil(count / most))
    return [(x(number), str(number)) for number in (1, *range(step, count + 1, step))]


def contribution_rows(figures: StudyFigures) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, gain in words, class and bar of each change, of all together, and the scale."""
    gains = figures.contributions
    total = figures.answer.speedup
    assert total is not None
    values = [one.gain.value for one in gains]
    low = min([1.0, *values, total.low]) / 1.08
    high = max([1.0, *values, total.high if math.isfinite(total.high) else total.value]) * 1.08
    x = Scale(low, high, of=math.log)
    rows = [(tied(one), one.gain) for one in gains]
    for name, gain in rows:
        yield name, ratio_text(gain), "", _gain_bar(gain, x)
    yield "all together", ratio_text(total), " sum", _gain_bar(total, x, "dark")
    yield "", "", " scale", _gain_axis(x)


def _gain_ticks(x: Scale) -> Labels:
    return roomy(
        lambda most: [(x(value), _over_yours(value)) for value in ticks(x.low, x.high, most)],
        _GAIN_TICKS,
    )


def _gain_axis(x: Scale) -> str:
    marks = [label(at, 14, text, anchor="middle") for at, text in _gain_ticks(x)]
    return area(_AXIS, marks, "Scale: over the same without that change")


def _gain_bar(ratio: Ratio, x: Scale, css: str = "") -> str:
    start, end = sorted((x(1), x(ratio.value)))
    kind = f"wf {'rec' if ratio.distinguishable else 'vague'}{' neg' if ratio.value < 1 else ''}"
    marks = [
        *(line(at, 0, at, _ROW, "grid") for at, _ in _gain_ticks(x)),
        line(x(1), 0, x(1), _ROW, "ref"),
        band(start, max(end - start, 0.4), 12, 16, kind),
        line(x(ratio.low), 20, x(ratio.high), 20, f"whisk {css}"),
    ]
    for bound, mark, anchor in ((ratio.low, "◂", "start"), (ratio.high, "▸", "end")):
        at = x(bound)
        if x.low <= bound <= x.high:
            marks.append(line(at, 15, at, 25, f"whisk {css}"))
        else:
            marks.append(label(at, 25, mark, "whisktip", anchor=anchor))
    return area(_ROW, marks, ratio_text(ratio))


def _over_yours(value: float) -> str:
    """Return a label of an axis of ratios: ticks are round, so that it has all of their digits."""
    return f"{value:g}x"


def rate_note(figures: StudyFigures) -> str:
    """Return the range of both rates, in words."""
    answer = figures.answer
    if answer.rates is None or answer.baseline_rates is None:
        return ""
    yours = range_text(answer.baseline_rates, figures.unit)
    return f"yours ran at {yours}, the recommended one at {range_text(answer.rates, figures.unit)}"
