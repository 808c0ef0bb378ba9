"""Sections on what supports a study's answer, and on how it was measured, as data."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.analysis.contributions import Contribution
from autotune.analysis.provenance import machine_name
from autotune.analysis.rounds import Round, Stage
from autotune.analysis.wording import counted, duration, quantity
from autotune.views.composition import StepMade
from autotune.views.figure_text import (
    MIB,
    percent,
    range_text,
    ratio_text,
    times,
)
from autotune.views.purposes import PURPOSES
from autotune.views.running import Conditions, Running
from autotune.views.study_figures import Job, StudyFigures
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
from autotune.views.trust import Trust
from autotune.views.verdict_text import memory_facts
from search_spaces.knob import written
from storage import Purpose, StoredNoise

TRUST = {Trust.MEASURED: "Measured", Trust.CARE: "With care", Trust.OPEN: "Not known"}
_MILLI, _PER_TERA = 1e3, 1e-12
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
                *(str(one.number), str(trial), cell(one.ratios, trial, times)),
                cell(one.so_far, trial, ratio_text) if running else "",
                *(cell(one.rates, member, quantity) for member in (trial, baseline)),
                _trouble(one, trial, baseline) or ("disturbed" if disturbed else ""),
            ]
            yield Row(cells)


def _trouble(one: Round, trial: int, baseline: int) -> str:
    """Return why a trial or the baseline failed in a round; empty if neither did."""
    if trial in one.failed:
        return one.failed[trial][:MOST_OF_CAUSE]
    return f"yours: {one.failed[baseline]}"[:MOST_OF_CAUSE] if baseline in one.failed else ""


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
    if Purpose.ABLATION in runs:
        return "Not known: no variant of the winner ran in the same round as the winner itself."
    if figures.provisional:
        return "Not measured yet."
    if not figures.contribution_rounds:
        return "Not measured: `measurement.ablation_rounds` is 0."
    several = 1 + len(figures.answer.changes)
    confirmed = runs.get(Purpose.CONFIRM)
    each = confirmed.seconds / confirmed.count if confirmed else 0.0
    seconds = figures.contribution_rounds * several * each
    return (
        f"Not measured: the time was over. {counted(figures.contribution_rounds, 'round')} of "
        f"{counted(several, 'run')} would take about {duration(seconds)} (`budget.wall_time`)."
    )


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
        ("runs in turn with the others, block by block", ran.interleaved or None, "{:d}"),
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
    runs = [(PURPOSES[one.purpose].name, one.count, one.seconds) for one in figures.runs]
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
