"""Sections that report and page of a study share, as data; each medium has a renderer of its own.

Code in a text stands between backticks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.analysis.contributions import Contribution
from autotune.analysis.provenance import machine_name
from autotune.analysis.rounds import Round, Stage
from autotune.analysis.wording import counted, difference, duration, quantity
from autotune.measurement.estimate import Ratio
from autotune.views.composition import StepMade
from autotune.views.figure_text import (
    MIB,
    UNKNOWN,
    bounds_text,
    expected_text,
    factor_text,
    percent,
    range_text,
    ratio_text,
    short_ratio,
    times,
)
from autotune.views.figures import Failed, Job, StudyFigures
from autotune.views.running import Conditions, Racing, Running
from autotune.views.trial_figures import TrialFigures
from autotune.views.trust import Trust
from autotune.views.verdict_text import memory_facts
from search_spaces.knob import written
from storage import ChoiceReason, FinalistChoice, StoredNoise

TRUST = {Trust.MEASURED: "Measured", Trust.CARE: "With care", Trust.OPEN: "Not known"}
NONE = "–"
"""Cell without a figure."""
_NUMBERS = 10
"""Trials that are numbered of those that failed in the same way."""
_CAUSES, _CAUSE = 24, 200
"""Causes of failures that are told, and characters of one in a table."""
_MILLI, _PER_TERA = 1e3, 1e-12
_ENDS = {"COMPLETE": "complete", "PRUNED": "ended early"}
"""Usual ends of trials in words."""
_DISTURBED = 0.1
"""Share of disturbed blocks from which on a trial is said to be disturbed."""
_SHOWN_PART = 0.001
"""Share of a step from which on a part is shown."""
_A_PAIR = 2
"""Members of a round with one finalist and the baseline."""
STAGES = {
    Stage.CHOICE: "Rounds that chose among the finalists and yours",
    Stage.GAIN: "Rounds that tell by how much it is better",
    Stage.BEFORE: "Rounds that do not count: another machine, or the search went on",
    Stage.OPEN: "The last round, which is not complete",
}
"""Title of the rounds of each stage."""
CHOICES = {
    ChoiceReason.FINALIST: "measured again",
    ChoiceReason.REFUSED: "not measured again, for a check refuses it",
    ChoiceReason.PASSED_OVER: "not measured again: behind beyond doubt, or no time for its check",
    ChoiceReason.BEYOND: "not measured again: `measurement.finalists`, or the time",
}
"""Why a trial was measured again or not."""
PURPOSES = {
    "search": "trials of the search",
    "paired": "yours beside a trial",
    "calibrate": "yours again",
    "reference": "numerics: the fp32 reference",
    "autocast": "numerics: rounding of bf16",
    "numerics": "numerics: losses against it",
    "confirm": "runs of the rounds",
    "repeat": "yours in more processes",
    "long": "runs for minutes",
    "attribute": "one change taken back",
    "profile": "profiles of a step",
    "fit": "largest micro-batch",
    "epochs": "short epochs",
    "longest": "longest samples",
}
"""Name of each purpose of attempts in words."""
_TRIAL_NOTES = {
    "rate": "Rates as measured.",
    "yours": "Yours: of the run beside it, or the mean of yours where it ran alone.",
    "MiB": "MiB: peak memory of a rank.",
    "expected": "Expected: by the model of a step, from all trials together.",
    "why:": "Without a reason: the sampler chose it.",
}
"""Label of a column of the trials -> what it means."""


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        css: class of its cells on the page; `n` is that of numbers.
        label: word before a cell on a screen that is too narrow for a row of titles.
        stays: True if it is shown although all of its cells are empty.
    """

    title: str
    css: str = ""
    label: str = ""
    stays: bool = False


@dataclass(frozen=True)
class Row:
    """Row of a table, with its class on the page."""

    cells: Sequence[str]
    css: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Table of a section; a column without any text is not shown, unless it says that it stays."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    note: str = ""
    css: str = ""

    @property
    def filled(self) -> "ReportTable":
        """Table without the empty columns."""
        shown = [
            at
            for at, column in enumerate(self.columns)
            if column.stays or any(row.cells[at] for row in self.rows)
        ]
        rows = [Row([row.cells[at] for at in shown], row.css) for row in self.rows]
        return replace(self, columns=[self.columns[at] for at in shown], rows=rows)


@dataclass(frozen=True)
class ReportSection:
    """Section of a study's report or page.

    Attributes:
        texts: paragraphs it begins with.
        facts: names and texts; one without a text is not shown.
        note: what its tables rest on.
    """

    title: str
    texts: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[ReportTable] = ()
    note: str = ""

    @property
    def empty(self) -> bool:
        """True if it has nothing but a title."""
        return not (self.texts or self.facts or any(one.rows for one in self.tables))


