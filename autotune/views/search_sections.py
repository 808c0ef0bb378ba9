"""Section on the search of a study, and the table of its trials, as data."""

from collections.abc import Sequence
from dataclasses import replace

from autotune.analysis.wording import counted, difference, duration, end_in_words, quantity
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import (
    MIB,
    UNKNOWN,
    bounds_text,
    expected_text,
    factor_text,
    short_ratio,
    times,
)
from autotune.views.running import Racing
from autotune.views.study_figures import Failed, StudyFigures
from autotune.views.tables import (
    MOST_OF_CAUSE,
    NONE,
    NOTHING,
    Column,
    ReportSection,
    ReportTable,
    Row,
    cell,
    code,
)
from autotune.views.trial_figures import TrialFigures
from storage import ChoiceReason, FinalistChoice

_NUMBERS = 10
"""Trials that are numbered of those that failed in the same way."""
_CAUSES = 24
"""Causes of failures that are told."""
_DISTURBED = 0.1
"""Share of disturbed blocks from which on a trial is said to be disturbed."""
CHOICES = {
    ChoiceReason.FINALIST: "measured again",
    ChoiceReason.REFUSED: "not measured again, for a check refuses it",
    ChoiceReason.PASSED_OVER: "not measured again: behind beyond doubt, or no time for its check",
    ChoiceReason.BEYOND: "not measured again: `measurement.finalists`, or the time",
}
"""Why a trial was measured again or not."""
_TRIAL_NOTES = {
    "rate": "Rates as measured.",
    "yours": "Yours: of the run beside it, or the mean of yours where it ran alone.",
    "MiB": "MiB: peak memory of a rank.",
    "expected": "Expected: by the model of a step, from all trials together.",
    "why:": "Without a reason: the sampler chose it.",
}
"""Label of a column of the trials -> what it means."""


def search(figures: StudyFigures) -> ReportSection:
    """Return how the search went, and which of its trials were measured again."""
    found = figures.search
    if not figures.trials:
        return NOTHING
    states = ", ".join(f"{n:,} {end_in_words(state)}" for state, n in found.trials.items())
    others = sum(len(one.trials) for one in found.failures[_CAUSES:])
    facts = [
        ("Space", found.space),
        *(("Left out", reason) for reason in found.left_out),
        ("Ended", _ended(figures)),
        ("Ended early", _early(found.stopped_early)),
        *(("Failed", failed_text(one)) for one in found.failures[:_CAUSES]),
        ("Failed", f"{counted(others, 'more trial')}, in other ways" if others else ""),
    ]
    texts = [f"{counted(len(figures.trials), 'trial')}: {states}."]
    return ReportSection("The search", texts, facts, [_choices(figures)])


def _ended(figures: StudyFigures) -> str:
    """Return why the search ended, and what one more trial was expected to bring."""
    if not figures.search.ended:
        return "not yet" if figures.state == "RUNNING" else "it has not come to its end"
    gain = figures.search.expected_gain
    more = "" if gain is None else f"; one more trial was expected to bring {expected_text(gain)}"
    return f"{figures.search.ended}{more}"


def _early(found: Racing) -> str:
    if not found.stopped:
        return ""
    share = f", which saved {duration(found.seconds)}, {found.share:.0%} of the search"
    return counted(found.stopped, "trial") + (share if found.seconds >= 1 else "")


def failed_text(one: Failed) -> str:
    """Return trials that failed in the same way, as 'trials 3, 5: OOM, out of memory'."""
    which = "trial" if len(one.trials) == 1 else "trials"
    numbers = ", ".join(map(str, one.trials[:_NUMBERS]))
    more = len(one.trials) - _NUMBERS
    cause = f", {one.cause}" if one.cause else ""
    which += f" {numbers} and {more} more" if more > 0 else f" {numbers}"
    return f"{which}: {end_in_words(one.state)}{cause}"


