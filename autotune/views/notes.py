"""Notes for optuna-dashboard, in Markdown."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.analysis.conclusion import mean_rate
from autotune.analysis.levels import AT_HOME, Level
from autotune.analysis.verdict import Finalist, Verdict
from autotune.analysis.wording import counted, difference, quantity, rate_text
from autotune.measurement.estimate import Ratio
from autotune.views.verdict_text import text_of
from search_spaces import CATALOGUE
from search_spaces.knob import written
from storage import AttemptResult, StoredAttempt

_MIB = 2**20


def trial_note(
    attempt: StoredAttempt,
    result: AttemptResult,
    unit: str,
    *,
    confirmed: Sequence[float] = (),
    level: Level = AT_HOME,
) -> str:
    """Return the note of a trial: throughput with interval, memory, cause of failure.

    Args:
        confirmed: its throughput by round, if it was measured again.
        level: factor of its node, by which the throughput has been multiplied already.
    """
    lines = [f"### {result.state}"]
    if result.throughput is not None and result.half_width is not None:
        rate = Ratio(
            result.throughput,
            result.throughput * max(0.0, 1 - result.half_width),
            result.throughput * (1 + result.half_width),
        )
        lines.append(f"- throughput: {rate_text(rate, unit)}")
        if level.error:
            lines.append(
                f"- that is {level.factor:.3f} times what was measured: by so much is the baseline "
                f"faster where its own trial ran than on this node, ±{level.error:.1%} (standard "
                "error), which comes on top"
            )
    if confirmed:
        lines.append(
            f"- measured again in {counted(len(confirmed), 'round')}, which is what counts: "
            f"{rate_text(mean_rate(confirmed), unit)}"
        )
    if result.block_half_width is not None and result.sigma_run is not None:
        lines.append(
            f"- of the interval: ±{result.block_half_width:.1%} from the blocks; equal runs differ by "
            f"{result.sigma_run:.1%} (standard deviation)"
        )
    if result.peak_bytes:
        lines.append(f"- peak memory of a rank: {quantity(result.peak_bytes / _MIB)} MiB")
    if result.cause:
        lines.append(f"- cause: {result.cause}")
    if result.throughput is not None and not result.steady:
        lines.append("- unsteady: still drifting or scattering when its warm-up ran out")
    if result.contended:
        lines.append("- contended: other processes used the processors in every repetition too")
    if result.resident_of is not None:
        lines.append(
            "- ran in processes that were there: those of the look at the baseline, or of a trial from "
            "which it differs in nothing but what acts on a step"
        )
    lines.append(f"- took {result.wall_seconds:.1f} s, attempt {attempt.attempt}")
    return "\n".join([*lines, "", *_configuration(attempt.knobs)])


def study_note(verdict: Verdict) -> str:
    """Return the note of a study: its answer, the configuration, and what supports it."""
    lines = ["## Provisional answer" if verdict.provisional else "## Verdict", ""]
    lines += [text_of(verdict), ""]
    lines += [f"Measured on {verdict.measured_on}.", ""] if verdict.measured_on else []
    if verdict.knobs:
        lines += ["### For now" if verdict.provisional else "### Recommended", ""]
        lines += [*_configuration(verdict.knobs, verdict.baseline_knobs), ""]
        lines += [f"### {_how_compared(verdict)}", ""]
        lines += ["| trial | ratio to the recommended one | |", "|---|---|---|"]
        lines += [_finalist_row(finalist) for finalist in verdict.finalists]
        lines += ["", _basis(verdict)] if verdict.chosen_in else []
    if verdict.refused:
        lines += ["", "### Refused: they compute something else", ""]
        lines += ["| trial | differs from the recommended in | why |", "|---|---|---|"]
        lines += [
            f"| {refused.trial} | {difference(refused.knobs, verdict.knobs or {})} | "
            f"{refused.reason} |"
            for refused in verdict.refused
        ]
    return "\n".join(lines)


def _how_compared(verdict: Verdict) -> str:
    if verdict.confirmed:
        return "Finalists, measured again in turn"
    return "What supports it: the fastest so far, by all their runs"


def _basis(verdict: Verdict) -> str:
    """Return which rounds compare which finalists."""
    pair = [one for one in verdict.finalists if len(one.rates) > verdict.chosen_in]
    which = " and ".join("the baseline" if one.baseline else f"trial {one.trial}" for one in pair)
    text = f"By {counted(verdict.rounds, 'round')} of {which} alone"
    if len(verdict.finalists) == len(pair):
        return f"{text}."
    return f"{text}; the others by {counted(verdict.chosen_in, 'round')} of all before those."


def _configuration(knobs: dict[str, Any], baseline: Mapping[str, Any] | None = None) -> list[str]:
    """Return the knobs with another value than their default, or than that of the baseline."""
    today = baseline or {}
    shown = [
        f"{name}: {written(value)}"
        for name, value in knobs.items()
        if today.get(name, value) != value or _is_unusual(name, value)
    ]
    return ["```", *(shown or ["# all knobs at their defaults"]), "```"]


def _is_unusual(name: str, value: Any) -> bool:
    return name not in CATALOGUE or value != CATALOGUE[name].default


def _finalist_row(finalist: Finalist) -> str:
    ratio = finalist.ratio_to_recommended
    shown = "-"
    if ratio and math.isfinite(ratio.high):
        shown = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    elif ratio:
        shown = f"{ratio.value:.3f} (once, no interval)"
    remark = "baseline, " if finalist.baseline else ""
    remark += counted(len(finalist.rates), "run")
    if finalist.dropped_after_round:
        remark += f", dropped after round {finalist.dropped_after_round}"
    return f"| {finalist.trial} | {shown} | {remark} |"