NOTHING = ReportSection("")
"""Section of which a study has nothing."""


def code(text: str) -> str:
    """Return a text as code, which cannot hold a backtick."""
    return f"`{text.replace('`', chr(39))}`"


def _cell(found: Mapping[int, Any], trial: int, form: Callable[[Any], str]) -> str:
    """Return the figure of a trial; a dash if it has none."""
    return form(found[trial]) if trial in found else NONE


def rounds(figures: StudyFigures) -> ReportSection:
    """Return the rounds, with a table of those of each stage."""
    baseline = figures.answer.baseline
    stages = [[one for one in figures.rounds if one.stage is stage] for stage in STAGES]
    if baseline is None:
        return NOTHING
    tables = [_round_table(several, baseline, figures.unit) for several in stages if several]
    texts = [
        "In each round all ran in turn. The pace of the machine changes, and all feel it alike: so the "
        "ratio counts, and not the rates."
    ]
    if not any(table.rows for table in tables):
        return NOTHING
    note = _rounds_note(figures.rounds)
    return ReportSection("The rounds, one by one", texts, tables=tables, note=note)


def _rounds_note(several: Sequence[Round]) -> str:
    """Return what the results so far are; empty where there are none."""
    if not any(one.so_far for one in several):
        return ""
    chose = any(one.so_far and one.stage is Stage.CHOICE for one in several)
    looks = (
        "While rounds choose, the interval by those so far holds although it is looked at after each. "
        if chose
        else ""
    )
    return f"{looks}{NONE}: too few rounds so far."


def _round_table(several: Sequence[Round], baseline: int, unit: str) -> ReportTable:
    columns = [
        *(Column(title, "n") for title in ("round", "trial", "over yours")),
        Column("by these rounds so far"),
        *(Column(title, "n") for title in (unit, "yours")),
        Column(""),
    ]
    return ReportTable(columns, list(_round_rows(several, baseline)), stage_title(several))


def _round_rows(several: Sequence[Round], baseline: int) -> Iterator[Row]:
    running = any(one.so_far for one in several)
    for one in several:
        for trial in sorted({*one.rates, *one.failed} - {baseline}):
            disturbed = {trial, baseline} & {*one.disturbed}
            cells = [
                *(str(one.number), str(trial), _cell(one.ratios, trial, times)),
                _cell(one.so_far, trial, ratio_text) if running else "",
                *(_cell(one.rates, member, quantity) for member in (trial, baseline)),
                _trouble(one, trial, baseline) or ("disturbed" if disturbed else ""),
            ]
            yield Row(cells)


def _trouble(one: Round, trial: int, baseline: int) -> str:
    """Return why a trial or the baseline failed in a round; empty if neither did."""
    if trial in one.failed:
        return one.failed[trial][:_CAUSE]
    return f"yours: {one.failed[baseline]}"[:_CAUSE] if baseline in one.failed else ""


def stage_title(several: Sequence[Round]) -> str:
    """Return the title of the rounds of one stage.

    Rounds of a single finalist chose nothing if the speed-up rests on them.
    """
    stage = several[0].stage
    tells = all(len(one.rates) + len(one.failed) <= _A_PAIR and one.counts for one in several)
    return STAGES[Stage.GAIN if stage is Stage.CHOICE and tells else stage]


def step(figures: StudyFigures) -> ReportSection:
    """Return the parts of a step, of both configurations where the baseline is not kept."""
    made = figures.step
    if made is None:
        return NOTHING
    kept = figures.answer.trial == figures.answer.baseline
    parts = [
        Row(_part_cells(part.label, part.before, part.after, kept=kept), f"sw p{place % 8}")
        for place, part in enumerate(made.parts)
        if max(part.before / made.before, part.after / made.after) >= _SHOWN_PART
    ]
    total = Row(_part_cells("a step", made.before, made.after, kept=kept), "sum")
    titles = ("yours", "tuned", "change")
    columns = [Column("ms of a step"), *(Column(title, "n") for title in titles)]
    note = step_note(made, figures.job, kept=kept)
    table = ReportTable(columns, [*parts, total])
    return ReportSection("Where a step's time goes", tables=[table], note=note)


def _part_cells(name: str, before: float, after: float, *, kept: bool) -> list[str]:
    tuned = ["", ""] if kept else [quantity(after), change_text(after - before)]
    return [name, quantity(before), *tuned]


def change_text(value: float) -> str:
    """Return a difference with its sign; 0 has none."""
    size = quantity(abs(value))
    return size if size == "0" else f"{'−' if value < 0 else '+'}{size}"


