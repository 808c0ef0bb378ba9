"""Page of a study: one self-contained file without a script, and nothing that is loaded from elsewhere.

All figures are those of autotune.views.study_figures. Every text goes through `escaped`: names, causes
and output of trials are inert.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import resources

from autotune.analysis.provenance import machine_name
from autotune.analysis.saving import Saving
from autotune.analysis.verdict import Kind
from autotune.analysis.wording import Rounding, Terms, counted, quantity
from autotune.measurement.estimate import Ratio
from autotune.views import page_charts as charts
from autotune.views import search_sections, sections
from autotune.views.figure_text import (
    CI,
    UNKNOWN,
    Known,
    LabelledFigure,
    bounds_text,
    claim,
    factor_text,
    hours,
    least,
    percent_form,
    period_text,
    ratio_text,
    said_ratio,
    saving_facts,
)
from autotune.views.sections import TRUST
from autotune.views.study_figures import Job, StudyFigures
from autotune.views.svg import escaped
from autotune.views.tables import Column, ReportSection, ReportTable, Row
from autotune.views.trust import Trust
from autotune.views.verdict_text import memory_text, remarks
from search_spaces.knob import written

_SHOWN, _MOST = 24, 200
"""Trials that are listed at once, and with those that fold out."""
_MESSAGES = 200
_NEAREST = Rounding.NEAREST
REFRESH = '<meta http-equiv="refresh" content="10">'
"""Element by which a browser loads a page again, after so many seconds."""
STILL = "still"
"""Name in the query of the page's address with which the page does not load itself again."""
_HOLD = f'<a href="?{STILL}=1">hold still to read</a>'
_FOLLOW = '<a href="?">follow again</a>'
"""Links by which a page that loads itself again, and closes what was opened, stops and goes on."""
_CODE = re.compile(r"`([^`]+)`")
_MARKS = {Trust.MEASURED: "✓", Trust.CARE: "!", Trust.OPEN: "?"}
_TITLES = {
    Kind.NOTHING_BETTER: "Keep what you have",
    Kind.UNDECIDED: "Keep what you have: the noise is larger than the difference",
    Kind.NO_BASELINE: "Your configuration does not run here",
    Kind.NO_RESULT: "Nothing could be measured",
    Kind.NOT_ENOUGH_TIME: "The time was over before anything was confirmed",
}
"""Title of an answer without a recommendation."""
_CONTRADICTED = "Keep what you have: later rounds do not bear out what was seen"
"""Title of an answer whose contender was not better in the rounds after those that chose it."""
_TITLES_SO_FAR = {
    Kind.NOTHING_BETTER: "Nothing is surely better than yours yet",
    Kind.UNDECIDED: "Nothing is surely better than yours yet",
    Kind.NO_BASELINE: "Yours has not been measured yet",
    Kind.NO_RESULT: "Nothing has been measured yet",
}
"""Title while the study goes on."""
_HATCH = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" stroke="var(--rec)" '
    'stroke-width="1.6"/></pattern></defs></svg>'
)
PAGE_BEGINNING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="generator" content="autotune">
"""
"""Beginning of each page, by which it is known as one of autotune."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing may be loaded or run, should a text ever not be inert."""


def page(
    figures: StudyFigures, *, trials: str = "", exported: str = "", still: bool = False
) -> str:
    """Return the page of a study as HTML.

    Args:
        exported: path of the study's best.yaml; empty if there is none.
        trials: address of its trials in optuna-dashboard, where the page is served; it then loads
            itself again while the study runs.
        still: whether it stays as it is, so that it can be read, until its reader has it go on.
    """
    bodies = [("answer", "", _answer(figures, exported))]
    bodies += [(name, title, make(figures)) for name, title, make in _SECTIONS]
    made = [(name, title, body) for name, title, body in bodies if body]
    nav = " ".join(f'<a href="#{name}">{title}</a>' for name, title, _ in made if title)
    if trials:
        nav += f' <a href="{escaped(trials)}">all trials in optuna-dashboard</a>'
    goes_on = bool(trials) and figures.state in ("RUNNING", "QUEUED")
    again = REFRESH if goes_on and not still else ""
    nav += f" {_FOLLOW if still else _HOLD}" if goes_on else ""
    style = resources.files("autotune.views").joinpath("page.css").read_text("utf-8")
    body = "\n".join(f'<section id="{name}">{body}</section>' for name, _, body in made)
    title = f"{figures.study}: {_short(figures)} · autotune"
    return f"""{PAGE_BEGINNING}<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width,initial-scale=1">{again}
<title>{escaped(title)}</title><style>{style}</style></head>
<body>{_HATCH}<main>{_header(figures)}<nav aria-label="Sections">{nav}</nav>
{body}
<footer>One file, without a script; nothing is loaded from elsewhere. The same figures as data:
<code>autotune report {escaped(figures.study)} --json</code></footer></main></body></html>
"""


