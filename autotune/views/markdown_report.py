"""Report of a study in Markdown: the answer first, then how far it can be trusted, then the evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.analysis.batches import BatchBest
from autotune.analysis.findings import listed
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import difference
from autotune.views import search_sections, sections
from autotune.views.dashboard_notes import finalists_and_refused
from autotune.views.figure_text import period_text, ratio_text, saving_facts
from autotune.views.figures import figures_of
from autotune.views.sections import TRUST
from autotune.views.study_figures import KnobChange, StudyFigures
from autotune.views.tables import NONE, NOTHING, Column, ReportSection, ReportTable, Row
from autotune.views.trust import Point
from search_spaces.knob import written
from storage import Repository

_SHOWN = 10
"""Trials in the table of the search."""


def report(repository: Repository, name: str, verdict: Verdict | None = None) -> str:
    """Return the report of a study."""
    return report_of(figures_of(repository, repository.studies.named(name), verdict))


def report_of(figures: StudyFigures) -> str:
    """Return the report of a study with these figures."""
    head = ["\n".join(lines(figures)) for lines in (_heading, _verdict)]
    return "\n\n".join([*head, *(_markdown(one) for one in _sections(figures) if not one.empty)])


def _heading(figures: StudyFigures) -> Iterator[str]:
    yield f"# {figures.study}"
    if figures.state == "DONE":
        return
    yield ""
    yield f"The study is {figures.state}" + (f": {figures.error}" if figures.error else ".")
    if figures.standstill:
        yield figures.standstill.text
    if figures.state in ("STOPPED", "FAILED"):
        yield f"`autotune resume {figures.study}` goes on."
    if figures.earlier:
        yield "The verdict is from before it went on."


def _verdict(figures: StudyFigures) -> Iterator[str]:
    yield "## Provisional answer" if figures.provisional else "## Verdict"
    yield ""
    yield figures.answer.text
    if figures.verdict.measured_on:
        yield ""
        when = f", {period_text(*figures.measured)}" if figures.measured else ""
        yield f"Measured on {figures.verdict.measured_on}; {figures.job.ranks}{when}."


def _sections(figures: StudyFigures) -> Iterator[ReportSection]:
    """Yield the sections after the verdict, empty ones among them."""
    trust = [_point(point) for point in figures.trust]
    yield ReportSection("What changes", tables=[_knob_table(figures.answer.changes)])
    yield ReportSection("How far to trust it", facts=trust)
    yield _saving(figures)
    yield sections.rounds(figures)
    yield _step(figures)
    yield sections.contributions(figures)
    yield _search(figures)
    finalists = "\n".join(finalists_and_refused(figures.verdict))
    yield ReportSection("", [finalists] if finalists else [])
    yield _per_batch(figures)
    yield sections.running(figures)
    yield sections.measurement(figures)
    held_back = "\n".join(listed(list(figures.bottlenecks)))
    yield ReportSection("What holds the baseline back", [held_back] if held_back else [])
    yield ReportSection("Knobs of this job", tables=[_knob_table(figures.own_knobs)])


def _knob_table(changes: Sequence[KnobChange]) -> ReportTable:
    columns = [Column(title, stays=True) for title in ("knob", "yours", "recommended")]
    return ReportTable(
        columns, [Row((one.knob, written(one.before), written(one.after))) for one in changes]
    )


def _point(point: Point) -> tuple[str, str]:
    setting = f" (`{point.setting}`)" if point.setting else ""
    return TRUST[point.trust], f"{point.title}. {point.text}{setting}"


def _saving(figures: StudyFigures) -> ReportSection:
    if figures.saving is None:
        return NOTHING
    facts = saving_facts(figures.saving, figures.cost, assumed=figures.job.hours_assumed)
    told = [(fact.name, fact.text) for fact in facts]
    return ReportSection("What it saves, what it cost", facts=told)


def _step(figures: StudyFigures) -> ReportSection:
    """Return the parts of a step, with the files of the profiles behind them."""
    found = sections.step(figures)
    if not figures.traces:
        return found
    files = "\n".join(f"- `{path}`" for path in figures.traces)
    return replace(found, note=f"{found.note}\nTraces for https://ui.perfetto.dev:\n{files}")


def _search(figures: StudyFigures) -> ReportSection:
    found = search_sections.search(figures)
    if found.empty:
        return found
    return replace(found, tables=[*found.tables, search_sections.trials(figures, _SHOWN)])


def _per_batch(figures: StudyFigures) -> ReportSection:
    """Return the best configuration of each global batch."""
    titles = ("global batch", "trial", "over yours", "rounds", "changes")
    rows = [_batch_row(one, figures) for one in figures.batches]
    note = "Another global batch than yours wants another learning rate."
    table = ReportTable([Column(title) for title in titles], rows, note=note)
    return ReportSection("Best per global batch", tables=[table])


def _batch_row(one: BatchBest, figures: StudyFigures) -> Row:
    mark = " (yours)" if one.global_batch_size == figures.job.batch_before else ""
    ratio = ratio_text(one.speedup) if one.speedup else NONE
    changed = difference(one.knobs, figures.verdict.baseline_knobs)
    first = f"{one.global_batch_size:,}{mark}"
    return Row((first, str(one.trial), ratio, str(one.rounds or "seen once"), changed))


def _markdown(section: ReportSection) -> str:
    """Return a section in Markdown."""
    heading = f"### {section.title}" if section.title else ""
    facts = "\n".join(f"- {name}: {_in_a_line(text)}" for name, text in section.facts if text)
    tables = [_table(table.filled) for table in section.tables if table.rows]
    return "\n\n".join(filter(None, [heading, *section.texts, facts, *tables, section.note]))


def _table(table: ReportTable) -> str:
    title = f"**{table.title}**" if table.title else ""
    heads = _line([column.title for column in table.columns])
    lines = [heads, "|" + "---|" * len(table.columns), *(_line(row.cells) for row in table.rows)]
    return "\n\n".join(filter(None, [title, "\n".join(lines), table.note]))


def _line(cells: Sequence[str]) -> str:
    """Return a row of a table; nothing within a cell ends it or its row."""
    inert = (_in_a_line(text).replace("|", r"\|") for text in cells)
    return f"| {' | '.join(inert)} |"


def _in_a_line(text: str) -> str:
    return " ".join(text.split())