def step_note(made: StepMade, job: Job, *, kept: bool) -> str:
    """Return what the parts of a step rest on, and what a step is where the two differ in it.

    Args:
        kept: whether the baseline is kept, so that there is but one look.
    """
    before, after = job.batch_before, job.batch_after
    other = (
        "" if before == after else f" A tuned step trains {after} samples, one of yours {before}."
    )
    looks = " and ".join(counted(steps, "step") for steps in made.looks[: 1 if kept else 2])
    return (
        f"Shares of one look under the profiler ({looks}), times the confirmed time of a step. A look "
        f"has no interval: differences of a few per cent may be chance.{other}"
    )


def contributions(figures: StudyFigures) -> ReportSection:
    """Return what each change of the recommendation brings, or why that is not known."""
    title, gains = "What each change brings", figures.contributions
    if not figures.answer.better:
        return NOTHING
    if not gains:
        return ReportSection(title, [why_no_contributions(figures)])
    columns = [Column(name) for name in ("knob", "yours", "recommended", "gain")]
    rows = [
        Row((tied(one), written(one.before), written(one.after), ratio_text(one.gain)))
        for one in gains
    ]
    note = (
        "The recommended configuration over itself with that one change taken back, and with it what "
        f"cannot run without it; in turn, in {counted(max(one.rounds for one in gains), 'round')}. The "
        "intervals hold for all at once (95 %). Knobs help and hinder each other, so that the gains "
        'need not multiply to the whole. The "importance" of a search dashboard is something else: how '
        "much trials differed, luck included."
    )
    return ReportSection(
        title, [_told_apart(gains)], tables=[ReportTable(columns, rows)], note=note
    )


def _told_apart(gains: Sequence[Contribution]) -> str:
    unsure = [one.knob for one in gains if not one.gain.distinguishable]
    if len(unsure) == len(gains):
        return "Not known: each may bring nothing, or all of it. Only the total is known."
    if unsure:
        return f"Not known of {', '.join(unsure)}: the interval contains 1."
    return "Each alone is distinguishable from 1."


def tied(one: Contribution) -> str:
    """Return the knob of a contribution with those that had to go back with it."""
    return f"{one.knob} (with {', '.join(one.tied)})" if one.tied else one.knob


def why_no_contributions(figures: StudyFigures) -> str:
    """Return why it is not known what each change of the recommendation brings."""
    runs = {one.purpose: one for one in figures.runs}
    if "attribute" in runs:
        return "Not known: no variant of the winner ran in the same round as the winner itself."
    if figures.provisional:
        return "Not measured yet."
    if not figures.contribution_rounds:
        return "Not measured: `measurement.attribution` is 0."
    several = 1 + len(figures.answer.changes)
    confirmed = runs.get("confirm")
    each = confirmed.seconds / confirmed.count if confirmed else 0.0
    seconds = figures.contribution_rounds * several * each
    return (
        f"Not measured: the time was over. {counted(figures.contribution_rounds, 'round')} of "
        f"{counted(several, 'run')} would take about {duration(seconds)} (`budget.wall_time`)."
    )


def search(figures: StudyFigures) -> ReportSection:
    """Return how the search went, and which of its trials were measured again."""
    found = figures.search
    if not figures.trials:
        return NOTHING
    states = ", ".join(f"{n:,} {_ENDS.get(state, state)}" for state, n in found.trials.items())
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
    return f"{which} {numbers}{f' and {more} more' if more > 0 else ''}: {one.state}{cause}"


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
                _cell(seen, one.trial, short_ratio),
                _cell(fresh, one.trial, short_ratio),
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
        return one.rate is None, not one.recommended, not one.baseline, not one.in_turn, -speed

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
        return f"`{one.state}` {one.cause[:_CAUSE]}"
    if one.baseline:
        return "yours"
    text = "in turn" if one.in_turn else "alone"
    if one.state == "PRUNED":
        text += ", ended early"
    if one.disturbed_share is not None and one.disturbed_share >= _DISTURBED:
        text += f", {one.disturbed_share:.0%} disturbed"
    return text


def running(figures: StudyFigures) -> ReportSection:
    """Return how the recommended configuration ran, or the baseline where it is kept."""
    ran, rates = figures.running, figures.answer.rates
    if ran is None:
        return NOTHING
    facts = [
        ("seen in", f"{counted(ran.runs, 'run')}, {counted(ran.blocks, 'block')}"),
        ("rate, from round to round", range_text(rates, figures.unit) if rates else ""),
        *_running_rows(ran, figures.step),
        *(memory_facts(figures.verdict.memory) if figures.verdict.memory else ()),
    ]
    title = f"How {'the recommended' if figures.answer.better else 'your'} configuration ran"
    if not ran.utilisation or ran.utilisation <= 1:
        return ReportSection(title, facts=facts)
    wrong = "More than the device can do: the FLOP count or the device's peak is wrong."
    return ReportSection(title, facts=facts, note=wrong)