def _short(figures: StudyFigures) -> str:
    answer = figures.answer
    if answer.better and answer.speedup is not None:
        said = said_ratio(answer.speedup, Terms.of(figures.unit))
        return ("so far " if figures.provisional else "") + said
    return _title(figures)


def _title(figures: StudyFigures) -> str:
    """Return the title of an answer without a recommendation."""
    kind = figures.answer.kind
    fails = kind is Kind.NO_BASELINE and figures.verdict.baseline_failure is not None
    contender = figures.verdict.contender
    if kind is Kind.UNDECIDED and contender and contender.contradicted_by:
        return _CONTRADICTED
    so_far = figures.provisional and figures.error is None and not fails
    return {**_TITLES, **(_TITLES_SO_FAR if so_far else {})}.get(kind, "No answer")


def _header(figures: StudyFigures) -> str:
    done = figures.state == "DONE"
    when = time.strftime("submitted %Y-%m-%d %H:%M UTC", time.gmtime(figures.created))
    if figures.measured is not None:
        when = f"measured {period_text(*figures.measured)}"
    parts = [
        f"<b>{escaped(figures.study)}</b>",
        f'<span class="pill {"ok" if done else "warn"}">{escaped(figures.state.lower())}</span>',
    ]
    if stands := figures.standstill:
        parts.append(f'<span class="pill warn">{stands.title}</span>')
    if figures.provisional and (figures.error is None or figures.answer.better):
        why = "its proof has not ended" if _over(figures) else "every figure may change"
        parts.append(f'<span class="pill warn">provisional: {why}</span>')
    if figures.earlier:
        parts.append('<span class="pill warn">the verdict is from before it went on</span>')
    found = figures.environments
    machine = machine_name(found[0]) if found else figures.verdict.measured_on
    texts = [machine, figures.job.ranks, when]
    parts += [f"<span>{escaped(text)}</span>" for text in texts if text]
    return f"<header>{''.join(parts)}</header>"


def _answer(figures: StudyFigures, exported: str) -> str:
    return _standstill(figures) + _found(figures, exported)


def _standstill(figures: StudyFigures) -> str:
    """Return why the study makes no progress, as the first paragraph; empty if nothing hinders it."""
    stands = figures.standstill
    return f'<p class="lead wide">{_marked(stands.text)}</p>' if stands else ""


def _found(figures: StudyFigures, exported: str) -> str:
    if not figures.answer.better:
        return _no_recommendation(figures)
    box = f'<div class="box">{_diff(figures)}{_use(figures, exported)}</div>'
    hero = f'<div class="hero"><div>{_claim(figures)}</div>{box}</div>'
    if not figures.error:
        return hero
    return f'<p class="kicker">{_ended_in(figures)}</p>{_error(figures.error)}{hero}'


def _over(figures: StudyFigures) -> bool:
    """Return whether a study was stopped or has failed."""
    return figures.state in ("STOPPED", "FAILED")


def _so_far(figures: StudyFigures) -> str:
    """Return the title of a provisional answer."""
    return "Before it ended" if _over(figures) else "So far"


def _ended_in(figures: StudyFigures) -> str:
    return escaped(f"Study {figures.state.lower()}")


def _error(text: str) -> str:
    return f'<p class="lead wide cause">{_marked(text[:1].upper() + text[1:])}</p>'


def _no_recommendation(figures: StudyFigures) -> str:
    kicker = _so_far(figures) if figures.provisional else f"Verdict{_since(figures)}"
    title = _title(figures)
    texts = [f'<p class="lead wide">{_marked(figures.answer.text)}</p>']
    if error := figures.error:
        kicker = _ended_in(figures)
        texts = [_error(error), *(texts if figures.answer.kind is not Kind.NO_RESULT else ())]
    head = f'<p class="kicker">{kicker}</p><h1 class="word">{escaped(title)}</h1>'
    return head + "".join(texts)


