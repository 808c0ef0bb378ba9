"""Page of a study: one self-contained file without a script, and nothing that is loaded from elsewhere.

All figures are those of autotune.views.figures. Every text goes through `escaped`: names, causes and
output of trials are inert.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources

from autotune.analysis.provenance import machine_name
from autotune.analysis.rounds import Round, Stage
from autotune.analysis.saving import Saving
from autotune.analysis.verdict import Kind
from autotune.analysis.wording import Rounding, Terms, counted, duration, quantity
from autotune.measurement.estimate import Ratio
from autotune.views import page_charts as charts
from autotune.views.figure_text import (
    CI,
    MIB,
    UNKNOWN,
    Fact,
    Known,
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
    short_ratio,
    times,
)
from autotune.views.figures import Job, StudyFigures
from autotune.views.markdown_report import (
    PURPOSES,
    STAGES,
    TRUST,
    best_first,
    condition_rows,
    ended_text,
    expected_ratio,
    failed_text,
    how_text,
    reason_text,
    running_rows,
    stage_title,
    step_note,
    why_no_contributions,
)
from autotune.views.svg import escaped
from autotune.views.trial_figures import TrialFigures
from autotune.views.trust import Trust
from autotune.views.verdict_text import memory_text, remarks
from search_spaces.knob import written

_SHOWN, _MOST = 24, 200
"""Trials that are listed at once, and with those that fold out."""
_CAUSE = 200
"""Characters of the cause of a failed trial."""
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
        figures: of the study.
        exported: path of the study's best.yaml; empty if there is none.
        trials: address of its trials in optuna-dashboard, where the page is served; it then loads
            itself again while the study runs.
        still: whether it stays as it is, so that it can be read, until its reader has it go on.
    """
    sections = [("answer", "", _answer(figures, exported))]
    sections += [(name, title, make(figures)) for name, title, make in _SECTIONS]
    made = [(name, title, body) for name, title, body in sections if body]
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
    left = {end: saving.job_hours - getattr(saving.hours, end) for end in ("value", "low", "high")}
    share = {end: 100 * value / saving.job_hours for end, value in left.items()}
    return (
        '<div class="job"><span>today</span><div class="track"><div class="fill base" '
        f'style="width:100%"></div></div><b>{hours(saving.job_hours)}</b></div>'
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


def _tile(fact: Fact) -> str:
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
    tables = _round_tables(figures)
    if not tables:
        return ""
    drawn = charts.proof_charts(figures)
    shown = charts.complete_rounds(figures)
    kinds = [("k base", "yours"), ("k", "recommended")]
    if any(one.disturbed for one in shown):
        kinds.append(("k hollow", "disturbed by others"))
    if any(not one.counts for one in shown):
        kinds.append(("k shade", "chose among finalists: does not count"))
    legend = _legend_of(kinds)
    return (
        "<h2>The rounds, one by one</h2><p>In each round all ran in turn. The pace of the machine "
        "changes, and all feel it alike: so the ratio counts, and not the rates.</p>"
        f"{legend if drawn else ''}{drawn}<details><summary>All rounds as figures</summary>{tables}"
        "</details>"
    )


def _round_tables(figures: StudyFigures) -> str:
    """Return a table of the rounds of each stage, with every finalist where the baseline is kept."""
    answer = figures.answer
    every = sorted({trial for one in figures.rounds for trial in one.ratios})
    trials = [answer.trial] if answer.better and answer.trial is not None else every
    tables = ""
    for stage in STAGES:
        several = [one for one in figures.rounds if one.stage is stage]
        if stage is not Stage.OPEN and any(one.ratios for one in several):
            tables += f"<h3>{stage_title(several)}</h3>{_round_table(several, trials, figures)}"
    return tables


def _round_table(several: Sequence[Round], trials: Sequence[int], figures: StudyFigures) -> str:
    baseline, named = figures.answer.baseline, len(trials) > 1
    running = any(trial in one.so_far for one in several for trial in trials)
    rows = ""
    for one, trial in itertools.product(several, trials):
        if baseline is None or trial not in one.ratios:
            continue
        known = ratio_text(one.so_far[trial]) if trial in one.so_far else "–"
        rows += (
            f"<tr><td class=n>{one.number}</td>{f'<td class=n>{trial}</td>' if named else ''}"
            f"<td class=n>{times(one.ratios[trial])}</td>"
            + (f"<td>{escaped(known)}</td>" if running else "")
            + f"<td class=n>{quantity(one.rates[trial])}</td>"
            f"<td class=n>{quantity(one.rates[baseline])}</td></tr>"
        )
    heads = (
        f"<th class=n>round</th>{'<th class=n>trial</th>' if named else ''}"
        "<th class=n>over yours</th>"
        + ("<th>by these rounds so far</th>" if running else "")
        + f"<th class=n>{escaped(figures.unit)}</th><th class=n>yours</th>"
    )
    note = "<p class='note'>–: too few rounds to tell.</p>" if running and "–" in rows else ""
    return f"<table class='list'><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _step(figures: StudyFigures) -> str:
    made = figures.step
    if made is None:
        return ""
    kept = figures.answer.trial == figures.answer.baseline
    most = max(made.before, made.after)
    both = [("yours", made.before, [p.before for p in made.parts])]
    if not kept:
        both.append(("tuned", made.after, [p.after for p in made.parts]))
    bars = ""
    for name, whole, parts in both:
        segments = "".join(
            f'<div class="seg p{place % 8}" style="width:{100 * ms / most:.2f}%" '
            f'title="{escaped(part.label)}: {quantity(ms)} ms">'
            + (f"<span>{quantity(ms)}</span>" if ms > 0.06 * most else "")
            + "</div>"
            for place, (part, ms) in enumerate(zip(made.parts, parts, strict=True))
        )
        bars += (
            f'<div class="job"><span>{name}</span><div class="track stack">{segments}</div>'
            f"<b>{quantity(whole)} ms</b></div>"
        )
    rows = "".join(
        f'<tr><td><i class="sw p{place % 8}"></i>{escaped(part.label)}</td>'
        f"{_ms_cells(part.before, part.after, kept=kept)}</tr>"
        for place, part in enumerate(made.parts)
        if max(part.before, part.after) > 0.001 * most
    )
    total = f'<tr class="sum"><td>a step</td>{_ms_cells(made.before, made.after, kept=kept)}</tr>'
    heads = "" if kept else "<th class=n>tuned</th><th class=n>change</th>"
    return (
        "<h2>Where a step's time goes</h2>"
        f"{bars}<table class='list'><thead><tr><th>ms of a step</th><th class=n>yours</th>{heads}</tr>"
        f"</thead><tbody>{rows}{total}</tbody></table>"
        f"<p class='note'>{step_note(made, figures.job, kept=kept)}</p>"
    )


def _ms_cells(before: float, after: float, *, kept: bool) -> str:
    cells = f"<td class=n>{quantity(before)}</td>"
    if not kept:
        change = after - before
        sign = "−" if change < 0 else "+"
        cells += f"<td class=n>{quantity(after)}</td><td class=n>{sign}{quantity(abs(change))}</td>"
    return cells


def _contributions(figures: StudyFigures) -> str:
    if not figures.answer.better:
        return ""
    gains = figures.contributions
    if not gains:
        return f"<h2>What each change brings</h2><p>{_marked(why_no_contributions(figures))}</p>"
    rows = "".join(
        f'<div class="wrow{css}"><div class="wl"><span>{escaped(name)}</span>'
        f"<span>{escaped(text)}</span></div>{bar}</div>"
        for name, text, css, bar in charts.contribution_rows(figures)
    )
    open_ = [one.knob for one in gains if not one.gain.distinguishable]
    said = "Each is told apart from nothing."
    if len(open_) == len(gains):
        said = "Not known: each may bring nothing, or all of it. Only the total is known."
    elif open_:
        said = f"Not known of {', '.join(open_)}: the interval contains 1."
    rounds = counted(max(one.rounds for one in gains), "round")
    return (
        f"<h2>What each change brings</h2><p>{escaped(said)}</p>{rows}"
        '<p class="note">The recommended configuration over itself with that one change taken back, in '
        f"turn, in {rounds}; the intervals hold for all at once (95 %). Hatched: not distinguishable "
        'from 1. The "importance" of a search dashboard is something else: how much trials differed, '
        "luck included.</p>"
    )


def _search(figures: StudyFigures) -> str:
    drawn = charts.trials_chart(figures)
    if not drawn and not figures.trials:
        return ""
    search = figures.search
    facts = [("Space", search.space)] if search.space else []
    facts += [("Left out", reason) for reason in search.left_out]
    goes_on = "not yet" if figures.state == "RUNNING" else "it has not come to its end"
    facts.append(("Ended", ended_text(search) if search.ended else goes_on))
    if search.stopped_early.stopped:
        facts.append(("Ended early", counted(search.stopped_early.stopped, "trial")))
    facts += [("Failed", failed_text(one)) for one in search.failures[:_SHOWN]]
    band = "; the band is what the recommended one came to when it was measured again"
    complete = search.trials.get("COMPLETE", 0)
    failed = sum(len(one.trials) for one in search.failures)
    said = f"{counted(complete, 'trial')} completed" + (f", {failed} failed" if failed else "")
    said += f"{band if figures.answer.better and figures.answer.confirmed else ''}."
    return (
        f"<h2>The search</h2><p>{escaped(said)}</p><dl class='facts'>{_facts(facts)}</dl>"
        f"{_choices(figures)}"
        f"{_legend(figures) if drawn else ''}{drawn}{_trial_tables(figures)}"
    )


def _choices(figures: StudyFigures) -> str:
    """Return which trials were measured again, what each was expected to bring, and what it brought."""
    if not figures.search.choices:
        return ""
    trials = {one.trial: one for one in figures.trials}
    last = next((one for one in reversed(figures.rounds) if one.counts), None)
    rows = ""
    for one in figures.search.choices:
        seen = trials[one.trial].ratio if one.trial in trials else None
        fresh = last.so_far.get(one.trial) if last else None
        cells = {
            "expected": expected_ratio(one) or "–",
            "seen once": short_ratio(seen) if seen else "–",
            "by rounds": short_ratio(fresh) if fresh else "–",
        }
        ratios = "".join(
            f'<td class=n data-l="{name}">{escaped(text)}</td>' for name, text in cells.items()
        )
        reason = _marked(reason_text(one))
        rows += f"<tr><td class=n>{one.trial}</td>{ratios}<td>{reason}</td></tr>"
    return (
        "<h3>Which trials were measured again</h3><table class='list choice'><thead><tr>"
        "<th class=n>trial</th><th class=n>expected</th><th class=n>seen once</th>"
        f"<th class=n>by rounds</th><th></th></tr></thead><tbody>{rows}</tbody></table>"
        '<p class="note">All over yours. Expected: by the model of a step, from all trials, when the '
        "search ended, with its own interval; it orders the trials. Seen once: in the trial itself, "
        "luck included. By rounds: "
        "the result; a dash: it had none, or they only chose. The three rest on different runs, and "
        "need not agree.</p>"
    )


def _legend(figures: StudyFigures) -> str:
    """Return the kinds of marks that the chart of trials has."""
    others = [one for one in figures.trials if not one.baseline]
    answer = figures.answer
    again = answer.better and answer.confirmed
    kinds = (
        ("k base", "yours", any(one.baseline for one in figures.trials)),
        ("k", "in turn with yours", any(one.in_turn for one in others)),
        ("k hollow", "alone", any(one.ratio and not one.in_turn for one in others)),
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
    return "".join(f"<dt>{escaped(name)}</dt><dd>{_marked(text)}</dd>" for name, text in facts)


def _trial_tables(figures: StudyFigures) -> str:
    several = best_first(figures.trials)
    several += [one for one in figures.trials if one.rate is None]
    rest = several[_SHOWN:_MOST]
    more = len(several) - _MOST
    tables = _trial_table(figures, several[:_SHOWN])
    if rest:
        told = counted(len(rest), "more trial")
        if more > 0:
            command = f"autotune export {figures.study} --trials FILE"
            told += f"; all are in the table that <code>{escaped(command)}</code> writes"
        tables += f"<details><summary>{told}</summary>{_trial_table(figures, rest)}</details>"
    return tables


def _trial_table(figures: StudyFigures, several: Sequence[TrialFigures]) -> str:
    unit = escaped(figures.unit)
    reasons = any(one.suggested_by not in ("", "baseline") for one in several)
    heads = (
        "<th class=n>trial</th><th>over yours, seen once</th><th>how</th>"
        f"<th class=n>expected</th><th class=n>{unit}</th><th class=n>yours</th><th class=n>MiB</th>"
        f"<th>changes</th>{'<th>tried because</th>' if reasons else ''}"
    )
    rows = "".join(_trial_row(one, reasons=reasons) for one in several)
    note = f"?: {UNKNOWN}. Expected: by the model of a step, from all trials together."
    note += " Without a reason: the sampler chose it." if reasons else ""
    return (
        f'<table class="list tried"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        f'<p class="note">{note}</p>'
    )


def _trial_row(one: TrialFigures, *, reasons: bool) -> str:
    css = "win" if one.recommended else "own" if one.baseline else "bad" if one.rate is None else ""
    columns = "".join(
        f"<td{f' class={c}' if c else ''}{f' data-l={name}' if name else ''}>{text}</td>"
        for c, name, text in _trial_cells(one, reasons=reasons)
    )
    return f"<tr{f' class={css}' if css else ''}>{columns}</tr>"


def _trial_cells(one: TrialFigures, *, reasons: bool) -> Iterator[tuple[str, str, str]]:
    """Yield class, label on a narrow screen and content of each cell."""
    yield "n", "", str(one.trial)
    yield "ratio", "", escaped(short_ratio(one.ratio)) if one.ratio else "–"
    if one.rate is None:
        cause = escaped(one.cause[:_CAUSE])
        yield "", "", f'<span class="cause">{escaped(one.state)}</span> {cause}'
    else:
        yield "how", "", escaped(how_text(one))
    yield "n", "expected", times(one.expected) if one.expected is not None else ""
    yield "n", "rate", quantity(one.rate) if one.rate is not None else ""
    beside = None if one.baseline else one.reference_rate
    yield "n", "yours", quantity(beside) if beside else ""
    yield "n", "MiB", quantity(one.peak_bytes / MIB) if one.peak_bytes else ""
    changes = ", ".join(f"{name}={written(value)}" for name, value in one.changes.items())
    yield "", "", f"<code>{escaped(changes or 'no change')}</code>"
    if reasons:
        yield "why", "why:", "" if one.baseline else escaped(_first_words(one.suggested_by))


def _first_words(reason: str) -> str:
    """Return the first part of a reason: what follows names every knob in it."""
    return reason.partition(";")[0].partition(":")[0]


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
    rows = "".join(
        f"<tr><td>{escaped(PURPOSES.get(one.purpose, one.purpose))}</td><td class=n>{one.count}</td>"
        f"<td class=n>{duration(one.seconds)}</td></tr>"
        for one in figures.runs
    )
    total = sum(one.seconds for one in figures.runs)
    count = sum(one.count for one in figures.runs)
    rows += (
        f"<tr class=sum><td>all</td><td class=n>{count}</td><td class=n>{duration(total)}</td></tr>"
    )
    facts = list(_machine(figures))
    job = figures.job
    facts.append(("Job", f"{job.workload} {job.arguments}".strip()))
    if job.ranks:
        facts.append(("Ranks", f"{job.ranks}{f', {job.backend}' if job.backend else ''}"))
    if figures.noise and figures.noise.runs > 1:
        noise = f"{figures.noise.sigma_run:.1%} (by {counted(figures.noise.runs, 'run')} of yours)"
        facts.append(("Equal runs differ by", noise))
    facts += [(label.capitalize(), text) for label, text in condition_rows(figures.conditions)]
    facts += [(f"{one.name}, baseline", one.text) for one in figures.bottlenecks]
    ran = "".join(_running_facts(figures))
    return (
        "<h2>How and where it was measured</h2><div class='two'><div><table class='list'><thead><tr>"
        f"<th>runs</th><th></th><th class=n>time</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f"<div><dl class='facts'>{_facts(facts)}</dl></div></div>{ran}"
    )


def _machine(figures: StudyFigures) -> Iterator[tuple[str, str]]:
    for one in figures.environments:
        yield "Machine", machine_name(one)
        names = ("torch", "python", "cuda", "nccl", "driver", "kernel", "autotune")
        known = (f"{name} {one[name]}" for name in names if one.get(name))
        yield "Software", ", ".join(known)


def _running_facts(figures: StudyFigures) -> Iterator[str]:
    if figures.running is not None:
        rows = _facts(running_rows(figures.running, figures.step))
        which = "the recommended" if figures.answer.better else "your"
        yield (
            f"<details><summary>How {which} configuration ran</summary>"
            f"<dl class='facts'>{rows}</dl></details>"
        )


def _all(figures: StudyFigures) -> str:
    said = "".join(f"<li>{escaped(one.text)}</li>" for one in figures.messages[-_MESSAGES:])
    return (
        f"{_unchanged(figures)}<details><summary>The verdict in words, and what the study said</summary>"
        f"<p>{escaped(figures.answer.text)}</p><ul class='log'>{said}</ul></details>"
    )


def _unchanged(figures: StudyFigures) -> str:
    """Return the knobs of the job that stay as they are; those that change are at the top."""
    same = [one for one in figures.own_knobs if one.before == one.after]
    if not same:
        return ""
    facts = "".join(
        f"<dt><code>{escaped(one.knob)}</code></dt><dd>{escaped(written(one.after))}</dd>"
        for one in same
    )
    return (
        f"<details><summary>{counted(len(same), 'knob')} of this job "
        f"{'stays' if len(same) == 1 else 'stay'} as before</summary>"
        f"<dl class='facts'>{facts}</dl></details>"
    )


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
