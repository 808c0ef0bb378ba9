"""Notes for optuna-dashboard, in Markdown."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from autotune.analysis.node_speeds import AT_HOME, NodeSpeed, at_home_speed
from autotune.analysis.trial_ratios import rate_range
from autotune.analysis.verdict import Finalist, Verdict
from autotune.analysis.wording import Rounding, Terms, counted, difference, fixed, quantity
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import bounds_text, range_text, ratio_text, said_ratio
from autotune.views.verdict_text import text_of
from search_spaces import CATALOGUE
from search_spaces.knob import written
from storage import AttemptResult, Attempts, StoredAttempt

_MIB = 2**20
_MARKUP = re.compile(r"[\\`*_\[\]<>&~|]")
"""Characters that Markdown takes for more than text within a line, or a cell of a table."""


def trial_note(
    attempt: StoredAttempt,
    result: AttemptResult,
    unit: str,
    *,
    own: Collection[str] = (),
    confirmed: Sequence[float] = (),
    speed: NodeSpeed = AT_HOME,
) -> str:
    """Return the note of a trial: speed-up where it is known, rate, memory, cause of failure.

    Args:
        result: of the attempt, as if it had run where the baseline did.
        own: knobs of this job, which are listed.
        confirmed: its throughput by round, if it was measured again.
        speed: factor of its node, by which the throughput has been multiplied already.
    """
    lines = [f"### {result.state}", *_rate_lines(result, unit, confirmed, speed)]
    if result.peak_bytes:
        lines.append(f"- peak memory of a rank: {quantity(result.peak_bytes / _MIB)} MiB")
    if result.cause:
        lines.append(f"- cause: {_literal(result.cause)}")
    if result.throughput is not None and not result.steady:
        lines.append("- unsteady: still drifting when its warm-up ran out")
    if result.contended:
        lines.append("- contended: other processes used the processors in every repetition too")
    if result.resident_of is not None:
        lines.append("- ran in the processes of an earlier run (a warm worker)")
    lines.append(f"- took {result.wall_seconds:.1f} s, attempt {attempt.attempt}")
    return "\n".join([*lines, "", *_configuration(attempt.knobs, {}, own)])


def _literal(text: str) -> str:
    """Return a text that Markdown shows as it is, with `__len__` and `*args`."""
    return _MARKUP.sub(r"\\\g<0>", text)


def _rate_lines(
    result: AttemptResult, unit: str, confirmed: Sequence[float], speed: NodeSpeed
) -> Iterator[str]:
    """Yield speed-up and rates of a trial, as far as they are known."""
    if result.ratio is not None:
        ratio = Ratio.around(result.ratio, result.half_width or 0.0)
        yield f"- over yours, which took turns with it, seen once: {ratio_text(ratio)}"
    if result.rate is not None:
        yield f"- rate, as measured: {quantity(result.rate)} {unit}"
    if result.throughput is not None and speed.error:
        how = "efficient" if Terms.of(unit).of_energy else "fast"
        yield (
            f"- the baseline is {speed.factor:.3f} times as {how} where its own trial ran as on this "
            f"node, ±{speed.error:.1%} (standard error)"
        )
    if ran := rate_range(confirmed):
        yield (
            f"- measured again in {counted(len(confirmed), 'round')}, which is what counts: at "
            f"{range_text(ran, unit)}"
        )


def study_note(verdict: Verdict, own: Collection[str] = ()) -> str:
    """Return the note of a study: its answer, the configuration, and what supports it.

    Args:
        own: knobs of this job, which are listed beside those that change.
    """
    lines = ["## Provisional answer" if verdict.provisional else "## Verdict", ""]
    lines += [_literal(text_of(verdict)), ""]
    lines += [f"Measured on {_literal(verdict.measured_on)}.", ""] if verdict.measured_on else []
    if verdict.knobs:
        lines += ["### For now" if verdict.provisional else "### Recommended", ""]
        shown = _configuration(verdict.knobs, verdict.baseline_knobs, own)
        lines += [*shown, ""]
    return "\n".join([*lines, *finalists_and_refused(verdict, _literal)])


def attributes(
    verdict: Verdict, attempts: Attempts, baseline: Mapping[str, Any], unit: str
) -> Iterator[tuple[str, str]]:
    """Yield the five attributes of a study that fit beside the best trial on one page."""
    yield "verdict", text_of(verdict)
    if verdict.trial is None or verdict.throughput is None:
        return
    yield "recommended", f"trial {verdict.trial}: {difference(verdict.knobs or {}, baseline)}"
    how = "provisional" if verdict.provisional else "confirmed"
    terms = Terms.of(unit)
    name = "energy of a sample" if terms.of_energy else "throughput"
    yield name, f"{how}: {range_text(verdict.own_rates, unit)}"
    if verdict.speedup:
        name = "energy" if terms.of_energy else "speed-up"
        yield name, f"{how}: {said_ratio(verdict.speedup, terms)}"
    searched = at_home_speed(attempts).searched().complete()
    best = max(searched, key=lambda attempt: attempt.result.throughput or 0.0)
    how_often = f"seen once, the luckiest of {counted(len(searched), 'trial')}"
    yield "highest value", f"trial {best.trial}: {how_often}"


def finalists_and_refused(verdict: Verdict, told: Callable[[str], str] = str) -> Iterator[str]:
    """Yield the tables of finalists and of refused configurations, where there are any.

    Args:
        told: returns a text of the study as it is written in a cell.
    """
    if verdict.knobs and verdict.finalists:
        yield f"### {_how_compared(verdict)}"
        yield ""
        yield "| trial | ratio to the recommended one | |"
        yield "|---|---|---|"
        yield from map(_finalist_row, verdict.finalists)
        if verdict.chosen_in:
            yield ""
            yield _basis(verdict)
    if verdict.refused:
        yield ""
        yield "### Refused: they compute something else"
        yield ""
        yield "| trial | differs from the recommended in | why |"
        yield "|---|---|---|"
        for refused in verdict.refused:
            changed = difference(refused.knobs, verdict.knobs or {})
            yield f"| {refused.trial} | {told(changed)} | {told(refused.reason)} |"


def _how_compared(verdict: Verdict) -> str:
    if verdict.confirmed:
        return "Finalists, measured again in turn"
    return f"What supports it: the {Terms.of(verdict.unit).best} so far, by all their runs"


def _basis(verdict: Verdict) -> str:
    """Return which rounds compare which finalists."""
    pair = [one for one in verdict.finalists if len(one.rates) > verdict.chosen_in]
    which = " and ".join("the baseline" if one.baseline else f"trial {one.trial}" for one in pair)
    text = f"By {counted(verdict.rounds, 'round')} of {which} alone"
    if len(verdict.finalists) == len(pair):
        return f"{text}."
    return f"{text}; the others by {counted(verdict.chosen_in, 'round')} of all before those."


def _configuration(
    knobs: Mapping[str, Any], baseline: Mapping[str, Any], own: Collection[str]
) -> list[str]:
    """Return the knobs of this job, and others that differ from the baseline or from their default."""
    shown = [
        f"{name}: {written(value)}"
        for name, value in knobs.items()
        if name in own or baseline.get(name, value) != value or _is_unusual(name, value)
    ]
    return ["```", *(shown or ["# all knobs at their defaults"]), "```"]


def _is_unusual(name: str, value: Any) -> bool:
    return name not in CATALOGUE or value != CATALOGUE[name].default


def _thousandths(value: float, rounding: Rounding) -> str:
    return fixed(value, 3, rounding)


def _finalist_row(finalist: Finalist) -> str:
    ratio = finalist.ratio_to_recommended
    shown = "-"
    if ratio and math.isfinite(ratio.high):
        shown = f"{ratio.value:.3f} ({bounds_text(ratio, _thousandths)})"
    elif ratio:
        shown = f"{ratio.value:.3f} (once, no interval)"
    remark = "baseline, " if finalist.baseline else ""
    remark += counted(len(finalist.rates), "run")
    if finalist.dropped_after_round:
        remark += f", dropped after round {finalist.dropped_after_round}"
    return f"| {finalist.trial} | {shown} | {remark} |"