def _claim(figures: StudyFigures) -> str:
    answer, ratio = figures.answer, figures.answer.speedup
    assert ratio is not None
    kicker = f"Recommended, over yours{_since(figures)}"
    if figures.provisional:
        kicker = f"{_so_far(figures)}, over yours{'' if answer.confirmed else '; not confirmed'}"
    terms, batch = Terms.of(figures.unit), _batch(figures.job)
    said = terms.said(ratio)
    interval = f'<span class="ci">({bounds_text(said)}, {CI})</span>'
    what = "the energy per sample" if terms.of_energy else "as fast"
    title = f'<span class="big">{factor_text(said)}</span> {what} {interval}'
    lead = f"{_gain(ratio, figures.unit)}{batch}. {least(ratio, terms) if answer.confirmed else ''}"
    if Known.of(ratio) is Known.UNKNOWN:
        title = f'<span class="big">{bounds_text(said)}x</span>'
        text = claim(ratio, terms=terms)
        lead = f"{text[:1].upper()}{text[1:]}{batch}."
    won = (
        f"It was the {terms.better} one in {answer.won} of {counted(answer.compared, 'round')}."
        if answer.compared
        else ""
    )
    rates = charts.rate_note(figures)
    rates = f" Rates are no promise: {rates}." if rates else ""
    return (
        f'<p class="kicker">{kicker}</p><h1>{title}</h1><p class="lead">{lead}</p>'
        f'{charts.interval_strip(figures)}<p class="note">{won}{escaped(rates)}</p>{_cautions(figures)}'
    )


def _since(figures: StudyFigures) -> str:
    """Return what has become of a verdict since, as the end of a title; empty: nothing."""
    return "; the study has gone on since" if figures.earlier else ""


def _batch(job: Job) -> str:
    """Return what becomes of the global batch, as the end of a sentence; empty if it is not known."""
    before, after = job.batch_before, job.batch_after
    if before is None:
        return ""
    if before == after:
        return f", at the same global batch of {before}"
    return f", at a global batch of {after} instead of {before}, which wants another learning rate"


def _gain(ratio: Ratio, unit: str) -> str:
    """Return a gain as a share, with what it is a share of."""
    terms = Terms.of(unit)
    if terms.of_energy:
        said = terms.said(ratio)
        saved = Ratio(1 - said.value, 1 - said.high, 1 - said.low)
        form = percent_form(saved.value)
        return (
            f"<b>{form(saved.value, _NEAREST)} % less energy per sample</b> "
            f"({bounds_text(saved, form)} %), "
            f"which is {ratio_text(ratio)} in samples per joule, as tables and charts have it"
        )
    gain = Ratio(ratio.value - 1, ratio.low - 1, ratio.high - 1)
    work = unit.partition("/")[0]
    form = percent_form(gain.value)
    share = f"{form(gain.value, _NEAREST)} % more {work} a second"
    return f"<b>{share}</b> ({bounds_text(gain, form)} %)"


def _cautions(figures: StudyFigures) -> str:
    """Return the titles of what wants care, with a link to what it is."""
    titles = [point.title for point in figures.trust if point.trust is Trust.CARE]
    if not titles:
        return ""
    named = escaped("; ".join([titles[0], *(title.lower() for title in titles[1:])]))
    return f'<p class="care">! {named} (<a href="#trust">details</a>)</p>'


def _diff(figures: StudyFigures) -> str:
    answer, unsure = figures.answer, _unsure(figures)
    rows = "".join(
        f"<tr><th>{escaped(one.knob)}</th><td class=was>{escaped(written(one.before))}</td>"
        f'<td class=arrow>→</td><td class="now{" pale" if one.knob in unsure else ""}">'
        f"{escaped(written(one.after))}</td></tr>"
        for one in answer.changes
    )
    note = '<p class="note">Pale: alone not distinguishable from no gain.</p>' if unsure else ""
    return (
        f'<p class="kicker">What changes: {len(answer.changes)} of {len(figures.own_knobs)} knobs of '
        f'this job</p><table class="diff">{rows}</table>{note}'
    )