def _running_rows(ran: Running, made: StepMade | None) -> Iterator[tuple[str, str]]:
    """Yield label and figure of what was observed of the recommended configuration."""
    # A composition splits the mean, in which the slow steps are: the median lies beside it.
    exposed = None if made else ran.exposed_share
    rows = [
        ("runs in turn with the others, block by block", ran.in_turn or None, "{:d}"),
        ("step time, mean, ms", made and quantity(made.after), "{}, which the composition splits"),
        ("step time, median, ms", _quantity(ran.step_p50, _MILLI), "{}"),
        ("step time, 95th percentile, ms", _quantity(ran.step_p95, _MILLI), "{}"),
        ("step time, longest, ms", _quantity(ran.step_max, _MILLI), "{}"),
        ("waiting for the loader", ran.wait_share, "{:.1%} of the time"),
        ("communication that every rank waited for", exposed, "{:.1%} of the time"),
        ("slowest rank over the median one", ran.straggler, "{:.3f}"),
        ("peak memory of a rank", ran.peak_bytes / MIB, "{:,.0f} MiB"),
        ("memory left free", ran.headroom, "{:.1%}"),
        ("model TFLOP/s of a rank", _quantity(ran.flops, _PER_TERA), "{}"),
        ("of the device's peak", ran.utilisation, "{:.1%}"),
        ("clock of the slowest device", ran.clock_mhz, "{:,.0f} MHz"),
        ("energy of a sample", _quantity(ran.energy_per_sample), "{} J"),
        ("power of all devices, mean", _quantity(ran.watts), "{} W"),
        ("compiling", ran.compile_seconds or None, "{:.1f} s"),
    ]
    for label, value, form in rows:
        if value is not None:
            yield label, form.format(value)


def _quantity(value: float | None, factor: float = 1.0) -> str | None:
    return None if value is None else quantity(factor * value)


def measurement(figures: StudyFigures) -> ReportSection:
    """Return how and where the study was measured."""
    totals = (
        "all",
        sum(one.count for one in figures.runs),
        sum(one.seconds for one in figures.runs),
    )
    runs = [
        (PURPOSES.get(one.purpose, one.purpose), one.count, one.seconds) for one in figures.runs
    ]
    rows = [Row((name, str(count), duration(seconds))) for name, count, seconds in [*runs, totals]]
    rows[-1] = replace(rows[-1], css="sum")
    job = figures.job
    ranks = ", ".join(filter(None, [job.ranks, job.ranks and job.backend]))
    facts = [
        *_machines(figures),
        ("Job", code(f"{job.workload} {job.arguments}".strip())),
        ("Ranks", ranks),
        *(_noise(figures.noise) if figures.noise and figures.noise.runs > 1 else ()),
        *_conditions(figures.conditions),
    ]
    columns = [Column("runs"), Column("count", "n"), Column("time", "n")]
    title = "How and where it was measured"
    return ReportSection(title, facts=facts, tables=[ReportTable(columns, rows)])


def _machines(figures: StudyFigures) -> Iterator[tuple[str, str]]:
    for one in figures.environments:
        yield "Machine", machine_name(one)
        names = ("torch", "python", "cuda", "nccl", "driver", "kernel", "autotune")
        known = (f"{name} {one[name]}" for name in names if one.get(name))
        yield "Software", ", ".join(known)


def _noise(noise: StoredNoise) -> Iterator[tuple[str, str]]:
    yield (
        "Equal runs differ by",
        f"{noise.sigma_run:.1%} from process to process (standard deviation, beyond the scatter within "
        f"each; by {counted(noise.runs, 'run')} of yours)",
    )
    if noise.drift_per_hour:
        yield "Drift", f"{noise.drift_per_hour:+.1%} per hour"


def _conditions(found: Conditions) -> Iterator[tuple[str, str]]:
    """Yield label and figure of what was observed of the machine during the timed runs."""
    if found.foreign_cpu is not None and found.most_foreign_cpu is not None:
        mean, most = percent(found.foreign_cpu), percent(found.most_foreign_cpu)
        yield "Others took of the processors", f"{mean} % on average, {most} % in one run at most"
    if found.disturbed_share is not None:
        yield "Blocks that others disturbed", f"{found.disturbed_share:.0%}"
    if found.clock_mhz is not None:
        low, high = (f"{value:,.0f}" for value in found.clock_mhz)
        clock = low if low == high else f"{low} to {high}"
        yield "Clock of the slowest device", f"{clock} MHz, from run to run"
