"""Charts as SVG without a script: x in per cent of whatever width there is, y in pixels.

Text keeps its size at any width, so that one drawing serves a desktop and a phone. All texts are escaped
here.
"""

import html
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autotune.views.terminal import plain

_SHAPES = {
    "diamond": "M0 -{b}L{b} 0L0 {b}L-{b} 0Z",
    "cross": "M-{r} -{r}L{r} {r}M-{r} {r}L{r} -{r}",
    "square": "M-{r} -{r}H{r}V{r}H-{r}Z",
}
_NARROWEST = 256.0
"""Pixels of the width of a chart on a phone of 320."""
_CHARACTER, _APART = 7.0, 8.0
"""Pixels of a character of a label, and between two labels."""
_POINTED = 1.35
"""Half a diagonal of a diamond, in radii of a dot of the same weight."""


def escaped(text: object) -> str:
    """Return a text that is inert in HTML; control characters are written out."""
    return html.escape(plain(str(text)))


@dataclass(frozen=True)
class Scale:
    """Linear or logarithmic scale from a range of values to places: per cent from the left, or pixels.

    Attributes:
        size: distance of the place of `high` from that of `low`.
        start: place of `low`.
    """

    low: float
    high: float
    size: float = 100.0
    of: Callable[[float], float] = float
    start: float = 0.0

    def __call__(self, value: float) -> float:
        """Return the place of a value; one outside the range is put at its end."""
        low, high = self.of(self.low), self.of(self.high)
        place = (self.of(min(max(value, self.low), self.high)) - low) / (high - low or 1.0)
        return self.start + place * self.size


def upwards(low: float, high: float, height: float) -> Scale:
    """Return the scale from values to pixels below the top of a chart of this height."""
    return Scale(low, high, -height, start=height)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values between two bounds."""
    if not high > low:
        return []
    step = 10 ** math.floor(math.log10((high - low) / most))
    step *= next((m for m in (1, 2, 2.5, 5) if (high - low) / (step * m) <= most), 10)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


Labels = Sequence[tuple[float, str]]
"""Places along an axis, in per cent, and texts."""


def roomy(labels: Callable[[int], Labels], most: int) -> Labels:
    """Return as many labels, up to a number, as lie side by side on a phone.

    Args:
        labels: returns about so many labels, from left to right.
        most: largest number to try.
    """
    found = labels(most)
    while most > 1 and not _fits(found):
        most -= 1
        found = labels(most)
    return found


def _fits(labels: Labels) -> bool:
    return all(
        (right - left) / 100 * _NARROWEST >= _CHARACTER * (len(one) + len(other)) / 2 + _APART
        for (left, one), (right, other) in itertools.pairwise(labels)
    )


def whole_ticks(count: int, most: int = 10) -> range:
    """Return round whole numbers from 0 to below a count."""
    steps = (m * 10**power for power in itertools.count() for m in (1, 2, 5))
    return range(0, count, next(step for step in steps if count <= step * most))


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """Return a line; x in per cent."""
    return f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" class="{css}"/>'


def band(x: float, width: float, y: float, height: float, css: str) -> str:
    """Return a rectangle; x and width in per cent."""
    place = f'x="{x:.2f}%" width="{max(width, 0.0):.2f}%" y="{y:.1f}" height="{max(height, 0):.1f}"'
    return f'<rect {place} class="{css}"/>'


def dot(x: float, y: float, css: str, title: str = "", *, r: float = 5, shape: str = "") -> str:
    """Return a mark with a title that a pointer or a reader shows; shape: empty for a circle."""
    tip = f"<title>{escaped(title)}</title>" if title else ""
    if not shape:
        return f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="{r:g}" class="{css}">{tip}</circle>'
    path = _SHAPES[shape].format(r=f"{r:g}", b=f"{r * _POINTED:g}")
    return (
        f'<svg x="{x:.2f}%" y="{y:.1f}" overflow="visible" width="1" height="1">'
        f'<path d="{path}" class="{css}">{tip}</path></svg>'
    )


def label(x: float, y: float, text: str, css: str = "tick", *, anchor: str = "start") -> str:
    """Return a text; anchor: start, middle or end."""
    place = f'x="{x:.2f}%" y="{y:.1f}"'
    return f'<text {place} class="{css}" text-anchor="{anchor}">{escaped(text)}</text>'


def area(height: float, body: Iterable[str], title: str, css: str = "area") -> str:
    """Return a drawing of this height."""
    return (
        f'<svg class="{css}" height="{height:.0f}" role="img" aria-label="{escaped(title)}">'
        f"{''.join(body)}</svg>"
    )


@dataclass(frozen=True)
class Axis:
    """Labels of an axis: places and texts, and a title."""

    labels: Labels = ()
    title: str = ""


def chart(height: float, body: Iterable[str], title: str, y: Axis, x: Axis = Axis()) -> str:
    """Return a drawing with axes.

    Args:
        y: labels beside it; each has a line of the grid.
        x: labels under it.
    """
    ys = "".join(f'<span style="top:{at:.1f}px">{escaped(t)}</span>' for at, t in y.labels)
    xs = "".join(f'<span style="left:{at:.2f}%">{escaped(t)}</span>' for at, t in x.labels)
    grid = [line(0, at, 100, at, "grid") for at, _ in y.labels]
    return (
        f'<div class="chart"><div class="ytitle">{escaped(y.title)}</div>'
        f'<div class="ys" aria-hidden="true" style="height:{height:.0f}px">{ys}</div>'
        f"{area(height, [*grid, *body], title)}"
        f'<div class="xs" aria-hidden="true">{xs}</div>'
        f'<div class="xtitle">{escaped(x.title)}</div></div>'
    )