def _use(figures: StudyFigures, exported: str) -> str:
    """Return how the recommendation is used, with the command that writes it where no file has it."""
    file, commands = exported, []
    if not exported or figures.provisional:
        file = f"{figures.study}-best.yaml"
        commands.append(f"autotune export {figures.study} -o {file}")
    run = figures.job.run_with(file)
    lines = "\n".join([*commands, *filter(None, [run])])
    return (
        f'<p class="kicker">Use it</p>{f"<pre>{escaped(lines)}</pre>" if lines else ""}'
        f'<p class="note">{"or in" if run else "In"} code '
        f'<code>autotune.load("{escaped(file)}")</code></p>'
        f'<p class="note">Trial {figures.answer.trial} of the study.</p>'
    )


def _unsure(figures: StudyFigures) -> set[str]:
    """Return the changes that alone may bring nothing, where others are known to bring something."""
    found = {one.knob for one in figures.contributions if not one.gain.distinguishable}
    return found if len(found) < len(figures.contributions) else set()


def _saving(figures: StudyFigures) -> str:
    saving, cost = figures.saving, figures.cost
    if saving is None:
        return ""
    facts = saving_facts(saving, cost, assumed=figures.job.hours_assumed)
    tiles = "".join(map(_tile, facts))
    bars = _job_bars(saving) if isinstance(saving, Saving) else ""
    return f"<h2>What it saves, what it cost</h2>{bars}<div class='tiles'>{tiles}</div>"


def _job_bars(saving: Saving) -> str:
    """Return the job as it is and as it would be, to scale."""
    left = {
        end: saving.expected_job_hours - getattr(saving.hours, end)
        for end in ("value", "low", "high")
    }
    share = {end: 100 * value / saving.expected_job_hours for end, value in left.items()}
    return (
        '<div class="job"><span>today</span><div class="track"><div class="fill base" '
        f'style="width:100%"></div></div><b>{hours(saving.expected_job_hours)}</b></div>'
        '<div class="job"><span>tuned</span><div class="track"><div class="fill rec" '
        f'style="width:{share["value"]:.2f}%"></div><div class="unsure" '
        f'style="left:{share["high"]:.2f}%;width:{share["low"] - share["high"]:.2f}%"></div></div>'
        f"<b>{hours(left['value'])}</b></div>"
    )


_TILES = {
    "saves": "Saved",
    "cost": "The study cost",
    "payback": "Paid back after",
    "money": "Money",
}
"""Title of each fact of savings and cost."""


def _tile(fact: LabelledFigure) -> str:
    notes = [f"{fact.interval} ({CI})" if fact.interval else "", fact.note]
    note = "; ".join(filter(None, notes))
    return (
        f'<div class="tile"><p class="kicker">{_TILES[fact.name]}</p>'
        f'<p class="num">{escaped(fact.figure)}</p><p class="note">{_marked(note)}</p></div>'
    )


def _trust(figures: StudyFigures) -> str:
    if not figures.trust:
        return ""
    columns = ""
    for trust, title in TRUST.items():
        several = [point for point in figures.trust if point.trust is trust]
        items = "".join(
            f"<li><b>{escaped(point.title)}.</b> {_marked(point.text)}"
            + (f" <code>{escaped(point.setting)}</code>" if point.setting else "")
            + "</li>"
            for point in several
        )
        if items:
            mark = f'<span aria-hidden="true">{_MARKS[trust]}</span>'
            columns += (
                f'<div class="col {trust.value}"><h3>{mark} {title}</h3><ul>{items}</ul></div>'
            )
    more = "".join(f"<p>{_marked(text)}</p>" for text in remarks(figures.verdict))
    return f'<h2>How far to trust it</h2><div class="cols">{columns}</div>{more}'


def _rounds(figures: StudyFigures) -> str:
    section = sections.rounds(figures)
    if section.empty:
        return ""
    drawn = charts.proof_charts(figures)
    shown = charts.complete_rounds(figures)
    kinds = [("k base", "yours"), ("k", "recommended")]
    if any(one.disturbed for one in shown):
        kinds.append(("k hollow", "disturbed by others"))
    if any(not one.counts for one in shown):
        kinds.append(("k shade", "chose among finalists: does not count"))
    chart = f"{_legend_of(kinds)}{drawn}" if drawn else ""
    return f"{_head(section)}{chart}{_details('All rounds as figures', _tables(section))}"