def _choices(figures: StudyFigures) -> ReportTable:
    """Return which trials were measured again, what each was expected to bring, and what it brought."""
    seen = {one.trial: one.ratio for one in figures.trials if one.ratio}
    told = [one.so_far for one in figures.rounds if one.counts]
    fresh = told[-1] if told else {}
    rows = [
        Row(
            [
                str(one.trial),
                expected_ratio(one) or NONE,
                cell(seen, one.trial, short_ratio),
                cell(fresh, one.trial, short_ratio),
                reason_text(one),
            ]
        )
        for one in figures.search.choices
    ]
    ratios = ("expected", "seen once", "by rounds")
    columns = [Column("trial", "n"), *(Column(name, "n", name) for name in ratios), Column("")]
    note = (
        "All over yours. Expected: by the model of a step, from all trials, when the search ended, with "
        "its own interval; it orders the trials. Seen once: in the trial itself, luck included. By "
        "rounds: the result; a dash: it had none, or they only chose. The three rest on different runs, "
        "and need not agree."
    )
    return ReportTable(columns, rows, "Which trials were measured again", note, "choice")


def expected_ratio(one: FinalistChoice) -> str:
    """Return what the model expected of a trial, as '1.15x (1.10 to 1.21)'; empty if it said nothing."""
    if one.expected is None:
        return ""
    if one.expected_low is None or one.expected_high is None:
        return times(one.expected)
    ratio = Ratio(one.expected, one.expected_low, one.expected_high)
    return f"{factor_text(ratio)} ({bounds_text(ratio)})"


def reason_text(one: FinalistChoice) -> str:
    """Return why a trial was measured again or not, as 'measured again'."""
    return CHOICES[one.reason] + (f": {one.detail}" if one.detail else "")


def trials(figures: StudyFigures, most: int) -> ReportTable:
    """Return the trials of the search, the timed ones first.

    Args:
        most: number of trials that are shown.
    """
    columns = [
        Column("trial", "n"),
        Column("over yours, seen once", "ratio"),
        Column("how", "how"),
        Column("expected", "n", "expected"),
        Column(figures.unit, "n", "rate"),
        Column("yours", "n", "yours"),
        Column("MiB", "n", "MiB"),
        Column("changes", "changes"),
        Column("tried because", "why", "why:"),
    ]
    shown = best_first(figures.trials)[:most]
    cut = f", {most} of {len(figures.trials)}" if len(figures.trials) > most else ""
    rows = [_trial_row(one) for one in shown]
    table = ReportTable(columns, rows, f"The trials{cut}", css="tried")
    return replace(table, note=_trials_note(table))


def _trials_note(table: ReportTable) -> str:
    """Return what those columns of the trials mean that are shown."""
    labels = {column.label for column in table.filled.columns}
    notes = [text for label, text in _TRIAL_NOTES.items() if label in labels]
    doubted = any(row.cells[1].startswith("?") for row in table.rows)
    return " ".join([f"?: {UNKNOWN}.", *notes] if doubted else notes)


def best_first(several: Sequence[TrialFigures]) -> list[TrialFigures]:
    """Return trials: recommended, yours, paired, others, each fastest first; those that failed last."""

    def place(one: TrialFigures) -> tuple[bool, bool, bool, bool, float]:
        speed = one.ratio.value if one.ratio else (one.rate or 0.0)
        return one.rate is None, not one.recommended, not one.baseline, not one.interleaved, -speed

    return sorted(several, key=place)


def _trial_row(one: TrialFigures) -> Row:
    css = "win" if one.recommended else "own" if one.baseline else "bad" if one.rate is None else ""
    beside = None if one.baseline else one.reference_rate
    cells = [
        str(one.trial),
        short_ratio(one.ratio) if one.ratio else NONE,
        how_text(one),
        times(one.expected) if one.expected is not None else "",
        quantity(one.rate) if one.rate is not None else "",
        quantity(beside) if beside else "",
        quantity(one.peak_bytes / MIB) if one.peak_bytes else "",
        code(difference(one.changes, {})),
        "" if one.suggested_by == "baseline" else _first_words(one.suggested_by),
    ]
    return Row(cells, css)


def _first_words(reason: str) -> str:
    """Return the first part of a reason: what follows names every knob in it."""
    return reason.partition(";")[0].partition(":")[0]


def how_text(one: TrialFigures) -> str:
    """Return how a trial was compared with yours, or how it failed."""
    if one.rate is None:
        return f"`{end_in_words(one.state)}` {one.cause[:MOST_OF_CAUSE]}"
    if one.baseline:
        return "yours"
    text = "in turn" if one.interleaved else "alone"
    if one.state == "PRUNED":
        text += ", ended early"
    if one.disturbed_share is not None and one.disturbed_share >= _DISTURBED:
        text += f", {one.disturbed_share:.0%} disturbed"
    return text
