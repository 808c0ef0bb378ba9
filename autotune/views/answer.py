"""Answer of a study on a screen: its final lines, the same in `start`, `watch` and `status`."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from textwrap import shorten

from autotune.analysis.batches import counters_text
from autotune.analysis.verdict import Kind
from autotune.analysis.wording import Terms, counted
from autotune.views.figure_text import claim, saving_facts
from autotune.views.search_sections import failed_text
from autotune.views.study_figures import StudyFigures
from autotune.views.trust import Point, Trust
from autotune.views.verdict_text import memory_text, remarks
from search_spaces.knob import written

_NARROWEST = 60
_LABEL = 8
"""Columns of a label such as `saves`."""
_MOST_CAUSES, _CAUSE = 3, 150
"""Causes of failed trials that are shown, and characters of each."""
_UNREST = frozenset({"restless", "disturbed", "drift"})
"""Codes of points that are one for a reader: figures of this machine vary."""


def final_block(figures: StudyFigures, *, width: int = 80, exported: str = "") -> str:
    """Return the answer of a study as lines of at most this width, where words allow it.

    Args:
        exported: path of the study's best.yaml; empty if there is none.
    """
    width = max(width, _NARROWEST)
    parts = [
        list(wrapped(headline(figures), width)),
        list(_changes(figures)),
        list(_facts(figures, width)),
        list(_commands(figures, exported)),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def headline(figures: StudyFigures) -> str:
    """Return the answer in a line; without a speed-up it is the whole verdict."""
    answer, ratio = figures.answer, figures.answer.speedup
    if not answer.better or ratio is None:
        return answer.text
    basis = f"{counted(answer.rounds, 'round')} in turn" if answer.confirmed else "not confirmed"
    claimed = claim(ratio, terms=Terms.of(figures.unit))
    return f"{'So far ' if figures.provisional else ''}{claimed}, {basis}"


def _changes(figures: StudyFigures) -> Iterator[str]:
    changes = figures.answer.changes if figures.answer.better else ()
    name = max((len(one.knob) for one in changes), default=0)
    before = max((len(written(one.before)) for one in changes), default=0)
    for one in changes:
        yield f"  {one.knob:<{name}}  {written(one.before):>{before}} → {written(one.after)}"


def _facts(figures: StudyFigures, width: int) -> Iterator[str]:
    for label, text in _labelled(figures):
        first = f"  {label:<{_LABEL}}"
        indent = " " * len(first)
        yield from textwrap.wrap(text, width, initial_indent=first, subsequent_indent=indent)


def _labelled(figures: StudyFigures) -> Iterator[tuple[str, str]]:
    if figures.saving is not None:
        facts = saving_facts(figures.saving, figures.cost, assumed=figures.job.hours_assumed)
        yield from ((fact.name, fact.text.replace("`", "")) for fact in facts)
    if figures.answer.better:
        yield from (("same", text) for text in _same(figures) if text)
        yield from (("memory", text) for text in [memory_text(figures.verdict)] if text)
        yield from (("also", text) for text in remarks(figures.verdict))
    for failed in figures.search.failures[:_MOST_CAUSES]:
        yield "failed", shorten(failed_text(failed), _CAUSE, placeholder=" ...")
    yield from (("! care", text) for text in _cares(figures.trust))
    yield from (("? open", text) for text in _open(figures.trust))


def _same(figures: StudyFigures) -> Iterator[str]:
    same = next((p.text for p in figures.trust if p.code == "numerics"), "")
    batch, after = figures.job.batch_before, figures.job.batch_after
    knobs = figures.verdict.knobs
    if knobs and batch is not None and batch == after and figures.answer.kind == Kind.BETTER:
        counts = counters_text(knobs, figures.verdict.baseline_knobs or knobs)
        same = f"{same} The global batch stays {batch}. {counts}".strip()
    yield same


def _cares(points: Iterable[Point]) -> Iterator[str]:
    """Yield what wants care, all that tells of an unquiet machine as one."""
    cares = [point for point in points if point.trust is Trust.CARE]
    unrest = [point for point in cares if point.code in _UNREST]
    for point in cares:
        if point not in unrest:
            yield _in_full([point])
        elif point is unrest[0]:
            yield _in_full(unrest)


def _open(points: Iterable[Point]) -> Iterator[str]:
    """Yield what is not known: one point in full, several by their titles."""
    unknown = [point for point in points if point.trust is Trust.OPEN]
    if len(unknown) > 1:
        titles = [f"{one.title[:1].lower()}{one.title[1:]}{_setting(one)}" for one in unknown]
        text = ", ".join(titles)
        yield f"{text[:1].upper()}{text[1:]}; the report tells more."
    elif unknown:
        yield _in_full(unknown)


def _in_full(points: Sequence[Point]) -> str:
    texts = [f"{point.text}{_setting(point)}" for point in points]
    return f"{points[0].title}: {' '.join(texts)}"


def _setting(point: Point) -> str:
    return f" ({point.setting})" if point.setting else ""


def _commands(figures: StudyFigures, exported: str) -> Iterator[str]:
    if exported and not figures.answer.changes:
        yield f"  {exported}: your configuration as it is; start your job as before"
    elif exported:
        if command := figures.job.run_with(exported):
            yield f"  {exported}: {command}"
        yield f"  in code: autotune.load({exported!r})"
    elif figures.verdict.trial is None:
        yield "  best.yaml is not written, as nothing is recommended: start your job as before"
    yield f"  the whole story: autotune report {figures.study} --html"


def wrapped(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text at this width; a word that is longer stays whole."""
    for line in text.splitlines() or [""]:
        yield from textwrap.wrap(line, width, break_long_words=False) or [""]