def _step(figures: StudyFigures) -> str:
    made, section = figures.step, sections.step(figures)
    if made is None:
        return ""
    most = max(made.before, made.after)
    yours = [(part.label, part.before) for part in made.parts]
    bars = _step_bar("yours", made.before, yours, most)
    if figures.answer.trial != figures.answer.baseline:
        tuned = [(part.label, part.after) for part in made.parts]
        bars += _step_bar("tuned", made.after, tuned, most)
    return f"{_head(section)}{bars}{_tables(section)}"


def _step_bar(name: str, whole: float, parts: Iterable[tuple[str, float]], most: float) -> str:
    """Return the parts of a step to scale; `most`: milliseconds of the widest bar."""
    segments = "".join(
        f'<div class="seg p{place % 8}" style="width:{100 * ms / most:.2f}%" '
        f'title="{escaped(label)}: {quantity(ms)} ms">'
        f"{f'<span>{quantity(ms)}</span>' if ms > 0.06 * most else ''}</div>"
        for place, (label, ms) in enumerate(parts)
    )
    return (
        f'<div class="job"><span>{name}</span><div class="track stack">{segments}</div>'
        f"<b>{quantity(whole)} ms</b></div>"
    )


def _contributions(figures: StudyFigures) -> str:
    section = sections.contributions(figures)
    if not section.tables:
        return "" if section.empty else _head(section)
    rows = "".join(
        f'<div class="wrow{css}"><div class="wl"><span>{escaped(name)}</span>'
        f"<span>{escaped(text)}</span></div>{bar}</div>"
        for name, text, css, bar in charts.contribution_rows(figures)
    )
    return f"{_head(section)}{rows}{_note(f'Hatched: {UNKNOWN}. {section.note}')}"


def _search(figures: StudyFigures) -> str:
    section = search_sections.search(figures)
    if section.empty:
        return ""
    chart = charts.trials_chart(figures)
    if chart:
        again = figures.answer.better and figures.answer.confirmed
        band = "Band: what the recommended one came to when it was measured again."
        chart = f"{_legend(figures)}{chart}{_note(band if again else '')}"
    return f"{_head(section)}{_tables(section)}{chart}{_trials(figures)}"


def _legend(figures: StudyFigures) -> str:
    """Return the kinds of marks that the chart of trials has."""
    others = [one for one in figures.trials if not one.baseline]
    answer = figures.answer
    again = answer.better and answer.confirmed
    kinds = (
        ("k base", "yours", any(one.baseline for one in figures.trials)),
        ("k", "in turn with yours", any(one.interleaved for one in others)),
        ("k hollow", "alone", any(one.ratio and not one.interleaved for one in others)),
        ("k win hollow", "recommended", any(one.recommended for one in others)),
        ("k win", "the same, measured again", again),
        ("k sq", "ended early", any(one.state == "PRUNED" for one in others)),
        ("k failk", "failed", any(one.rate is None for one in others)),
    )
    return _legend_of((css, text) for css, text, there in kinds if there)


def _legend_of(kinds: Iterable[tuple[str, str]]) -> str:
    """Return a legend of marks with their classes and names."""
    marks = "".join(f'<span class="{css}">{text}</span>' for css, text in kinds)
    return f'<div class="legend">{marks}</div>'


def _marked(text: str) -> str:
    """Return a text that is inert, its code between backticks marked as such."""
    return _CODE.sub(r"<code>\1</code>", escaped(text))


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<dt>{_marked(name)}</dt><dd>{_marked(text)}</dd>" for name, text in facts if text
    )
    return f'<dl class="facts">{rows}</dl>' if rows else ""


def _note(text: str) -> str:
    return f'<p class="note">{_marked(text)}</p>' if text else ""


def _details(summary: str, body: str) -> str:
    """Return what is shown only when it is folded out."""
    return f"<details><summary>{_marked(summary)}</summary>{body}</details>"


def _head(section: ReportSection) -> str:
    """Return a section up to its tables."""
    texts = "".join(f"<p>{_marked(text)}</p>" for text in section.texts)
    return f"<h2>{escaped(section.title)}</h2>{texts}{_facts(section.facts)}"


def _tables(section: ReportSection) -> str:
    return "".join(_table(one) for one in section.tables if one.rows) + _note(section.note)


def _table(table: ReportTable) -> str:
    shown = table.filled
    heads = "".join(f"<th{_css(one.css)}>{escaped(one.title)}</th>" for one in shown.columns)
    rows = "".join(f"<tr{_css(row.css)}>{_cells(row, shown.columns)}</tr>" for row in shown.rows)
    title = f"<h3>{escaped(table.title)}</h3>" if table.title else ""
    return (
        f'{title}<table class="list {table.css}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>{_note(table.note)}"
    )


def _cells(row: Row, columns: Sequence[Column]) -> str:
    labels = [f' data-l="{one.label}"' if one.label else "" for one in columns]
    return "".join(
        f"<td{_css(one.css)}{label}>{_marked(text)}</td>"
        for one, label, text in zip(columns, labels, row.cells, strict=True)
    )


def _css(name: str) -> str:
    return f' class="{name}"' if name else ""


def _trials(figures: StudyFigures) -> str:
    """Return the trials, those that are listed at once before those that fold out."""
    table = search_sections.trials(figures, _MOST)
    listed = _table(replace(table, rows=table.rows[:_SHOWN]))
    rest = table.rows[_SHOWN:]
    if not rest:
        return listed
    told = counted(len(rest), "more trial")
    if len(figures.trials) > _MOST:
        command = f"autotune export {figures.study} --trials FILE"
        told += f"; all are in the table that `{command}` writes"
    return listed + _details(told, _table(replace(table, rows=rest, title="", note="")))


def _memory(figures: StudyFigures) -> str:
    drawn = charts.memory_chart(figures)
    if not drawn:
        return ""
    speedup, terms = figures.answer.speedup, Terms.of(figures.unit)
    fresh = ""
    if figures.verdict.confirmed and figures.answer.better and speedup is not None:
        fresh = f" The rounds since give the recommended one {ratio_text(speedup)}."
    kinds = [("k base", "yours"), ("k", "a trial (hollow: alone)")]
    legend = _legend_of([*kinds, ("k win hollow", "recommended")])
    title = f"{'Efficiency' if terms.of_energy else 'Speed'} against memory"
    return (
        f"<h2>{title}</h2><p>{escaped(memory_text(figures.verdict))}</p>{legend}{drawn}"
        f'<p class="note">As the search saw each once.{escaped(fresh)} Stepped line: the {terms.best} '
        "that was seen in as little memory.</p>"
    )


def _losses(figures: StudyFigures) -> str:
    drawn = charts.losses_chart(figures)
    if not drawn:
        return ""
    text = next((point.text for point in figures.trust if point.code == "numerics"), "")
    return (
        f"<h2>The same training</h2><p>Loss from equal weights and batches. {escaped(text)}</p>"
        '<div class="legend"><span class="k base">reference (fp32)</span><span class="k">recommended'
        f"</span></div>{drawn}"
    )


def _how(figures: StudyFigures) -> str:
    section, ran = sections.measurement(figures), sections.running(figures)
    held_back = [(f"{one.name}, baseline", one.text) for one in figures.bottlenecks]
    folded = "" if ran.empty else _details(ran.title, _facts(ran.facts) + _note(ran.note))
    return (
        f"<h2>{section.title}</h2><div class='two'><div>{_tables(section)}</div>"
        f"<div>{_facts([*section.facts, *held_back])}</div></div>{folded}"
    )


def _all(figures: StudyFigures) -> str:
    said = "".join(f"<li>{escaped(one.text)}</li>" for one in figures.messages[-_MESSAGES:])
    text = f"<p>{escaped(figures.answer.text)}</p><ul class='log'>{said}</ul>"
    return _unchanged(figures) + _details("The verdict in words, and what the study said", text)


def _unchanged(figures: StudyFigures) -> str:
    """Return the knobs of the job that stay as they are; those that change are at the top."""
    same = [one for one in figures.own_knobs if one.before == one.after]
    if not same:
        return ""
    stay = f"{counted(len(same), 'knob')} of this job {'stays' if len(same) == 1 else 'stay'}"
    facts = _facts((f"`{one.knob}`", written(one.after)) for one in same)
    return _details(f"{stay} as before", facts)


_SECTIONS: tuple[tuple[str, str, Callable[[StudyFigures], str]], ...] = (
    ("saving", "saving", _saving),
    ("trust", "trust", _trust),
    ("rounds", "rounds", _rounds),
    ("step", "a step", _step),
    ("changes", "changes", _contributions),
    ("search", "search and trials", _search),
    ("memory", "memory", _memory),
    ("same", "numerics", _losses),
    ("how", "how and where", _how),
    ("all", "in words", _all),
)
"""Id, title in the list of sections, and maker of each section but the answer."""
